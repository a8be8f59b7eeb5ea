"""Errors in a round over many tasks, jobs or queues, of which none is to hold up the others."""

from jobrunner.broker.broker import Broker


class ErrorsPutAside:
    """`put` keeps the first error of a round and lets it go on, unless the server is away as a whole; `raise_first`
    raises it when all others have had their turn."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._first: Exception | None = None

    def put(self, error: Exception) -> None:
        """Raises the error of a server that is away: nothing else will be answered either."""
        if self._broker.is_away(error):
            raise error
        self._first = self._first or error

    def raise_first(self) -> None:
        """Raises the first error that was put aside; does nothing when there was none."""
        if self._first is not None:
            raise self._first
