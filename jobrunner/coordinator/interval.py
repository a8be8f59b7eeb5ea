"""When a chore looks again."""

from jobrunner.clock import monotonic

_NEVER = float("-inf")


class Interval:
    """Every `every_s` by this process's monotonic clock, and at once at first."""

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self._began_at = _NEVER

    def begin(self) -> float:
        """Begins the next interval when the last one is over, and returns 0.0; else the seconds that are left of it."""
        left = self._began_at + self.every_s - monotonic()
        if left > 0:
            return left
        self._began_at = monotonic()
        return 0.0
