"""The components of a worker, built from its settings."""

import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import server as server_calls
from jobrunner.broker.notifier import Notifier
from jobrunner.broker.resp import Arg
from jobrunner.client.client import Client, broker_of, encryption_of, endpoint_of, keys_of, middleware_of
from jobrunner.client.current import within
from jobrunner.coordinator.coordinator import Coordinator, LeaderTimes
from jobrunner.coordinator.cron import PeriodicTicks
from jobrunner.coordinator.maintenance import OwnQueues
from jobrunner.errors import InvalidOption, NewerFormat, OlderFormat, WorkerBroken
from jobrunner.jobs.registry import declaring_modules, targets_of
from jobrunner.logs import IDENTITY
from jobrunner.loop import Complaints, Loop
from jobrunner.payload_store.stored_payloads import StoredPayloads, without_store
from jobrunner.settings import as_arguments
from jobrunner.worker.batch_drivers import BatchDrivers
from jobrunner.worker.declarations import Declarations
from jobrunner.worker.fetch.fetcher import Fetcher
from jobrunner.worker.fetch.intake import TaskParts
from jobrunner.worker.fetch.queue_caps import CappedRotation
from jobrunner.worker.fetch.reserve_plan import Prefetch, QueueRotation
from jobrunner.worker.gates import Gates, gate_of
from jobrunner.worker.heartbeat import Commands, Heartbeat, HeartbeatListener, Registration
from jobrunner.worker.lease_keeper.keeper_client import KeeperClient
from jobrunner.worker.lease_keeper.keeper_link import SHORT_MS, HeldLeases
from jobrunner.worker.payload_cleaner import PayloadCleaner
from jobrunner.worker.process_guard import Canary, lost_descriptors
from jobrunner.worker.queues import caps_of, longest_poll_s, shortest_lease_s, warn_of_open_batches
from jobrunner.worker.report.attempt_log import AttemptEvents, AttemptLog
from jobrunner.worker.report.reported_outcome import UnknownJobs
from jobrunner.worker.report.stats import StatsRecorder
from jobrunner.worker.run.child import write_greeting
from jobrunner.worker.run.executor import (
    Deadlines,
    DispatchingExecutor,
    Executor,
    FinishedAttempts,
    Slots,
    ThreadExecutor,
)
from jobrunner.worker.run.growing_executor import GrowingExecutor
from jobrunner.worker.run.processes import ProcessSlots
from jobrunner.worker.run.runner import Runner
from jobrunner.worker.run.watchdog import Watchdog
from jobrunner.worker.settings import WorkerSettings
from jobrunner.worker.shards import ServedShards, served_shards
from jobrunner.worker.slices import SliceLoop
from jobrunner.worker.slot_monitor import SlotMonitor
from jobrunner.worker.startup import tried_once
from jobrunner.worker.worker_state import RunUntil, WorkerState

if TYPE_CHECKING:
    from jobrunner.worker.run.coroutines import CoroutineExecutor

_LONG_S = 3600.0


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
class WorkerParts:
    """All components of a worker. `loops` are started and stopped together, the fetch loop first."""

    guard: LeaseGuard
    queues: list[str]
    """All that the worker serves, those of drivers among them, without shards."""
    tasks: TaskParts
    fetcher: Fetcher
    drivers: BatchDrivers
    coordinator: Coordinator
    heartbeat: Heartbeat
    gates: Gates
    loops: tuple[Loop, ...]

    @property
    def all_queues(self) -> list[str]:
        """The same with all shards."""
        return [*self.tasks.rotation.queues, *self.drivers.shards.weights]

    @property
    def in_hand(self) -> int:
        """Tasks reserved and not yet reported."""
        return self.fetcher.in_hand + self.drivers.in_hand

    @property
    def finished_total(self) -> int:
        """Attempts that ended, and items that left their queue in batches of drivers."""
        return self.fetcher.finished_total + self.tasks.stats.batch_items

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


class Assembly:
    """Builds the parts of one worker, nothing of which runs or asks the server yet.

    `exact_tasks` is how many tasks the worker may reserve in all, 0 without a limit.
    """

    def __init__(
        self,
        worker_id: str,
        settings: WorkerSettings,
        client: Client,
        modules: Sequence[str],
        state: WorkerState,
        exact_tasks: int,
    ) -> None:
        self._worker_id = worker_id
        self._settings = settings
        self._client = client
        self._modules = modules
        self._state = state
        self._exact_tasks = exact_tasks
        self._complaints = Complaints()
        self._keys = keys_of(client)
        self._encryption = encryption_of(client)
        self._inline = without_store(self._encryption)
        """Of what the worker writes itself: no report and no tick may wait for a store."""
        greeting = server_calls.check_format(self._keys)
        now_ms = broker_of(client).now_ms
        self._broker = Broker(endpoint_of(client), retry_timeout_s=0, now_ms=now_ms, greeting=greeting)
        self._stats = StatsRecorder(self._broker, self._keys, worker_id)

    def build(self, weights: dict[str, int], guard: LeaseGuard, unaligned: Mapping[str, str]) -> WorkerParts:
        """All parts of a worker that serves these queues. `unaligned`: see Declarations."""
        settings, queues = self._settings, list(weights)
        checks = [gate_of(given) for given in settings.gates]  # a wrong one is refused before threads are started
        drivers = BatchDrivers(self._client, weights, self._stats.batch)
        fetched = {queue: weight for queue, weight in weights.items() if queue not in drivers.queues}
        cleaner = None
        if isinstance(self._encryption, StoredPayloads):
            cleaner = PayloadCleaner(self._broker, self._keys, self._encryption.store, lambda: coordinator.leads)
        with tried_once(self._client) as broker:
            shards = served_shards(broker, self._keys, fetched)
            drivers.check(broker, self._keys)
            warn_of_open_batches(list(shards.weights), broker, self._keys)
        tasks = self._task_parts(fetched, shards, guard.keeper.leases, cleaner)
        fetcher = Fetcher(
            tasks, self._complaints, max_tasks=self._exact_tasks, isolates=settings.executor != "processes"
        )
        rotation = tasks.rotation
        coordinator = self._coordinator(rotation.queues, lambda: rotation.polled if fetcher.wants_tasks else ())
        identity = self._identity(queues)
        monitor = SlotMonitor(self._broker, self._keys, list(fetched), settings.concurrency, settings.heartbeat)

        def observe(begun: Sequence[Attempt]) -> dict[str, Arg]:
            problem = tasks.executor.problem() or tasks.unknown.problem()
            return {"leads": int(coordinator.leads), "held_by": monitor.check(begun), "problem": problem}

        commands = Commands(self._state, tasks.leases, fetcher, drivers, observe, identity)
        known = frozenset(queues) | targets_of(queues)  # a move registers no queue: nobody may serve its target
        declarations = Declarations(self._broker, self._keys, known, settings.heartbeat, unaligned)
        heartbeat = self._heartbeat(known, commands, (shards, drivers.shards, declarations))
        gates = Gates(checks, commands.set_gate)
        loops = (
            fetcher.loop,
            Loop("coordinator", coordinator.step, self._complaints, coordinator.progressed_at),
            Loop("leadership", coordinator.renew, self._complaints),
            Loop("heartbeat", partial(_beat, heartbeat, self._state), self._complaints),
            SliceLoop(self._broker, self._keys, (shards, drivers.shards), self._complaints).loop,
            Loop("stats", partial(_count, self._stats, tasks.log), self._complaints),
            *([Loop("gates", gates.step, self._complaints)] if settings.gates else ()),
            *([Loop("payload store", cleaner.step, self._complaints)] if cleaner is not None else ()),
        )
        return WorkerParts(guard, queues, tasks, fetcher, drivers, coordinator, heartbeat, gates, loops)

    def _heartbeat(
        self, known: frozenset[str], commands: Commands, listeners: tuple[HeartbeatListener, ...]
    ) -> Heartbeat:
        settings = self._settings
        registration = Registration(
            self._worker_id, known, settings.heartbeat, self._client.settings.redact, settings.release
        )
        return Heartbeat(self._broker, self._client, registration, commands, listeners)

    def _coordinator(self, served: Sequence[str], reserved: Callable[[], Collection[str]]) -> Coordinator:
        settings = self._settings
        return Coordinator(
            self._broker, self._keys, self._worker_id,
            LeaderTimes(settings.leader_ttl, settings.sweep, settings.forget_queues),
            own=OwnQueues(frozenset(served), reserved),
            cron=PeriodicTicks(
                self._broker, self._keys, self._inline, self._stats.late_ticks.append, settings.leader_ttl
            ),
        )  # fmt: skip

    def _task_parts(
        self, fetched: dict[str, int], shards: ServedShards, leases: HeldLeases, cleaner: PayloadCleaner | None
    ) -> TaskParts:
        settings, finished = self._settings, FinishedAttempts()
        poll_s, caps = longest_poll_s(settings.poll), caps_of(fetched, settings.max_per_queue)
        weights = shards.weights
        events = AttemptEvents(self._broker, self._keys, self._worker_id) if settings.events == "all" else None
        return TaskParts(
            broker=self._broker,
            keys=self._keys,
            encryption=self._inline,
            worker_id=self._worker_id,
            release=settings.release,
            rotation=CappedRotation(weights, poll_s, caps) if caps else QueueRotation(weights, poll_s),
            prefetch=Prefetch(settings.concurrency, settings.prefetch_time, settings.batch_max),
            executor=_build_executor(settings, self._client, self._modules, leases, finished, self._broker),
            finished=finished,
            leases=leases,
            notifier=Notifier(self._broker, self._keys, weights, complaints=self._complaints),
            stats=self._stats,
            log=AttemptLog(),
            unknown=UnknownJobs(0.0 if self._state.until is RunUntil.DRAINED else settings.unknown_grace),
            events=events,
            cleaner=cleaner,
            shards=shards,
            leases_are_short=shortest_lease_s() * 1000 < SHORT_MS,
        )

    def _identity(self, queues: Sequence[str]) -> dict[str, Any]:
        return {
            "id": self._worker_id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "queues": ",".join(queues),
            "concurrency": self._settings.concurrency,
            "executor": self._settings.executor,
            "release": self._settings.release,
        }


def _thread_executor(settings: WorkerSettings, slots: Slots, finished: FinishedAttempts) -> ThreadExecutor:
    try:
        if 0 < settings.min_concurrency < settings.concurrency:
            return GrowingExecutor(settings.min_concurrency, settings.concurrency, slots, finished)
        return ThreadExecutor(settings.concurrency, slots, finished)
    except RuntimeError as error:
        raise InvalidOption(
            f"concurrency={settings.concurrency}: {error}, and each task that runs needs one; give less, or raise the "
            "limit on threads (ulimit -u, the pids of a container)"
        ) from error


def _count(stats: StatsRecorder, log: AttemptLog) -> float:
    log.flush()
    return stats.step()


def _beat(heartbeat: Heartbeat, state: WorkerState) -> float:
    try:
        return heartbeat.step()
    except (NewerFormat, OlderFormat) as error:  # a deploy has come so far that this version must leave
        state.refuse(error)
        return _LONG_S


def _options_of_children(client: Client) -> dict[str, Any]:
    """All options of the client, for those of the children, but what the greeting has itself. Without its buffer: a
    child is killed when its worker has no use for it, and the tasks of finished jobs would be lost with it."""
    options = as_arguments(replace(client.settings, buffer_tasks=0, redact=client.redaction().names))
    return {name: value for name, value in options.items() if name not in ("url", "prefix", "middleware")}


def _build_executor(
    settings: WorkerSettings, client: Client, modules: Sequence[str], leases: HeldLeases, finished: FinishedAttempts,
    hasty: Broker,
) -> Executor:  # fmt: skip
    """Threads or processes for plain jobs, and an event loop for coroutine jobs.

    `async` and `threads` come to the same, as each job tells its kind; with `processes` coroutine jobs run there too.
    """
    middleware = middleware_of(client)
    runner = Runner(client, leases.is_stopped, leases.begin, middleware, hasty)
    if settings.executor == "processes":
        greeting = write_greeting(
            endpoint_of(client).shared_url(), keys_of(client).prefix, modules, IDENTITY.worker,
            IDENTITY.log_format, IDENTITY.log_level,
            _options_of_children(client),
            b"" if middleware is None else middleware.pickled(),
            () if modules else declaring_modules(),
        )  # fmt: skip
        children = ProcessSlots(greeting, runner, leases.is_stopped, settings.max_memory, leases.begin)
        return _thread_executor(settings, children, finished)
    with within(client):
        plain = _thread_executor(settings, Deadlines(runner, Watchdog()), finished)

    def coroutines() -> "CoroutineExecutor":
        from jobrunner.worker.run.coroutines import CoroutineExecutor  # with asyncio, which threads do without

        with within(client):
            return CoroutineExecutor(settings.concurrency, runner.run_async, finished, give_up=runner.give_up)

    return DispatchingExecutor(plain, coroutines)
