"""The worker: what `jobrunner work` runs, and what programs embed."""

import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Arg
from jobrunner.broker.calls import queues as queue_calls
from jobrunner.broker.calls import server as server_calls
from jobrunner.broker.calls.server import facts
from jobrunner.client.client import Client
from jobrunner.client.current import current_client
from jobrunner.client.internals import broker_of, endpoint_of, keys_of
from jobrunner.clock import monotonic, unix_ms
from jobrunner.coordinator.coordinator import Coordinator
from jobrunner.errors import (
    JobrunnerError,
    NewerFormat,
    OlderFormat,
    OutcomeUnknown,
    ServerError,
    ServerRefused,
    ServerUnavailable,
    UnsafeServer,
    WorkerBroken,
)
from jobrunner.jobs.registry import load_modules
from jobrunner.logs import SafeLogger
from jobrunner.loop import Complaints, Loop, Signal
from jobrunner.option_names import check_options, checks_options
from jobrunner.outcome import Failed, Outcome, Released
from jobrunner.redaction import hide_in_errors
from jobrunner.settings import WorkerSettings
from jobrunner.worker.batch_drivers import BatchDrivers
from jobrunner.worker.descriptors import Canary, lost_descriptors
from jobrunner.worker.fetch.fetcher import Fetcher
from jobrunner.worker.fetch.notifier import Notifier
from jobrunner.worker.fetch.prefetch import Prefetch
from jobrunner.worker.fetch.queue_rotation import QueueRotation
from jobrunner.worker.fetch.unknown_jobs import UnknownJobs
from jobrunner.worker.heartbeat import Heartbeat, new_worker_id
from jobrunner.worker.lease_keeper.keeper_client import KeeperClient
from jobrunner.worker.queues import check_middleware, configuring, longest_poll_s, served_queues, warn_of_unknown
from jobrunner.worker.recycling import Recycling
from jobrunner.worker.report.attempt_events import AttemptEvents
from jobrunner.worker.report.reports import report_calls
from jobrunner.worker.report.stats import StatsRecorder
from jobrunner.worker.run.executors.build import build_executor
from jobrunner.worker.run.executors.slots import FinishedAttempts
from jobrunner.worker.running import known_types, resident_bytes, running

_log = SafeLogger("jobrunner.worker")
_IDLE_LOOK_S = 0.02
_LONGEST_LOOK_S = 0.5
_RUNNING_LOOK_S = 0.005
_LONG_S = 3600.0
_DRIVERS_LOOK_S = 0.2
_LOOK_S = 1.0
_BROKEN_GRACE_S = 5.0
"""Nobody renews the leases of a worker that lost its keeper, so what it runs is handed back while they last."""
_BROKEN_DELAY_S = 2.0
_STOP_NOW = 2
_HANGS_S = 60.0


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """What a worker did."""

    finished: int
    released: int
    seconds: float


@checks_options
class Worker:
    """Runs the tasks of its queues. Its life:

    1. loads its modules, checks that the server is safe for tasks;
    2. starts the lease keeper, then its loops: fetching, wake-up, coordination, presence; then the drivers of queues
       that have one, which it does not reserve from itself;
    3. works until told to stop, or until there is nothing left (`burst`), or `max_tasks` are finished, or it takes
       more than `max_memory`, or a driver cannot go on; with `tell` it does not end for its tasks or its memory, but
       says `worn`, as it says `takes` and `ready` before, to whoever replaces it;
    4. stops reserving, hands back what it has not begun, waits for what runs (`grace`), hands back the rest;
    5. gives up leadership, leaves the list of workers, ends its connections.
    """

    def __init__(
        self,
        modules: Iterable[str] = (),
        queues: Iterable[str] | Mapping[str, int] | None = None,
        concurrency: int = 10,
        client: Client | None = None,
        *,
        allow_eviction: bool = False,
        tell: Callable[[str], object] | None = None,
        **options: Any,
    ) -> None:
        check_options(options, (*WorkerSettings.__slots__, "modules", "queues", "client"), "worker option")
        self.settings = WorkerSettings(concurrency=concurrency, **options)
        self.modules = tuple(modules)
        self.client = client or current_client()
        self.id = new_worker_id()
        self._given_queues = queues
        self._allow_eviction = allow_eviction
        self._wear = Recycling(self.settings, tell)
        self._stops_asked = 0
        self._asked = Signal()
        self._stopping = threading.Lock()
        self._released = 0
        self._working = False
        self._drains = False
        self._broke: WorkerBroken | None = None
        self._quiet = False
        self._refused: NewerFormat | OlderFormat | None = None

    def run(self, *, burst: bool = False, drain: bool = False) -> WorkerSummary:
        """Works in the calling thread until stopped. With `burst`, until nothing is waiting or pending in its queues;
        with `drain`, until nothing is scheduled either. Raises DriverFailed when a driver cannot go on, WorkerBroken
        when a job took away what it works with, NewerFormat
        when a newer version took the prefix over, InvalidOption when `max_memory` is too little to begin."""
        began = monotonic()
        self._wear.check()
        self._drains = drain
        self.start()
        try:
            self._wear.begin()
            if burst or drain:
                self._wait_until_done(drain)
            else:
                while self._goes_on():
                    self._asked.wait(min(self._wear.look_s, _DRIVERS_LOOK_S if self._drivers.queues else _LOOK_S))
            if (failure := self.failure) is not None:
                raise failure
        except WorkerBroken as error:
            self._stop_broken(error)
            raise
        finally:
            self.stop(grace=self.settings.grace)
        return WorkerSummary(self._fetcher.finished_total, self._released, monotonic() - began)

    def start(self) -> None:
        """Starts working in threads of its own. Raises ModuleNotLoadable, ServerError, UnsafeServer."""
        self._canary = Canary("its file descriptors")
        self._held = KeeperClient(endpoint_of(self.client).shared_url(), keys_of(self.client).prefix)
        self._held.start()
        try:
            load_modules(self.modules)
            weights = served_queues(self._given_queues, self.client)
            self._check_server()
            hide_in_errors(self.client.redaction())
            warn_of_unknown(weights, self.client)
            check_middleware(weights, self.client)
            broker_of(self.client).run_many(configuring(keys_of(self.client), weights))
        except BaseException:
            self._held.close()
            self._canary.close()
            raise
        self._build(weights)
        self._held.leave(self._turns.queues, has_children=self.settings.executor == "processes")
        try:
            with suppress(ServerUnavailable, OutcomeUnknown):  # it was there just now: the loop tries again
                self._presence.step()
        except BaseException:
            self._shut_down()
            raise
        self._wear.take()
        for loop in self._loops:
            loop.start()
        self._wakeup.start(self._executor.join)
        self._working = True
        try:
            self._drivers.start()
        except BaseException:
            self.stop(grace=0)
            raise
        _log.info("worker started", worker=self.id, queues=self._queues, concurrency=self.settings.concurrency,
                  executor=self.settings.executor, server=str(endpoint_of(self.client)))  # fmt: skip

    def ask_to_stop(self) -> None:
        """Lets `run` return after a graceful stop; asked again, at once. Safe in a signal handler and in any thread."""
        self._stops_asked += 1
        self._asked.set()

    def stop(self, grace: float | None = None) -> None:
        """Stops: nothing new, up to `grace` seconds for what runs, the rest back to its place in line."""
        with self._stopping:
            if not self._working:
                return
            self._working = False
            _log.info("worker stopping", worker=self.id, in_hand=self.in_hand)
            self._stops_asked = max(self._stops_asked, 1)
            self._asked.set()
            ends = monotonic() + (self.settings.grace if grace is None else grace)
            self._drivers.ask_to_stop()
            self._await_running(ends)
            self._drivers.stop(monotonic() if self._stops_asked >= _STOP_NOW else ends)
            self._broke = self._broke or self._lost()  # told to stop before it was noticed
            self._shut_down()
        _log.info("worker stopped", worker=self.id, finished=self._fetcher.finished_total, released=self._released)

    @property
    def in_hand(self) -> int:
        """Tasks reserved and not yet reported."""
        return self._fetcher.in_hand + self._drivers.in_hand

    def health(self) -> tuple[bool, dict[str, object]]:
        """Whether the worker works and its loops turn, and what to say of that; asks no server."""
        if not self._working:
            return False, {"worker": self.id, "problem": "stopped" if self._stops_asked else "not started"}
        said: dict[str, object] = {"worker": self.id, "in_hand": self.in_hand}
        hanging = [loop.name for loop in self._loops if not loop.is_alive or loop.busy_s > _HANGS_S]
        if hanging:
            said["problem"] = f"loops that do not turn: {', '.join(hanging)}"
        elif (failure := self.failure) is not None:
            said["problem"] = str(failure)
        return "problem" not in said, said

    @property
    def failure(self) -> JobrunnerError | None:
        """Why this worker cannot go on; `run` raises it, who embeds a worker looks here."""
        return self._refused or self._drivers.failure or (self._lost() if self._working else None)

    def _lost(self) -> WorkerBroken | None:
        """Whether it lost what it works with. It would stand still then, with all that it holds."""
        lost = lost_descriptors()
        lost += [f"its loop {loop.name!r}" for loop in self._loops if not loop.is_alive]
        lost += [] if self._held.is_watched else ["what watches its lease keeper"]
        if not lost:
            return None
        return WorkerBroken(
            f"this worker cannot go on, as a job took away {', '.join(lost)}: does one call os.closerange or os.close? "
            "Run such a job in a process of its own"
        )

    def _goes_on(self) -> bool:
        worn = self._wear.is_over(self._fetcher.finished_total)
        return not self._stops_asked and self.failure is None and not worn

    def _stop_broken(self, broken: WorkerBroken) -> None:
        self._broke = broken
        _log.error("worker broken", worker=self.id, error=str(broken))
        try:
            self.stop(grace=min(self.settings.grace, _BROKEN_GRACE_S))
        except Exception as error:  # what is missing is missed at the end as well
            _log.warning("not stopped as it should", worker=self.id, error=f"{type(error).__name__}: {error}")

    def _check_server(self) -> None:
        try:
            server = broker_of(self.client).run(facts())
        except ServerRefused as error:
            _log.warning("the server's settings cannot be checked", error=str(error))
            return
        if server.evicts and not self._allow_eviction:
            raise UnsafeServer(
                f"the server's maxmemory-policy is {server.maxmemory_policy!r}: it may delete tasks; "
                "set it to noeviction, or start with --allow-eviction"
            )

    def _build(self, weights: dict[str, int]) -> None:
        settings, client = self.settings, self.client
        keys = keys_of(client)
        complaints = Complaints()
        self._started_ms = unix_ms()
        self._broker = Broker(
            endpoint_of(client),
            retry_timeout_s=0,
            now_ms=broker_of(client).now_ms,
            greeting=server_calls.check_format(keys),
        )
        self._finished = FinishedAttempts(lambda: self._fetch_loop.wake())
        self._queues = list(weights)
        self._figures = StatsRecorder(self._broker, keys, self.id)
        self._drivers = BatchDrivers(client, weights, self._figures.batch)
        fetched = {queue: weight for queue, weight in weights.items() if queue not in self._drivers.queues}
        self._turns = QueueRotation(fetched, longest_poll_s(settings.poll))
        self._executor = build_executor(
            settings,
            client,
            modules=self.modules,
            is_stopped=self._held.is_stopped,
            finished=self._finished,
            begin=self._held.begin,
        )
        self._wakeup = Notifier(self._broker, keys, fetched, self._on_wake, complaints)
        self._fetcher = Fetcher(
            self._broker, keys, turns=self._turns,
            stock=Prefetch(settings.concurrency, settings.prefetch_time, settings.batch_max),
            executor=self._executor, finished=self._finished, held=self._held, wakeup=self._wakeup,
            figures=self._figures, worker_id=self.id,
            endings=AttemptEvents(self._broker, keys, self.id, tells=settings.events == "all"),
            max_tasks=self._wear.exact_tasks, isolates=settings.executor != "processes",
            unknown=UnknownJobs(0.0 if self._drains else settings.unknown_grace),
        )  # fmt: skip
        self._coordinator = Coordinator(
            self._broker, keys, self.id, ttl_s=settings.leader_ttl, sweep_s=settings.sweep, served=self._turns.queues,
            forget_queues_s=settings.forget_queues, late=self._figures.late,
        )  # fmt: skip
        self._presence = Heartbeat(
            self._broker, keys, self.id, self._queues, heartbeat_s=settings.heartbeat, describe=self._describe,
            obey=self._obey, redact=self.client.settings.redact,
        )  # fmt: skip
        self._fetch_loop = Loop("fetch", self._fetcher.step, complaints)
        self._presence_loop = Loop("presence", self._show_presence, complaints)
        self._loops = [
            self._fetch_loop,
            Loop("coordinator", self._coordinator.step, complaints),
            Loop("leadership", self._coordinator.renew, complaints),
            self._presence_loop,
            Loop("figures", self._figures.step, complaints),
        ]

    def _show_presence(self) -> float:
        try:
            return self._presence.step()
        except (NewerFormat, OlderFormat) as error:  # a deploy has come so far that this version must leave
            self._refused = error
            self._asked.set()
            return _LONG_S

    def _on_wake(self, queue: str | None, brought: list[Any]) -> None:
        if queue is None:
            self._turns.wake_all()
            self._fetch_loop.wake()
        else:
            self._fetcher.woken(queue, brought)
            self._executor.change_places(self._fetch_loop.turn_here, self._wakeup.hand_over)

    def _describe(self) -> dict[str, Arg]:
        return {
            "id": self.id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": self._started_ms,
            "queues": ",".join(self._queues),
            "concurrency": self.settings.concurrency,
            "executor": self.settings.executor,
            "in_hand": self.in_hand,
            "finished": self._fetcher.finished_total,
            "leads": int(self._coordinator.leads),
            "quiet": int(self._quiet),
            "stopping": int(self._stops_asked > 0),
            "memory": resident_bytes(),
            "running": running(self._held.attempts(), self._drivers.running),
            "types": known_types(),
        }

    def _obey(self, orders: Mapping[str, bytes]) -> None:
        """Does what the dashboard told this worker."""
        if orders.get("stop") == b"1" and not self._stops_asked:
            _log.info("worker was told to stop", worker=self.id)
            self.ask_to_stop()
            self._presence_loop.wake()
        asked = orders.get("quiet", b"1" if self._quiet else b"0") == b"1"
        if asked != self._quiet and not self._stops_asked:
            self._quiet = self._fetcher.resting = asked
            _log.info("worker was told to be quiet" if asked else "worker was told to go on", worker=self.id)
            self._drivers.be_quiet(asked)
            self._turns.wake_all()
            self._fetch_loop.wake()
            self._presence_loop.wake()

    def _wait_until_done(self, drain: bool) -> None:
        pause = _IDLE_LOOK_S
        while self._goes_on():
            self._asked.wait(pause)
            finished = self._fetcher.finished_total
            if self.in_hand:
                pause = _IDLE_LOOK_S
                continue
            pause = min(pause * 1.5, _LONGEST_LOOK_S)
            try:
                if self._nothing_left(drain) and self._fetcher.finished_total == finished and not self.in_hand:
                    return  # else a task came and ended meanwhile, and its flow may go on
            except ServerError:
                continue
            self._turns.wake_all()
            self._fetch_loop.wake()

    def _nothing_left(self, drain: bool) -> bool:
        keys = keys_of(self.client)
        counted = self._broker.run_many([queue_calls.counts(keys.queue(name)) for name in self._queues])
        left = sum((0 if found.paused else found.waiting) + found.pending for found in counted)
        if drain:
            left += sum(found.scheduled for found in counted)
        if left:  # batches of other workers, whose driver may be down for days, keep no burst worker alive
            others = [name for name in self._queues if name not in self._drivers.queues]
            left -= sum(self._broker.run_many([queue_calls.held_by_batches(keys.queue(name)) for name in others]))
        return not left

    def _await_running(self, ends: float) -> None:
        self._fetcher.reserving = False
        self._fetch_loop.wake()
        while self._stops_asked < _STOP_NOW and monotonic() < ends:
            if self._fetcher.quiet and not self._fetcher.in_hand:
                return
            self._asked.wait(_RUNNING_LOOK_S)
        self._held.stop_all()

    def _shut_down(self) -> None:
        self._fetcher.reserving = False
        self._wakeup.close()  # first: it may bring something, which is handed back then
        stopped = self._fetch_loop.stop()
        self._executor.close()
        if stopped:
            self._report_last()
        self._release_rest()
        for loop in self._loops:
            loop.stop(1.0)
        for farewell in (self._figures.flush, self._coordinator.resign, self._presence.retire):
            try:
                farewell()
            except JobrunnerError as error:
                _log.warning("left without a farewell", error=str(error))
        self._held.close()
        self._canary.close()
        self._broker.close()

    def _report_last(self) -> None:
        """What ended since the fetch loop did: it must not be handed back as if it had not."""
        try:
            self._fetcher.step()
        except JobrunnerError as error:
            _log.warning("the last reports were not sent", tasks=len(self._fetcher.unsettled), error=str(error))

    def _left(self, attempt: Attempt) -> Outcome:
        """What becomes of an attempt that is still held at the end: it is handed back. One that was running when this
        worker broke may have broken it, and would break the next one, so it failed as in a crash."""
        if self._broke is None or not attempt.began_s or attempt.run_s >= 0:
            return Released()
        return Failed(f"AttemptCrashed: {self._broke}", _BROKEN_DELAY_S)

    def _release_rest(self) -> None:
        unsettled = self._fetcher.unsettled
        rest = [attempt for attempt in self._held.attempts() if attempt.token not in unsettled]
        self._held.drop(rest)
        try:
            for settlement in report_calls(keys_of(self.client), [(attempt, self._left(attempt)) for attempt in rest]):
                self._released += self._broker.run(settlement.call).count("waiting")
        except ServerError as error:
            _log.warning("tasks not handed back; they return when their leases end", tasks=len(rest), error=str(error))
