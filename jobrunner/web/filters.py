"""Filters of the templates: how numbers, times and lengths are written for people.

Times are UTC in the text that the server writes; `<time>` elements carry the instant, and the page's script writes them
in the reader's zone and keeps relative ones up to date.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any

from markupsafe import Markup

from jobrunner.charts.responsive import safe, shares, sparkline
from jobrunner.client.client import Client
from jobrunner.client.internals import keys_of
from jobrunner.clock import utc_now
from jobrunner.formatting import away, counted, duration, number, percent, rate, size
from jobrunner.formatting import instant as instant_text
from jobrunner.inspector.snapshot import shown_url
from jobrunner.settings import RateLimit


def dashed(say: Callable[[Any], str]) -> Callable[[Any], str]:
    """The same text, and a dash for None."""
    return lambda value: "–" if value is None else say(value)


def span(length: float | timedelta) -> str:
    """A duration, also of a timedelta."""
    return duration(length.total_seconds() if isinstance(length, timedelta) else length)


def ago(instant: datetime | None) -> Markup | str:
    """How far an instant is from now: `3 min ago`, `in 12 s`; a dash for None."""
    if instant is None:
        return "–"
    near = away((instant - utc_now()).total_seconds())
    title = instant_text(instant)
    return safe(f'<time datetime="{_iso(instant)}" title="{title}" data-relative>{near}</time>')


def instant(at: datetime | None) -> Markup | str:
    """An instant to the second, UTC; a dash for None."""
    if at is None:
        return "–"
    return safe(f'<time datetime="{_iso(at)}" title="{_iso(at)}">{instant_text(at)}</time>')


def limit(rate: RateLimit) -> str:
    """30 a minute, 15 in 2 hours."""
    unit = rate.interval_unit.lower()
    every = f"a{'n' if unit == 'hours' else ''} {unit[:-1]}" if rate.interval == 1 else f"in {rate.interval} {unit}"
    return f"{rate.max_tokens:,} {every}"


def shares_of(parts: Sequence[tuple[str, str, float]], label: str) -> Markup:
    """(name, look, size) as one bar."""
    return shares(parts, label=label)


def spark(values: Sequence[float], label: str) -> Markup:
    """A line of the size of a word."""
    return sparkline(values, label=label)


def zero(count: int) -> Markup | str:
    """1,204; a nought that does not ask for attention."""
    return f"{count:,}" if count else safe('<span class="zero">0</span>')


def short_id(task_id: str) -> str:
    """The part of a made id that tells it from its neighbours: the end of its 28 digits, with its tag."""
    return f"…{task_id[8:16]}-{task_id[29:]}" if len(task_id) > 29 and task_id[28] == "-" else task_id


def place(client: Client) -> str:
    """Which server and prefix this is about; without a password."""
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
    "rate": dashed(rate),
    "share": percent,
    "shares": shares_of,
    "short_id": short_id,
    "size": dashed(size),
    "span": dashed(span),
    "sparkline": spark,
    "whole": dashed("{:,}".format),
    "zero": zero,
}
