"""Hidden names of parameters: a client's own names, and names that the server keeps for all clients.

Names on the server also hold in a dashboard that another application mounts, and for a command in another folder.
"""

from collections.abc import Iterable

from jobrunner.broker.calls.server import redacted_names
from jobrunner.broker.keys import Keys
from jobrunner.client.operations.operation import Operation, ask
from jobrunner.clock import monotonic
from jobrunner.errors import InvalidOption
from jobrunner.formatting import describe
from jobrunner.redaction import Redaction

_KNOWN_FOR_S = 5.0


class SharedRedaction:
    """The redacted names of one client. The server's names are cached for some seconds."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._now = Redaction(self._names)
        self._read_at = -_KNOWN_FOR_S

    def add(self, names: Iterable[str]) -> None:
        """Hides more names, for the life of this client. Raises InvalidOption for invalid patterns."""
        is_list = isinstance(names, Iterable) and not isinstance(names, str)  # a str is an iterable of single letters
        given = tuple(names) if is_list else ()
        if not is_list or not all(isinstance(one, str) for one in given):
            raise InvalidOption(f"redact={describe(names)}: give a list of names")
        found = tuple(dict.fromkeys((*self._names, *given)))
        self._now = Redaction(found)  # first, as it raises for invalid names
        self._names = found
        self._read_at = -_KNOWN_FOR_S

    def now(self, keys: Keys) -> Operation[Redaction]:
        """The redacted names. Raises ServerError. Only the client's own names when the server's are not readable."""
        if monotonic() - self._read_at >= _KNOWN_FOR_S:
            found = yield from ask(redacted_names(keys))
            self._now = Redaction((*self._names, *filter(_is_pattern, found)))
            self._read_at = monotonic()
        return self._now


def _is_pattern(name: str) -> bool:
    try:
        Redaction([name])
    except InvalidOption:  # a bad name is skipped, so that the others still hide
        return False
    return True
