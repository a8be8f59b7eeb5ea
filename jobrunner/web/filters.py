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
from jobrunner.charts.scale import number
from jobrunner.client.client import Client
from jobrunner.client.internals import keys_of
from jobrunner.clock import utc_now
from jobrunner.inspector.snapshot import shown_url
from jobrunner.settings import RateLimit


def whole(value: int | None) -> str:
    """1,204; a dash for None."""
    return "–" if value is None else f"{value:,}"


def rate(per_s: float | None) -> str:
    """A rate by the unit that reads best: 1,204/s, 3.5/s, 12/min; a dash for None."""
    if per_s is None:
        return "–"
    if per_s == 0 or per_s >= 1:
        return f"{number(round(per_s, 1))}/s"
    return f"{number(round(per_s * 60, 1))}/min"


def span(length: float | timedelta | None) -> str:
    """A length in seconds, in its two largest units: 340 ms, 12 s, 3 min 5 s, 2 h 4 min, 3 d 2 h."""
    if length is None:
        return "–"
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    for unit, size, below, small in (("min", 60, "s", 1), ("h", 3600, "min", 60), ("d", 86_400, "h", 3600)):
        if seconds < size * {"min": 60, "h": 24, "d": 10**9}[unit]:
            rest = int(seconds % size // small)
            return f"{int(seconds // size)} {unit}" + (f" {rest} {below}" if rest else "")
    return ""


def size(octets: float | None) -> str:
    """A number of bytes: 812 B, 1.2 MiB."""
    if octets is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(octets) < 1024:
            return f"{octets:.0f} {unit}" if unit == "B" or octets >= 100 else f"{octets:.1f} {unit}"
        octets /= 1024
    return f"{octets:.1f} TiB"


def ago(instant: datetime | None) -> Markup | str:
    """How far an instant is from now: `3 min ago`, `in 12 s`; a dash for None."""
    if instant is None:
        return "–"
    seconds = (instant - utc_now()).total_seconds()
    near = "now" if abs(seconds) < 1 else f"in {span(seconds)}" if seconds > 0 else f"{span(round(-seconds))} ago"
    return safe(f'<time datetime="{_iso(instant)}" title="{_said(instant)}" data-relative>{near}</time>')


def instant(at: datetime | None) -> Markup | str:
    """An instant to the second, UTC; a dash for None."""
    if at is None:
        return "–"
    return safe(f'<time datetime="{_iso(at)}" title="{_iso(at)}">{_said(at)}</time>')


def limit(rate: RateLimit) -> str:
    """30 a minute, 15 in 2 hours."""
    unit = rate.interval_unit.lower()
    every = f"a{'n' if unit == 'hours' else ''} {unit[:-1]}" if rate.interval == 1 else f"in {rate.interval} {unit}"
    return f"{rate.max_tokens:,} {every}"


def plural(count: int, word: str, many: str | None = None) -> str:
    """1 task, 1,204 tasks."""
    return f"{count:,} {word if count == 1 else many or word + 's'}"


def shares_of(parts: Sequence[tuple[str, str, float]], label: str) -> Markup:
    """(name, look, size) as one bar."""
    return shares(parts, label=label)


def spark(values: Sequence[float], label: str) -> Markup:
    """A line of the size of a word."""
    return sparkline(values, label=label)


def share(part: float) -> str:
    """0.125 as 12.5 %."""
    return f"{part * 100:.1f}".removesuffix(".0") + " %"


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


def _said(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


FILTERS: dict[str, Callable[..., Any]] = {
    "ago": ago,
    "chip": chip,
    "instant": instant,
    "limit": limit,
    "number": number,
    "place": place,
    "plural": plural,
    "rate": rate,
    "share": share,
    "shares": shares_of,
    "short_id": short_id,
    "size": size,
    "span": span,
    "sparkline": spark,
    "whole": whole,
    "zero": zero,
}
