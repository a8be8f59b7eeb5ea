"""Values, URLs and text as errors, logs and terminals may show them."""

import re
from urllib.parse import parse_qsl, urlsplit

_LONGEST = 160
_PATH = re.compile(r"[A-Za-z0-9_./~+-]*")
_SCHEMES = ("redis", "rediss", "unix", "embedded", "redis+sentinel", "rediss+sentinel", "redis+cluster")
_HOSTS = re.compile(r"((\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+)(:\d{1,5})?,?)*")


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
    """Scheme, hosts, path and database number of a URL and nothing else, as any other part may be a secret (user and
    password, a token, `?password=`, `?ssl_password=`, and options that a later version of redis-py adds)."""
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
    """Text for a terminal: what would steer it (escape sequences, other controls, marks that turn the direction of
    writing) stands there as `\\x1b` and the like; line breaks and tabs stay."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else _escaped(one) for one in text)


def _escaped(one: str) -> str:
    return ascii(one)[1:-1]
