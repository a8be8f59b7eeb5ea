"""The components that tasks pass through on their way through a worker."""

from dataclasses import dataclass

from jobrunner.broker.broker import Broker
from jobrunner.broker.keys import Keys
from jobrunner.broker.notifier import Notifier
from jobrunner.encryption.cipher import PayloadEncryption
from jobrunner.worker.fetch.reserve_plan import Prefetch, QueueRotation
from jobrunner.worker.lease_keeper.keeper_link import HeldLeases
from jobrunner.worker.report.stats import StatsRecorder
from jobrunner.worker.run.executor import Executor, FinishedAttempts


@dataclass(frozen=True, slots=True)
class TaskParts:
    """One of each for a worker; the fetch loop connects them."""

    broker: Broker
    keys: Keys
    encryption: PayloadEncryption | None
    worker_id: str
    rotation: QueueRotation
    prefetch: Prefetch
    executor: Executor
    finished: FinishedAttempts
    leases: HeldLeases
    notifier: Notifier
    stats: StatsRecorder
