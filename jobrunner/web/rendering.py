"""Rendering of pages: templates with their filters and charts for browsers, JSON for programs.

Filters format numbers, times and durations for people. Times are UTC in the text that the server writes; `<time>`
elements carry the instant, and the page's script rewrites them in the reader's zone and keeps relative ones up to date.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from html import escape
from pathlib import Path
from string import hexdigits
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from jobrunner.charts import ChartSeries
from jobrunner.charts.responsive import bars, lines, safe, shares, sparkline
from jobrunner.client.client import Client, keys_of
from jobrunner.clock import utc_now
from jobrunner.formatting import away, counted, duration, number, percent, rate, size
from jobrunner.formatting import instant as instant_text
from jobrunner.inspector.shards import queue_of
from jobrunner.inspector.snapshot import shown_url
from jobrunner.inspector.stats import StatsSeries, StatsStep, StatsWindow, Unit, releases_since, series_of
from jobrunner.queue_settings import RateLimit
from jobrunner.web.routing import Context

TEMPLATES = Path(__file__).parent / "templates"
STATIC = Path(__file__).parent / "static"
SPANS: dict[str, tuple[str, timedelta, Unit]] = {
    "1h": ("hour", timedelta(hours=1), "minute"),
    "6h": ("6 hours", timedelta(hours=6), "minute"),
    "24h": ("day", timedelta(hours=24), "hour"),
    "7d": ("week", timedelta(days=7), "hour"),
}


def dashed(say: Callable[[Any], str]) -> Callable[[Any], str]:
    """The filter `say`, extended with a dash for None."""
    return lambda value: "–" if value is None else say(value)


def span(length: float | timedelta) -> str:
    """A duration, also of a timedelta."""
    return duration(length.total_seconds() if isinstance(length, timedelta) else length)


def ago(instant: datetime | None) -> Markup | str:
    """The distance of an instant from now: `3 min ago`, `in 12 s`; a dash for None."""
    if instant is None:
        return "–"
    near = away((instant - utc_now()).total_seconds())
    title = instant_text(instant)
    return safe(f'<time datetime="{_iso(instant)}" title="{title}" data-relative>{near}</time>')


def instant(at: datetime | None) -> Markup | str:
    """An instant to the second, UTC; a dash for None."""
    if at is None:
        return "–"
    return safe(f'<time datetime="{_iso(at)}" title="{instant_text(at)}">{instant_text(at)}</time>')


def limit(rate: RateLimit) -> str:
    """30 a minute, 15 in 2 hours."""
    unit = rate.interval_unit.lower()
    every = f"a{'n' if unit == 'hours' else ''} {unit[:-1]}" if rate.interval == 1 else f"in {rate.interval} {unit}"
    return f"{rate.max_tokens:,} {every}"


def shares_of(parts: Sequence[tuple[str, str, float]], label: str) -> Markup:
    """The parts (name, look, size) as one bar."""
    return shares(parts, label=label)


def spark(values: Sequence[float], label: str) -> Markup:
    """A line of the size of a word."""
    return sparkline(values, label=label)


def zero(count: int) -> Markup | str:
    """A count as `1,204`; zero is drawn without emphasis."""
    return f"{count:,}" if count else safe('<span class="zero">0</span>')


def short_id(task_id: str) -> str:
    """The distinctive part of a generated id: the end of its 28 digits, with its tag."""
    return f"…{task_id[8:16]}-{task_id[29:]}" if len(task_id) > 29 and task_id[28] == "-" else task_id


def short_release(name: str) -> str:
    """A release; a commit hash is cut to ten digits."""
    return name[:10] if len(name) == 40 and all(one in hexdigits for one in name) else name


def place(client: Client) -> str:
    """The server and prefix of the dashboard, without a password."""
    return f"{shown_url(client)} · {keys_of(client).prefix}"


def chip(state: str) -> Markup:
    """A state as a badge. A state has one label everywhere: its name."""
    return safe(f'<span class="badge {escape(state)}">{escape(state)}</span>')


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


FILTERS: dict[str, Callable[..., Any]] = {
    "ago": ago,
    "chip": chip,
    "instant": instant,
    "limit": limit,
    "number": number,
    "place": place,
    "plural": counted,
    "queue_of": queue_of,
    "rate": dashed(rate),
    "share": percent,
    "shares": shares_of,
    "short_id": short_id,
    "short_release": short_release,
    "size": dashed(size),
    "span": dashed(span),
    "sparkline": spark,
    "whole": dashed("{:,}".format),
    "zero": zero,
}


@cache
def environment() -> Environment:
    """The templates of this package, each compiled once for all dashboards of a process."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
    )
    made.filters.update(FILTERS)
    return made


_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]"
)
"""Control characters, marks that change the writing direction, and zero-width characters except those that join
letters."""
_TAG_OR_INVISIBLE = re.compile(f"(?P<tag><[^>]*>)|{_INVISIBLE.pattern}")


def escape_invisible(page: str) -> str:
    """Writes invisible characters as `\\u202e`, as in JSON, so that different texts look different.

    Attributes are unchanged: forms send them back, and buttons copy them.
    """
    if _INVISIBLE.search(page) is None:
        return page
    return _TAG_OR_INVISIBLE.sub(lambda found: found["tag"] or f"\\u{ord(found[0]):04x}", page)


def as_json(values: Mapping[str, Any]) -> bytes:
    """The values of a page or an action for a program."""
    return msgspec.json.encode(values, enc_hook=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)


def version_of(folder: Path) -> Callable[[str], str]:
    """A function from the name of a static file to `name?v=…`, which changes with the file."""

    def versioned(name: str) -> str:
        path = folder / name
        return f"{name}?v={path.stat().st_mtime_ns:x}" if path.is_file() else name

    return versioned


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsCharts:
    """Rendered charts of throughput, run and wait times of the last `span`, with their figures."""

    span: str
    said: str
    spans: tuple[tuple[str, str], ...]
    throughput: Markup
    run: Markup
    wait: Markup
    figures: StatsSeries


def asked_span(context: Context) -> str:
    """The chosen window; an hour by default."""
    return context.query.choice("span", SPANS, "1h")


def plots(client: Client, span: str, window: StatsWindow) -> StatsCharts:
    """Draws the statistics of a window of that span. Raises ServerError."""
    said, _, unit = SPANS[span]
    found = series_of(window)
    steps = _from_first_sample(found.steps)
    starts = [step.start for step in steps]
    seen = releases_since(client, starts[0]) if starts else {}
    marks = [(at, f"release {short_release(name)}") for name, at in seen.items()]
    return StatsCharts(
        span=span,
        said=said,
        spans=tuple((name, shown) for name, (shown, _, _) in SPANS.items()),
        throughput=bars(starts, _outcomes(steps), title=f"Attempts that ended, by {unit}", marks=marks),
        run=lines(starts, _percentiles(steps, "run"), title="Run time", unit=" ms", marks=marks),
        wait=lines(starts, _percentiles(steps, "wait"), title="Wait", unit=" ms", marks=marks),
        figures=found,
    )


_FEWEST_STEPS = 15


def _from_first_sample(steps: Sequence[StatsStep]) -> Sequence[StatsStep]:
    """The steps from the first sample or attempt on, at least 15, so that a young server has no empty axis."""
    known = (at for at, step in enumerate(steps) if step.counts or step.depth is not None)
    first = next(known, 0)
    return steps[max(min(first - 1, len(steps) - _FEWEST_STEPS), 0) :]


def _outcomes(steps: Sequence[StatsStep]) -> list[ChartSeries]:
    def of(name: str, look: str, *outcomes: str) -> ChartSeries:
        return ChartSeries(
            name=name, look=look, values=[sum(step.counts.get(one, 0) for one in outcomes) for step in steps]
        )

    found = [
        of("succeeded", "bar-succeeded", "succeeded"),
        of("moved on", "bar-moved", "moved"),
        of("failed", "bar-failed", "failed"),
        of("cancelled, dropped", "bar-other", "cancelled", "dropped"),
    ]
    return [line for at, line in enumerate(found) if at in (0, 2) or any(line.values)]


def _percentiles(steps: Sequence[StatsStep], kind: str) -> list[ChartSeries]:
    times = [step.run if kind == "run" else step.wait for step in steps]
    return [
        ChartSeries(name="p50", look="pending", values=[one.p50_ms for one in times]),
        ChartSeries(name="p95", look="scheduled", values=[one.p95_ms for one in times]),
        ChartSeries(name="p99", look="warn", values=[one.p99_ms for one in times]),
    ]
