"""Sends messages from a background thread, so that the caller never waits and never fails.

Invariant: the queue is bounded. While the receiver is away or slow, the oldest messages are dropped, and a warning
reports their number.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from jobrunner.clock import monotonic
from jobrunner.logs import SafeLogger

T = TypeVar("T")
_MOST = 1000
_COMPLAINS_EVERY_S = 60.0
_log = SafeLogger("jobrunner.spark")


class BackgroundSender(Generic[T]):
    """Calls `send` with each message, in order. The thread starts with the first message."""

    def __init__(self, what: str, send: Callable[[T], None]) -> None:
        self._what = what
        self._send = send
        self._changed = threading.Condition()
        self._waiting: deque[T] = deque()
        self._thread: threading.Thread | None = None
        self._sending = False
        self._closed = False
        self._dropped = 0
        self._complained_at = -_COMPLAINS_EVERY_S

    def put(self, message: T) -> None:
        """Queues a message and returns at once; drops it after `close`."""
        with self._changed:
            if self._closed:
                return
            if len(self._waiting) >= _MOST:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append(message)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"jobrunner-{self._what}", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self, within_s: float) -> None:
        """Waits up to `within_s` seconds until all messages are sent. Drops the rest, and messages that come later."""
        ends = monotonic() + within_s
        with self._changed:
            while (self._waiting or self._sending) and (left := ends - monotonic()) > 0:
                self._changed.wait(left)
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        while (message := self._next()) is not None:
            try:
                self._send(message[0])
            except Exception as error:  # no failure of the receiver may end this thread
                self._complain(error)
            with self._changed:
                self._sending = False
                self._changed.notify_all()

    def _next(self) -> tuple[T] | None:
        with self._changed:
            while not self._waiting:
                if self._closed:
                    return None
                self._changed.wait()
            self._sending = True
            return (self._waiting.popleft(),)

    def _complain(self, error: Exception) -> None:
        with self._changed:
            self._dropped += 1
            if monotonic() - self._complained_at < _COMPLAINS_EVERY_S:
                return
            self._complained_at, dropped, self._dropped = monotonic(), self._dropped, 0
        _log.warning(f"{self._what} not sent", lost=dropped, error=f"{type(error).__name__}: {error}")
