"""The interface between a worker and a driver: a driver serves a queue instead of the worker's loop (Spark stations).

Invariants: items that a driver holds are in `in_hand` and in `running` until they end; the end of a batch that it ran
is reported once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from jobrunner.client.client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentBatch:
    """A batch that a driver works for."""

    id: str
    attempt: int
    items: int
    began_ms: float
    """Unix ms, by this machine's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBatch:
    """A batch as middleware receives it, instead of the task of a job."""

    id: str
    queue: str
    job: str
    """The name of the station."""
    attempt: int
    items: int
    headers: Mapping[str, str] = field(default_factory=dict)
    """Always empty: each item has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEnd:
    """A driver's report on one attempt at a batch: its duration and the outcomes of its items, together or apart."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """Items by what became of them, as figures name it: succeeded, moved, dropped, failed, dead."""
    items: int = 0
    """How many ran; 0: this is about counts alone."""
    run_s: float = 0.0
    """How long the whole batch ran; its items share that alike."""
    waits_ms: Sequence[tuple[float, int]] = ()
    """How long items were due before it ran, each with how many items it stands for."""


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
