"""The interface of a driver, which serves a queue of batches instead of the worker's loop.

Invariants: `in_hand` and `running` include the items that a driver holds until they end; the end of each batch is
reported once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from jobrunner.client.client import Client
from jobrunner.jobs.batch_record import BatchRecord


class CurrentBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that a driver holds."""

    id: str
    attempt: int
    items: int
    began_ms: float
    """Unix ms, by this machine's clock."""


class RunningBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch in the form that middleware receives, instead of the task of a job."""

    id: str
    queue: str
    job: str
    """The name of the station."""
    attempt: int
    items: int
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Always empty: each item has its own headers."""


class BatchEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A driver's report on one attempt at a batch: its duration, the outcomes of its items, or both."""

    counts: Mapping[str, int] = msgspec.field(default_factory=dict)
    """The number of items by outcome, as statistics name it: succeeded, moved, dropped, failed, dead."""
    items: int = 0
    """How many items ran; 0: the report has only counts."""
    run_s: float = 0.0
    """Run time of the whole batch; its items share it equally."""
    waits_ms: Sequence[tuple[float, int]] = ()
    """Samples of how long items had been due before the batch ran: ms, and how many items the sample stands for."""
    record: BatchRecord | None = None
    """The entry for the batch log, when the attempt is over."""


class Driver(Protocol):
    """Serves a queue; each worker makes its own."""

    def start(self) -> None:
        """Starts serving, in threads or processes of its own."""

    def be_quiet(self, quiet: bool) -> None:
        """Makes the driver quiet: it takes no new batches, and finishes those in hand. Returns at once."""

    def ask_to_stop(self) -> None:
        """Keeps the driver from taking new batches for good. Returns at once."""

    def stop(self, grace_s: float) -> None:
        """Stops within about `grace_s` seconds; unfinished batches are released."""

    @property
    def in_hand(self) -> int:
        """The number of items that the driver holds."""

    @property
    def running(self) -> Sequence[CurrentBatch]:
        """The batches that the driver holds."""

    @property
    def failure(self) -> BaseException | None:
        """The error for which the driver cannot go on, which ends the worker's process; None while it works."""


Seen = Callable[[BatchEnd], None]
"""Receives the outcomes of batches, for the statistics."""
MakeDriver = Callable[[Client, Seen], Driver]
