"""The record of one turn of the fetch loop, and the collaborators of its steps."""

from dataclasses import dataclass, field
from typing import Any

from jobrunner.broker.broker import Broker
from jobrunner.broker.keys import Keys
from jobrunner.errors import JobrunnerError
from jobrunner.worker.fetch.notifier import Notifier
from jobrunner.worker.fetch.prefetch import Prefetch
from jobrunner.worker.fetch.queue_rotation import QueueRotation, ReservePlan
from jobrunner.worker.lease_keeper.keeper_client import KeeperClient
from jobrunner.worker.report.reports import ReportCall
from jobrunner.worker.report.stats import StatsRecorder
from jobrunner.worker.run.slots import Executor, FinishedAttempts


@dataclass(frozen=True, slots=True)
class FetchParts:
    """The collaborators of the fetch loop, one of each for a worker."""

    broker: Broker
    keys: Keys
    worker_id: str
    rotation: QueueRotation
    prefetch: Prefetch
    executor: Executor
    finished: FinishedAttempts
    keeper: KeeperClient
    notifier: Notifier
    stats: StatsRecorder


@dataclass(slots=True)
class FetchTurn:
    """One turn: each step leaves here what the later ones need."""

    may_reserve: bool
    """Decided once, when the turn begins: it reserves nothing and begins nothing when that was False."""
    reports: list[ReportCall] = field(default_factory=list)
    plan: ReservePlan = field(default_factory=ReservePlan)
    asked_at: float = 0.0
    """When the exchange began (monotonic clock): leases count from here, as the server may have begun them then."""
    replies: list[Any] = field(default_factory=list)
    """In the order of `reports`, of the shares and of the probes of `plan`."""
    refused: JobrunnerError | None = None
    """The last error with which the server answered a call. It is raised when everything else was taken in."""
