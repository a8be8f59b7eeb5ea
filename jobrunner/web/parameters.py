"""Query and form parameters: typed, bounded. What is out of range is clamped, what is no number is the default.

Others had advisories for exactly this: unbounded `days` (CVE-2022-23837, CVE-2023-37279). No page passes a parameter on
that did not go through here.
"""

import math
from collections.abc import Collection, Mapping
from urllib.parse import parse_qsl

from jobrunner.web.errors import Refused

_MOST_FIELDS = 2000


class RequestParameters:
    """Named texts of a query or a form. The last of a name counts; `all` gives every one."""

    def __init__(self, pairs: Collection[tuple[str, str]]) -> None:
        self._pairs = list(pairs)
        self._last: Mapping[str, str] = dict(self._pairs)

    def __contains__(self, name: str) -> bool:
        return name in self._last

    def text(self, name: str, default: str = "", *, longest: int = 200) -> str:
        """A text of at most `longest` characters, stripped; longer ones are cut."""
        return self._last.get(name, default)[:longest].strip()

    def whole(self, name: str, default: int, *, lowest: int, highest: int) -> int:
        """A whole number within its range."""
        given = self._last.get(name, "").strip()[:20]
        try:
            return min(max(int(given), lowest), highest)
        except ValueError:
            return default

    def number(self, name: str, default: float | None, *, lowest: float, highest: float) -> float | None:
        """A number within its range; `default` for what is none, or not a finite one."""
        try:
            found = float(self._last.get(name, "").strip()[:30])
        except ValueError:
            return default
        return default if math.isnan(found) else min(max(found, lowest), highest)

    def choice(self, name: str, known: Collection[str], default: str) -> str:
        """One of `known`."""
        given = self._last.get(name, default)
        return given if given in known else default

    def flag(self, name: str) -> bool:
        """Whether it is there and is no kind of no."""
        return self._last.get(name, "").lower() not in ("", "0", "false", "no", "off")

    def all(self, name: str, *, most: int = 1000, longest: int = 200) -> list[str]:
        """Every text of that name, at most `most`, without empty ones."""
        return [value[:longest] for key, value in self._pairs if key == name and value][:most]


def parse_pairs(text: str) -> RequestParameters:
    """The parameters of `a=1&b=2`. Raises Refused for more fields than any form here has."""
    try:
        return RequestParameters(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="replace"))
    except ValueError as error:
        raise Refused(f"too many fields: at most {_MOST_FIELDS}") from error
