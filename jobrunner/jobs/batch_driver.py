"""The interface of a driver, which serves a queue of batches instead of the worker's loop.

Invariants: items that a driver holds are in `in_hand` and in `running` until they end; the end of a batch that it ran
is reported once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from jobrunner.client.client import Client
from jobrunner.jobs.batch_record import BatchRecord


class CurrentBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that a driver works for."""

    id: str
    attempt: int
    items: int
    began_ms: float
    """Unix ms, by this machine's clock."""


class RunningBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as middleware receives it, instead of the task of a job."""

    id: str
    queue: str
    job: str
    """The name of the station."""
    attempt: int
    items: int
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Always empty: each item has its own."""


class BatchEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A driver's report on one attempt at a batch: its duration and the outcomes of its items, together or apart."""

    counts: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Items by what became of them, as figures name it: succeeded, moved, dropped, failed, dead."""
    items: int = 0
    """How many ran; 0: this is about counts alone."""
    run_s: float = 0.0
    """How long the whole batch ran; its items share that alike."""
    waits_ms: Sequence[tuple[float, int]] = ()
    """How long items were due before it ran, each with how many items it stands for."""
    record: BatchRecord | None = None
    """For the batch log: the attempt is over."""


class Driver(Protocol):
    """Serves a queue; made anew for each worker."""

    def start(self) -> None:
        """Begins, in threads or processes of its own."""

    def be_quiet(self, quiet: bool) -> None:
        """While quiet it takes nothing new, and ends what it has. Returns at once."""

    def ask_to_stop(self) -> None:
        """Takes nothing new from now on. Returns at once."""

    def stop(self, grace_s: float) -> None:
        """Ends within about so many seconds; unfinished batches are handed back."""

    @property
    def in_hand(self) -> int:
        """Items it holds."""

    @property
    def running(self) -> Sequence[CurrentBatch]:
        """The batches it works for."""

    @property
    def failure(self) -> BaseException | None:
        """Why it cannot go on, which ends the worker's process with an error; None while it can."""


Seen = Callable[[BatchEnd], None]
"""Receives the outcomes of batches, for the statistics."""
MakeDriver = Callable[[Client, Seen], Driver]
