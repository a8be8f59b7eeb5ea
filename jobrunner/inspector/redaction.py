"""Values that neither a page nor a command shows: those under a name that matches a pattern, however deep they are."""

import re
from collections.abc import Iterable
from typing import Any

from jobrunner.errors import InvalidOption

DEFAULT = ("password", "passwd", "secret", "token", "api_?key", "authorization", "credit_?card")
HIDDEN = "••••••"
_DEEPEST = 20


class Redaction:
    """Patterns of names. The usual ones match anywhere in a name (`db_password`), those given match a whole name."""

    def __init__(self, given: Iterable[str] = ()) -> None:
        patterns = [f".*(?:{word}).*" for word in DEFAULT]
        for pattern in given:
            try:
                re.compile(pattern)
            except re.error as error:
                raise InvalidOption(f"redact={pattern!r}: {error}; give names or regular expressions") from error
            patterns.append(pattern)
        self._hidden = re.compile("|".join(f"(?:{one})" for one in patterns), re.IGNORECASE)

    def hides(self, name: str) -> bool:
        """Whether what has this name is hidden."""
        return self._hidden.fullmatch(name) is not None

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
        return value
