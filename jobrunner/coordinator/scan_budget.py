"""What the leader may spend on what is quiet: a small share of one core, however many queues there are."""

from collections.abc import Iterator
from contextlib import contextmanager

from jobrunner.clock import monotonic, thread_time

SHARE = 0.006


class ScanBudget:
    """Chores spend processor time under `spending`, and while `pause` is not 0.0 they leave off what can wait."""

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._free_at = float("-inf")

    @contextmanager
    def spending(self) -> Iterator[None]:
        """What this thread uses in the block is paid for by a pause."""
        began = thread_time()
        try:
            yield
        finally:
            self._free_at = max(self._free_at, monotonic()) + (thread_time() - began) / self._share

    def forget(self) -> None:
        """Nothing was spent yet."""
        self._free_at = float("-inf")

    @property
    def pause(self) -> float:
        """Seconds until there is something to spend again."""
        return max(self._free_at - monotonic(), 0.0)
