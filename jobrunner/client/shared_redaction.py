"""Hidden names of parameters: a client's own names, and names that the server keeps for all clients.

Names on the server also hold in a dashboard that another application mounts, and for a command in another folder. While
they cannot be read, as one node of a cluster has them, all names are hidden.
"""

from collections.abc import Iterable

from jobrunner.broker.calls.server import redacted_names
from jobrunner.broker.keys import Keys
from jobrunner.client.operations.operation import Operation, ask
from jobrunner.clock import monotonic
from jobrunner.errors import NO_ANSWER, InvalidOption
from jobrunner.formatting import describe
from jobrunner.logs import SafeLogger
from jobrunner.redaction import ALL_NAMES, Redaction

_KNOWN_FOR_S = 5.0
_log = SafeLogger("jobrunner.redaction")


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
        """The redacted names: only the client's own for a user who may not read the server's; all names while the
        server does not answer. Raises ServerRefused."""
        if monotonic() - self._read_at >= _KNOWN_FOR_S:
            try:
                found = yield from ask(redacted_names(keys))
            except NO_ANSWER as error:
                if self._now is not ALL_NAMES:
                    _log.warning("all parameters are hidden, as it cannot be read which are to be", error=str(error))
                self._now, self._read_at = ALL_NAMES, monotonic()
            else:
                self.take(found)
        return self._now

    def take(self, found: Iterable[str]) -> Redaction:
        """The redacted names, with the server's as they were just read."""
        self._now = Redaction(dict.fromkeys((*self._names, *filter(_is_pattern, found))))
        self._read_at = monotonic()
        return self._now


def _is_pattern(name: str) -> bool:
    try:
        Redaction([name])
    except InvalidOption:  # a bad name is skipped, so that the others still hide
        return False
    return True
