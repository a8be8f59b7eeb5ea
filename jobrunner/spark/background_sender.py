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
            if is_full := len(self._waiting) >= _MOST:
                self._waiting.popleft()
            self._waiting.append(message)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"jobrunner-{self._what}", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        if is_full:
            self._lose(1, "the receiver is slower than what is sent")

    def close(self, within_s: float) -> None:
        """Waits up to `within_s` seconds until all messages are sent. Drops the rest, and messages that come later."""
        ends = monotonic() + within_s
        with self._changed:
            while (self._waiting or self._sending) and (left := ends - monotonic()) > 0:
                self._changed.wait(left)
            left_over = len(self._waiting) + self._sending
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
        self._lose(left_over, "the receiver did not take them before the end", is_last=True)

    def _run(self) -> None:
        while (message := self._next()) is not None:
            try:
                self._send(message[0])
            except Exception as error:  # no failure of the receiver may end this thread
                if not self._closed:
                    self._lose(1, f"{type(error).__name__}: {error}")
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

    def _lose(self, count: int, error: str, *, is_last: bool = False) -> None:
        """Counts messages that are lost. Warns once a minute, and at the end, of those lost since the last warning."""
        with self._changed:
            self._dropped += count
            if not self._dropped or (not is_last and monotonic() - self._complained_at < _COMPLAINS_EVERY_S):
                return
            self._complained_at, dropped, self._dropped = monotonic(), self._dropped, 0
        _log.warning(f"{self._what} not sent", lost=dropped, error=error)
