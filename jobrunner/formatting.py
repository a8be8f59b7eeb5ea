"""Text for people: numbers, rates, durations, ages, sizes and bars, the same in commands, dashboard, charts and
reports; and values, URLs and text made safe for errors, logs and terminals.

Durations are in seconds and sizes in bytes. A missing value has no text here: a terminal writes `-` for it, a page `–`.
"""

import re
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from urllib.parse import parse_qsl, urlsplit

DISTRIBUTION, OTHER_DISTRIBUTION = "jobrunner-queue", "jobrunner"
"""The name of this package on the package index, and the name of another project there that also installs into the
folder `jobrunner/`."""
REPAIR = f"pip uninstall {OTHER_DISTRIBUTION}, then pip install --force-reinstall {DISTRIBUTION}"
"""The remedy when both are installed."""
_LONGEST = 160
_PATH = re.compile(r"[A-Za-z0-9_./~+-]*")
_SCHEMES = ("redis", "rediss", "unix", "embedded", "redis+sentinel", "rediss+sentinel", "redis+cluster")
_UNITS = ((1e9, 999.5e6, "G"), (1e6, 999.5e3, "M"), (1e3, 9_999.5, "k"))
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
_STEPS = ((_DAY_S, "d", _HOUR_S, "h"), (_HOUR_S, "h", _MINUTE_S, "min"), (_MINUTE_S, "min", 1, "s"))
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"
_HOSTS = re.compile(r"((\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+)(:\d{1,5})?,?)*")


def install_command(extras: str) -> str:
    """The command that installs extras of this package, such as `web` or `demo,spark`, for messages."""
    return f'pip install "{DISTRIBUTION}[{extras}]"'


def require_extra(module: str, extra: str, *packages: str) -> None:
    """Checks that the packages of an extra, which `module` needs, are installed. Raises ModuleNotFoundError with the
    command that installs them; its `name` is the first missing package."""
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"{module} needs {package}: {install_command(extra)}", name=package)


def describe(value: object, longest: int = _LONGEST) -> str:
    """The repr of a value for an error message: one line, at most `longest` characters; the type when its repr fails.
    Never raises."""
    try:
        text = repr(value)
    except Exception:  # a user's __repr__, or an int of too many digits
        return f"a {type(value).__name__} that cannot be shown"
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[:longest]}…"


def safe_url(url: str) -> str:
    """Only scheme, hosts, path and database number of a URL, as any other part may be a secret (user and password, a
    token, `?password=`, `?ssl_password=`, and options that a later version of redis-py adds)."""
    try:
        parts = urlsplit(url)
        scheme, hosts, path, query = parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query
    except ValueError:
        return "(a URL that cannot be read)"
    if not scheme or "@" in path or not _PATH.fullmatch(path) or not _HOSTS.fullmatch(hosts):
        return f"{scheme}://…" if scheme in _SCHEMES else "(a URL that cannot be read)"
    database = next((value for name, value in parse_qsl(query) if name == "db" and value.isdigit()), None)
    return f"{scheme}://{hosts}{path}{'' if database is None else f'?db={database}'}"


def printable(text: str) -> str:
    """Text for a terminal: characters that control it (escape sequences, other controls, marks that change the
    direction of writing) are written as `\\x1b` and the like; line breaks and tabs stay."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else _escaped(one) for one in text)


def storable(text: str) -> str:
    """The text with escapes (`\\udcff`) for characters that have no UTF-8: a file name may have halves of a surrogate
    pair, and the server takes none."""
    return text.encode("utf-8", "backslashreplace").decode()


def number(value: float) -> str:
    """A number in at most five columns: `1,204`, `12.5k`, `3.1M`; below ten with one decimal if it is not whole."""
    size = abs(value)
    for unit_size, least, unit in _UNITS:
        if size >= least:
            scaled = value / unit_size
            return (f"{scaled:.1f}".removesuffix(".0") if abs(scaled) < 99.95 else f"{scaled:.0f}") + unit
    return f"{value:,.0f}" if size >= 9.95 or value == int(value) else f"{value:.1f}"


def rounded(value: float) -> str:
    """A number with three significant digits, or with all digits before the point when there are more: `1,234`."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f}"


def rate(per_s: float) -> str:
    """A rate in the most readable unit: `1,204/s`, `3.5/s`, `12/min`."""
    if per_s == 0 or per_s >= 1:
        return f"{number(round(per_s, 1))}/s"
    return f"{number(round(per_s * 60, 1))}/min"


def percent(share: float) -> str:
    """0.125 as `12.5 %`."""
    return f"{share * 100:.1f}".removesuffix(".0") + " %"


def counted(count: int, noun: str, many: str | None = None) -> str:
    """A count with its noun: `1 dead task`, `1,204 dead tasks`. `many`: the plural if it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def duration(seconds: float) -> str:
    """A duration in its two largest units: `2.5 ms`, `340 ms`, `1.2 s`, `12 s`, `3 min 5 s`, `2 h 4 min`, `3 d 2 h`."""
    if seconds < 0.9995:
        return _one_digit(seconds * 1000) + " ms"
    if seconds < 59.5:
        return _one_digit(seconds) + " s"
    whole_s = round(seconds)
    for size_s, unit, rest_s, rest_unit in _STEPS:
        if whole_s >= size_s:
            rest = whole_s % size_s // rest_s
            return f"{whole_s // size_s} {unit}" + (f" {rest} {rest_unit}" if rest else "")
    return f"{whole_s} s"


def short_duration(seconds: float) -> str:
    """A duration in at most four columns: `450ms`, `12s`, `3m`, `5h`, `9d`."""
    if 0 <= seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    for unit_s, unit in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "m")):
        if abs(seconds) >= 2 * unit_s:
            return f"{seconds / unit_s:.0f}{unit}"
    return f"{seconds:.0f}s"


def exact_duration(seconds: float) -> str:
    """A duration in the form of a command-line option, in the largest unit that divides it: `90s`, `5m`."""
    for unit_s, unit in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "m"), (1, "s"), (0.001, "ms")):
        count = seconds / unit_s
        if count >= 1 and count.is_integer():
            return f"{count:.0f}{unit}"
    return f"{seconds:g}s"


def clock(seconds: float) -> str:
    """Time since a start: `1:02:03`, or `02:03` within the first hour."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def away(seconds: float) -> str:
    """The distance of an instant from now, negative in the past: `in 12 s`, `3 min ago`, `now`.

    In whole seconds, from a minute on in whole minutes, as in the script of a page, which updates it.
    """
    if abs(seconds) < 1:
        return "now"
    whole_s = round(abs(seconds))
    length = duration(whole_s if whole_s < _MINUTE_S else whole_s // _MINUTE_S * _MINUTE_S)
    return f"in {length}" if seconds > 0 else f"{length} ago"


def instant(at: datetime) -> str:
    """An instant to the second, in UTC: `2026-11-23 22:36:42 UTC`."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def size(octets: float) -> str:
    """A number of bytes: `812 B`, `1.2 MiB`, `120 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(octets) < 1024:
            return f"{octets:.0f} {unit}" if unit == "B" or abs(octets) >= 100 else f"{octets:.1f} {unit}"
        octets /= 1024
    return f"{octets:.1f} TiB"


def bar(part: float, whole: float, width: int) -> str:
    """A bar of `width` columns, filled to an eighth of a column; any value above 0 fills at least one eighth."""
    eighths = round(min(max(part / whole, 0.0), 1.0) * width * 8) if whole > 0 else 0
    if part > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def curve(values: Sequence[float], width: int) -> str:
    """The last `width` values as heights, right-aligned; the lowest height stands for zero alone."""
    last = values[-width:] if width > 0 else ()
    top = max(last, default=0.0)
    drawn = "".join(_HEIGHTS[_height(value, top)] for value in last)
    return drawn.rjust(max(width, 0))


def cut(text: str, width: int) -> str:
    """The text in at most `width` columns, with an ellipsis if it was cut."""
    line = " ".join(text.split())
    if display_width(line) <= width:
        return line
    kept = line[: max(width - 1, 0)]
    while display_width(kept) > width - 1 and kept:
        kept = kept[:-1]
    return kept + "…" if width > 0 else ""


def listed(names: Sequence[str], most: int) -> str:
    """Up to `most` names with commas between, and the number of further names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def is_utf8(encoding: str | None) -> bool:
    """Whether a stream of this encoding can write every character."""
    return str(encoding).lower() in ("utf-8", "utf8")


def display_width(text: str) -> int:
    """The columns of a text in a terminal: two for each wide character, none for a combining character."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.category(one) in ("Mn", "Me", "Cf") else 1 + (unicodedata.east_asian_width(one) in "WF")
        for one in text
    )


def _one_digit(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 9.95 else f"{value:.0f}"


def _height(value: float, top: float) -> int:
    if value <= 0 or top <= 0:
        return 0
    return 1 + min(int(value / top * (len(_HEIGHTS) - 1)), len(_HEIGHTS) - 2)


def _escaped(one: str) -> str:
    return ascii(one)[1:-1]
