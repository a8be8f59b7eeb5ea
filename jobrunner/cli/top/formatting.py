"""Numbers, bars and curves in few columns. Pure."""

from collections.abc import Sequence

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"
_UNITS = ((1e9, 999.5e6, "G"), (1e6, 999.5e3, "M"), (1e3, 9_999.5, "k"))


def number(count: float) -> str:
    """At most five columns: `9,999`, `12.3k`, `1.2M`."""
    for size, least, unit in _UNITS:
        if count >= least:
            scaled = count / size
            return f"{scaled:.1f}{unit}" if scaled < 99.95 else f"{scaled:.0f}{unit}"
    return f"{count:,.0f}"


def rate(per_s: float | None) -> str:
    """`-` when it is not known yet; with one place after the point below 10."""
    if per_s is None:
        return "-"
    return f"{per_s:.1f}" if 0 < per_s < 9.95 else number(per_s)


def size(count: float) -> str:
    """Bytes: `812 KiB`, `1.2 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit in ("B", "KiB") or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def length(seconds: float) -> str:
    """At most four columns: `450ms`, `12s`, `3m`, `5h`, `9d`."""
    if 0 <= seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if abs(seconds) >= 2 * unit_s:
            return f"{seconds / unit_s:.0f}{unit}"
    return f"{seconds:.0f}s"


def bar(part: float, whole: float, width: int) -> str:
    """A bar of `width` columns, filled to an eighth of a column; any value above 0 fills at least one eighth."""
    eighths = round(min(max(part / whole, 0.0), 1.0) * width * 8) if whole > 0 else 0
    if part > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def curve(values: Sequence[float], width: int) -> str:
    """The last `width` values as heights; blank where there is none yet, lowest at nothing."""
    last = values[-width:] if width > 0 else ()
    top = max(last, default=0.0)
    drawn = "".join(_HEIGHTS[_height(value, top)] for value in last)
    return drawn.rjust(max(width, 0))


def _height(value: float, top: float) -> int:
    if value <= 0 or top <= 0:
        return 0
    return 1 + min(int(value / top * (len(_HEIGHTS) - 1)), len(_HEIGHTS) - 2)


def cut(text: str, width: int) -> str:
    """The text in at most `width` columns, with an ellipsis when it was longer."""
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    return line[: max(width - 1, 0)] + "…" if width > 0 else ""
