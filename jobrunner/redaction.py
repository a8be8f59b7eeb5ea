"""Hides values in pages, commands, errors and logs: values under a name that matches a pattern, at any depth."""

import re
from collections.abc import Iterable, MutableMapping
from functools import lru_cache
from typing import Any

from jobrunner.errors import InvalidOption

DEFAULT = ("password", "passwd", "secret", "token", "api[-_]?key", "authorization", "credit[-_]?card")
HIDDEN = "••••••"
TOO_DEEP = "(nested too deep to be shown)"
DEEPEST = 20
"""How many levels of a value are rendered."""
_SECRET = re.compile("|".join(DEFAULT), re.IGNORECASE)
_LITERALS = tuple(dict.fromkeys(word.replace("[-_]?", sign) for word in DEFAULT for sign in ("", "-", "_")))
_COUNTED = re.compile(rf"(?i:(?:{'|'.join(DEFAULT)})(?:s|s?[-_]?(?:count|length|limit|ttl|usage)))(?![a-z])")
"""Names of counts or measures: `tokens`, `promptTokens`, `token_count`, `password_length`."""
_NUMBER = re.compile(r"[+-]?(?:0|[1-9]\d{0,11})(?:\.\d{1,6})?\.?")
_BEYOND = 10**12
"""Plain numbers; longer numbers may be card numbers. A count does not begin with 0, as codes do."""
_SHOWN, _HIDDEN_BUT_NUMBERS, _HIDDEN = range(3)
_PLAIN = re.compile(r"[a-z0-9_-]+", re.IGNORECASE | re.ASCII)
_REMEMBERED, _LONG = 1000, 100
_ANY = ".*"
_NAME = re.compile(r"""(?<![\w-])[A-Za-z_][\w-]{0,99}+(?![\w-])\\?+["']?+\s{0,3}+(?:=>|[:=])\s{0,3}+""")
"""The text before a value in free text: `name=`, `name: `, `'name': `, `"name":`. Nothing here can end elsewhere, so it
gives nothing back (`+`), which halves the time."""
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
_WORD = re.compile(r"[\w-]+")
_PART = re.compile(rf"""{_QUOTED}|[^"'\\\[\](){{}}]+|.""", re.DOTALL)


class Redaction:
    """Patterns of names. The built-in patterns match anywhere in a name (`db_password`), a user's match a whole name.

    After a built-in name in the plural or of a measure a plain number stays (`tokens=120`), as it is no secret."""

    def __init__(self, given: Iterable[str] = ()) -> None:
        given = self.names = tuple(given)
        self._hides_all = _ANY in given
        patterns: list[str] = []
        apart: list[re.Pattern[str]] = []
        for pattern in given:
            compiled = _compiled(pattern)
            if compiled.groups or "(?" in pattern:  # other groups would change theirs; flags are of a whole one
                apart.append(compiled)
            else:
                patterns.append(pattern)
        joined = [re.compile("|".join(f"(?:{one})" for one in patterns), re.IGNORECASE)] if patterns else []
        self._given = [*joined, *apart]
        are_plain = all(_PLAIN.fullmatch(one) for one in given)
        self._literals = (*_LITERALS, *(one.lower() for one in given)) if are_plain else None
        self._remembered = lru_cache(_REMEMBERED)(self._verdict)

    def hides(self, name: str) -> bool:
        """Whether a text under this name is hidden."""
        return self._verdict_on(name) != _SHOWN

    def text(self, text: str) -> str:
        """Free text, such as an error, with the values after a matching name hidden (`iban='DE…'`)."""
        if ("=" not in text and ":" not in text) or not self._may_have_name_in(text):
            return text
        spans: list[tuple[int, int]] = []
        at = 0
        while (found := _NAME.search(text, at)) is not None:
            at = found.end()
            name = _WORD.match(text, found.start())
            verdict = _SHOWN if name is None else self._verdict_on(name[0])
            if verdict == _SHOWN or (end := _end_of_value(text, at)) == at:
                continue
            if verdict == _HIDDEN or not _NUMBER.fullmatch(text, at, end):
                spans.append((at, end))
            if not self._hides_all:  # else the value of a name may end in another name: `ValueError: iban='DE…'`
                at = end
        return _without(spans, text)

    def shown(self, value: Any, *, deepest: int = DEEPEST) -> Any:
        """`value` with all values under matching names hidden."""
        if isinstance(value, str):  # first, as most values are
            return self.text(value)
        if deepest == 0:
            return "…"
        if isinstance(value, dict):
            return {key: self._shown_of(str(key), part, deepest - 1) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.shown(part, deepest=deepest - 1) for part in value]
        return value

    def _shown_of(self, name: str, value: Any, deepest: int) -> Any:
        verdict = self._verdict_on(name)
        if verdict == _SHOWN:
            return self.shown(value, deepest=deepest)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _BEYOND
        return value if is_number and verdict == _HIDDEN_BUT_NUMBERS else HIDDEN

    def _may_have_name_in(self, text: str) -> bool:
        """False for a text without any name to hide; takes a fraction of the time of a full search."""
        if self._literals is None or not text.isascii():  # beyond ASCII, letters have cases that `lower` does not know
            return True
        lower = text.lower()
        return any(literal in lower for literal in self._literals)

    def _verdict_on(self, name: str) -> int:
        return self._remembered(name) if len(name) <= _LONG else self._verdict(name)

    def _verdict(self, name: str) -> int:
        if any(pattern.fullmatch(name) is not None for pattern in self._given):
            return _HIDDEN
        if _SECRET.search(name) is None:
            return _SHOWN
        return _HIDDEN if _SECRET.search(_COUNTED.sub("", name)) else _HIDDEN_BUT_NUMBERS


def _without(spans: Iterable[tuple[int, int]], text: str) -> str:
    """The text with these parts hidden, in order of their starts; parts that overlap or touch are hidden as one."""
    parts: list[str] = []
    done = -1
    for start, end in spans:
        if start > done:
            parts += (text[max(done, 0) : start], HIDDEN)
        done = max(done, end)
    return "".join((*parts, text[max(done, 0) :]))


def _end_of_value(text: str, at: int) -> int:
    """The end of the value that begins at `at`: after the last bracket of a bracketed value, or where the text was
    cut."""
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


ALL_NAMES = Redaction([_ANY])
"""Hides the value of every name, while the names to hide are not known."""
_in_errors = [Redaction()]


def hide_in_errors(redaction: Redaction) -> None:
    """Hides values under these names in errors of attempts that this process stores, logs and traces from now on, and
    in lines that jobs log."""
    _in_errors[0] = redaction


def names_hidden_in_errors() -> tuple[str, ...]:
    """The names of the last `hide_in_errors`."""
    return _in_errors[0].names


def in_error(text: str) -> str:
    """The text of an error with hidden values."""
    return _in_errors[0].text(text)


def in_line(line: MutableMapping[str, Any]) -> dict[str, Any]:
    """The fields of a log line with values hidden that have a matching name or follow one in a text."""
    shown: dict[str, Any] = _in_errors[0].shown({name: value for name, value in line.items() if name != "exc_info"})
    return shown | {name: line[name] for name in ("exc_info",) if name in line}
