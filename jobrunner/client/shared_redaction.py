"""Hidden names of parameters: those of a client, and those that the server keeps for all.

Those on the server also hold in a dashboard that another application mounts, and for a command in another folder.
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
        """Hides these as well, as long as this client lives. Raises InvalidOption for what is no pattern."""
        is_list = isinstance(names, Iterable) and not isinstance(names, str)  # a text would be names of one letter each
        given = tuple(names) if is_list else ()
        if not is_list or not all(isinstance(one, str) for one in given):
            raise InvalidOption(f"redact={describe(names)}: give a list of names")
        found = tuple(dict.fromkeys((*self._names, *given)))
        self._now = Redaction(found)  # before they are kept: what is refused changes nothing
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
    except InvalidOption:  # one bad name shows nothing that the others hide
        return False
    return True
