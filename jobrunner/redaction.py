"""Values that neither a page nor a command shows: those under a name that matches a pattern, however deep they are."""

import re
from collections.abc import Iterable, MutableMapping
from typing import Any

from jobrunner.errors import InvalidOption

DEFAULT = ("password", "passwd", "secret", "token", "api[-_]?key", "authorization", "credit[-_]?card")
HIDDEN = "••••••"
TOO_DEEP = "(nested too deep to be shown)"
_DEEPEST = 20
_NAME = re.compile(r"""(?<![\w-])[A-Za-z_][\w-]{0,99}(?![\w-])\\?["']?\s{0,3}(?:=>|[:=])\s{0,3}""")
"""The text before a value in free text: `name=`, `name: `, `'name': `, `"name":`."""
_QUOTED = (
    r"""\\"(?:(?!\\").){0,9999}(?:\\")?|\\'(?:(?!\\').){0,9999}(?:\\')?"""
    r"""|"(?:[^"\\]|\\.){0,9999}"?|'(?:[^'\\]|\\.){0,9999}'?"""
)
"""In quotes, of which the second may be missing where the text was cut."""
_VALUE = re.compile(
    rf"""(?:(?:digest|aws4-\S+)[ ][^\r\n]+|(?:bearer|basic|token|apikey|negotiate|ntlm|bot)\s{{1,3}})?"""
    rf"""(?:[bru]{{0,2}}(?:{_QUOTED})|(?P<opened>(?:[a-z_][\w.]{{0,99}}\(|[\[{{(]))|[^\s,;&)\]}}"']+)?""",
    re.DOTALL | re.IGNORECASE,
)
"""With the scheme of a header before it: in quotes, or in brackets, as of a list or `SecretStr('…')`; else up to a
blank or a sign that ends it."""
_PART = re.compile(rf"""{_QUOTED}|[^"'\\\[\](){{}}]+|.""", re.DOTALL)


class Redaction:
    """Patterns of names. The usual ones match anywhere in a name (`db_password`), those given match a whole name."""

    def __init__(self, given: Iterable[str] = ()) -> None:
        given = self.names = tuple(given)
        patterns, apart = [f".*(?:{word}).*" for word in DEFAULT], []
        for pattern in given:
            compiled = _compiled(pattern)
            if compiled.groups or "(?" in pattern:  # other groups would change theirs; flags are of a whole one
                apart.append(compiled)
            else:
                patterns.append(pattern)
        self._hidden = [re.compile("|".join(f"(?:{one})" for one in patterns), re.IGNORECASE), *apart]

    def hides(self, name: str) -> bool:
        """Whether what has this name is hidden."""
        return any(pattern.fullmatch(name) is not None for pattern in self._hidden)

    def text(self, text: str) -> str:
        """Free text, such as an error, with the values after such a name hidden (`iban='DE…'`)."""
        parts: list[str] = []
        done = at = 0
        while (found := _NAME.search(text, at)) is not None:
            at = found.end()
            name = re.match(r"[\w-]+", found[0])
            if name is not None and self.hides(name[0]) and (end := _end_of_value(text, at)) > at:
                parts += (text[done:at], HIDDEN)
                done = at = end
        return "".join((*parts, text[done:]))

    def shown(self, value: Any, *, deepest: int = _DEEPEST) -> Any:
        """`value` with everything hidden that has such a name."""
        if deepest == 0:
            return "…"
        if isinstance(value, dict):
            return {
                key: HIDDEN if self.hides(str(key)) else self.shown(part, deepest=deepest - 1)
                for key, part in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.shown(part, deepest=deepest - 1) for part in value]
        if isinstance(value, str):
            return self.text(value)
        return value


def _end_of_value(text: str, at: int) -> int:
    """Where the value that begins there ends: one in brackets behind the last of them, or where the text was cut."""
    found = _VALUE.match(text, at)
    if found is None or found["opened"] is None:
        return at if found is None else found.end()
    open_, here = 1, found.end()
    while open_ and (part := _PART.match(text, here)) is not None:
        open_ += (part[0] in "[({") - (part[0] in "])}")
        here = part.end()
    return here


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        if pattern.encode():
            return re.compile(pattern, re.IGNORECASE)
        problem: Exception | str = "it is empty"
    except (re.error, UnicodeEncodeError, OverflowError, RecursionError) as error:
        problem = error
    raise InvalidOption(f"redact={pattern!r}: {problem}; give names or regular expressions")


_in_errors = [Redaction()]


def hide_in_errors(redaction: Redaction) -> None:
    """From now on errors of attempts are kept, logged and traced in this process without the values behind these, and
    lines that jobs log are written without them."""
    _in_errors[0] = redaction


def in_error(text: str) -> str:
    """The text of an error without the values after such a name."""
    return _in_errors[0].text(text)


def in_line(line: MutableMapping[str, Any]) -> dict[str, Any]:
    """The fields of a line of a log without what has such a name, or follows one in a text."""
    shown: dict[str, Any] = _in_errors[0].shown({name: value for name, value in line.items() if name != "exc_info"})
    return shown | {name: line[name] for name in ("exc_info",) if name in line}
