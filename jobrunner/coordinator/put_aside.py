"""Errors in a round over many tasks, jobs or queues, where an error of one must not delay the others."""

from jobrunner.broker.broker import Broker


class ErrorsPutAside:
    """`put` keeps the first error of a round and lets the round go on, unless the whole server is away; `raise_first`
    raises that error after all others had their turn."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._first: Exception | None = None

    def put(self, error: Exception) -> None:
        """Keeps an error; raises it when the server is away, as no other call will be answered either."""
        if self._broker.is_away(error):
            raise error
        self._first = self._first or error

    def raise_first(self) -> None:
        """Raises the first error that was put aside, if there is one."""
        if self._first is not None:
            raise self._first
