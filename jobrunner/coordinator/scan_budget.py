"""Limits the leader's work on inactive queues to a small share of one core, however many queues there are."""

from collections.abc import Iterator
from contextlib import contextmanager

from jobrunner.clock import monotonic, thread_time

SHARE = 0.006


class ScanBudget:
    """Maintenance tasks spend processor time under `spending`, and postpone what can wait while `pause` is not 0.0."""

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._free_at = float("-inf")

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Turns the processor time that this thread uses in the block into a pause."""
        began = thread_time()
        try:
            yield
        finally:
            self._free_at = max(self._free_at, monotonic()) + (thread_time() - began) / self._share

    def forget(self) -> None:
        """Starts with an unspent budget."""
        self._free_at = float("-inf")

    @property
    def pause(self) -> float:
        """Seconds until the budget allows more work; 0.0 when it does."""
        return max(self._free_at - monotonic(), 0.0)
