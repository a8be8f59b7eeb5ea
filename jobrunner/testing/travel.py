"""A clock that tests move forward: the scripts of the server take their present from it."""

from collections.abc import Callable
from datetime import datetime, timedelta

from jobrunner.clock import from_ms, unix_ms
from jobrunner.errors import InvalidOption, NaiveDatetime
from jobrunner.retry import seconds
from jobrunner.settings import Duration

_ROUNDED_MS = 1.0
"""Due times are whole milliseconds, rounded up, so this much more makes a task of in_=60 due after forward(60)."""


class Travel:
    """The clock of a client (`now_ms=`): the server's own until it is moved, then ahead of this machine's by as much.

    It goes on from where it was moved to and never goes back, as the time of a queue never does. `before` are called
    before each move: an event at a time in between must not be missed.
    """

    def __init__(self) -> None:
        self.before: list[Callable[[], None]] = []
        self._ahead_ms = 0.0

    def __call__(self) -> bytes:
        return repr(self.now_ms).encode() if self._ahead_ms else b""

    @property
    def now_ms(self) -> float:
        """The present, Unix ms."""
        return unix_ms() + self._ahead_ms + (_ROUNDED_MS if self._ahead_ms else 0.0)

    @property
    def now(self) -> datetime:
        """The present; aware, UTC."""
        return from_ms(self.now_ms)

    def forward(self, by: Duration) -> datetime:
        """Moves the clock by a timedelta or seconds, and returns its new present. Raises InvalidOption."""
        by_s = seconds(by, option="travel.forward")
        for look in self.before:
            look()
        self._ahead_ms += by_s * 1000
        return self.now

    def to(self, instant: datetime) -> datetime:
        """Moves the clock to an aware datetime that is not past. Raises NaiveDatetime, InvalidOption."""
        if instant.tzinfo is None:
            raise NaiveDatetime(f"travel.to({instant.isoformat()}) has no time zone; write datetime(…, tzinfo=UTC)")
        by = instant - self.now
        if by < timedelta(0):
            raise InvalidOption(f"travel.to({instant.isoformat()}): it is {self.now.isoformat()}; give a later instant")
        return self.forward(by)
