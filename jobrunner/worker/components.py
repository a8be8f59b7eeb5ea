"""The components of a started worker, as `assembly` builds them."""

from dataclasses import dataclass

from jobrunner.broker.broker import Broker
from jobrunner.broker.keys import Keys
from jobrunner.coordinator.coordinator import Coordinator
from jobrunner.errors import WorkerBroken
from jobrunner.loop import Loop
from jobrunner.worker.batch_drivers import BatchDrivers
from jobrunner.worker.fetch.fetcher import Fetcher
from jobrunner.worker.fetch.notifier import Notifier
from jobrunner.worker.fetch.queue_rotation import QueueRotation
from jobrunner.worker.heartbeat import Heartbeat
from jobrunner.worker.lease_keeper.keeper_client import KeeperClient
from jobrunner.worker.process_guard import Canary, lost_descriptors
from jobrunner.worker.report.stats import StatsRecorder
from jobrunner.worker.run.slots import Executor


@dataclass(frozen=True, slots=True)
class LeaseGuard:
    """The components that exist before any task: the lease keeper, and the descriptor that shows whether a job closed
    others."""

    keeper: KeeperClient
    canary: Canary

    def close(self) -> None:
        """Ends both."""
        self.keeper.close()
        self.canary.close()


@dataclass(frozen=True, slots=True)
class TaskParts:
    """The components that tasks pass through."""

    queues: list[str]
    """All that the worker serves, those of drivers among them."""
    broker: Broker
    keys: Keys
    keeper: KeeperClient
    rotation: QueueRotation
    notifier: Notifier
    executor: Executor
    fetcher: Fetcher
    fetch_loop: Loop
    stats: StatsRecorder
    drivers: BatchDrivers

    @property
    def in_hand(self) -> int:
        """Tasks reserved and not yet reported."""
        return self.fetcher.in_hand + self.drivers.in_hand

    def fetch_now(self) -> None:
        """Lets the fetch loop poll all queues at once."""
        self.rotation.wake_all()
        self.fetch_loop.wake()


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """All components of a worker. `loops` are started and stopped together, the fetch loop first."""

    guard: LeaseGuard
    tasks: TaskParts
    coordinator: Coordinator
    heartbeat: Heartbeat
    loops: tuple[Loop, ...]

    def lost(self) -> WorkerBroken | None:
        """The error of a worker whose job closed its descriptors or ended its threads. It would stand still, with all
        that it holds."""
        lost = lost_descriptors()
        lost += [f"its loop {loop.name!r}" for loop in self.loops if not loop.is_alive]
        lost += [] if self.guard.keeper.is_watched else ["the thread that watches its lease keeper"]
        if not lost:
            return None
        return WorkerBroken(
            f"this worker cannot go on, as a job took away {', '.join(lost)}: does one call os.closerange or os.close? "
            "Run such a job in a process of its own"
        )
