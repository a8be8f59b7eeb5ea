"""The worker: what `jobrunner work` runs, and what programs embed."""

import os
import socket
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Word
from jobrunner.broker.calls import queues as queue_calls
from jobrunner.broker.calls.server import facts
from jobrunner.client.client import Client
from jobrunner.client.current import current_client
from jobrunner.clock import monotonic, unix_ms
from jobrunner.coordinator.coordinator import Coordinator
from jobrunner.errors import JobrunnerError, ServerError, ServerRefused, UnsafeServer
from jobrunner.jobs.registry import all_jobs, load_modules
from jobrunner.loop import Loop
from jobrunner.outcome import Released
from jobrunner.settings import WorkerSettings, check_options
from jobrunner.worker.executors.build import build_executor
from jobrunner.worker.executors.handover import Finished
from jobrunner.worker.fetcher import Fetcher
from jobrunner.worker.leases import Leases
from jobrunner.worker.presence import Presence, new_worker_id
from jobrunner.worker.settle import settlements
from jobrunner.worker.stock import Stock
from jobrunner.worker.turns import Turns, read_weights
from jobrunner.worker.wakeup import Wakeup

_log = structlog.get_logger("jobrunner.worker")
_IDLE_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """What a worker did."""

    finished: int
    released: int
    seconds: float


class Worker:
    """Runs the tasks of its queues. Its life:

    1. loads its modules, checks that the server is safe for tasks;
    2. starts the lease keeper, then its loops: fetching, wake-up, coordination, presence;
    3. works until told to stop, or until there is nothing left (`burst`), or `max_tasks` are finished;
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
        **options: Any,
    ) -> None:
        check_options(options, WorkerSettings.__slots__, "worker option")
        self.settings = WorkerSettings(concurrency=concurrency, **options)
        self.modules = tuple(modules)
        self.client = client or current_client()
        self.id = new_worker_id()
        self._given_queues = queues
        self._allow_eviction = allow_eviction
        self._stop_asked = threading.Event()
        self._stop_now = threading.Event()
        self._stopped = threading.Event()
        self._released = 0
        self._started = False

    def run(self, *, burst: bool = False, drain: bool = False) -> WorkerSummary:
        """Works in the calling thread until stopped. With `burst`, until nothing is waiting or pending in its queues;
        with `drain`, until nothing is scheduled either."""
        began = monotonic()
        self.start()
        try:
            if burst or drain:
                self._wait_until_done(drain)
            elif self.settings.max_tasks:
                self._wait_for_tasks()
            else:
                self._stop_asked.wait()
        finally:
            self.stop(grace=self.settings.grace)
        return WorkerSummary(self._fetcher.finished_total, self._released, monotonic() - began)

    def start(self) -> None:
        """Starts working in threads of its own. Raises ModuleNotLoadable, ServerError, UnsafeServer."""
        load_modules(self.modules)
        self._check_server()
        self._build()
        self._started_ms = unix_ms()
        self._held.start()
        self._broker.run(queue_calls.register(self.client.keys, self._turns.queues))
        self._presence.step()
        for loop in self._loops:
            loop.start()
        self._wakeup.start()
        self._started = True
        _log.info("worker started", worker=self.id, queues=self._turns.queues, concurrency=self.settings.concurrency,
                  executor=self.settings.executor, server=str(self.client.endpoint))  # fmt: skip

    def ask_to_stop(self) -> None:
        """Lets `run` return after a graceful stop; asked again, at once. Safe in a signal handler."""
        if self._stop_asked.is_set():
            self._stop_now.set()
        self._stop_asked.set()

    def stop(self, grace: float | None = None) -> None:
        """Stops: nothing new, up to `grace` seconds for what runs, the rest back to its place in line."""
        if not self._started or self._stopped.is_set():
            return
        self._stop_asked.set()
        self._fetcher.reserving = False
        self._fetcher.release_backlog()
        self._fetch_loop.wake()
        self._await_running(self.settings.grace if grace is None else grace)
        self._shut_down()
        self._stopped.set()
        _log.info("worker stopped", worker=self.id, finished=self._fetcher.finished_total, released=self._released)

    @property
    def in_hand(self) -> int:
        """Tasks reserved and not yet reported."""
        return self._fetcher.in_hand

    def _check_server(self) -> None:
        try:
            server = self.client.broker.run(facts())
        except ServerRefused as error:
            _log.warning("the server's settings cannot be checked", error=str(error))
            return
        if server.evicts and not self._allow_eviction:
            raise UnsafeServer(
                f"the server's maxmemory-policy is {server.maxmemory_policy!r}: it may delete tasks; "
                "set it to noeviction, or start with --allow-eviction"
            )

    def _build(self) -> None:
        settings, client = self.settings, self.client
        keys = client.keys
        weights = self._weights()
        self._broker = Broker(client.endpoint, patience_s=0, now_ms=client.broker.now_ms)
        self._held = Leases(client.endpoint.shared_url(), keys.prefix)
        self._finished = Finished(lambda: self._fetch_loop.wake())
        self._turns = Turns(weights, _poll_s(settings))
        self._executor = build_executor(
            settings, client, modules=self.modules, is_stopped=self._held.is_stopped, finished=self._finished
        )
        self._wakeup = Wakeup(self._broker, keys, weights, self._on_wake)
        self._fetcher = Fetcher(
            self._broker, keys, turns=self._turns,
            stock=Stock(settings.concurrency, settings.prefetch, settings.batch_max),
            executor=self._executor, finished=self._finished, held=self._held, wakeup=self._wakeup,
        )  # fmt: skip
        self._coordinator = Coordinator(
            self._broker, keys, self.id, ttl_s=settings.leader_ttl, sweep_s=settings.sweep, served=self._turns.queues
        )
        self._presence = Presence(self._broker, keys, self.id, settings.heartbeat, self._describe)
        self._fetch_loop = Loop("fetch", self._fetcher.step)
        self._loops = [
            self._fetch_loop,
            Loop("coordinator", self._coordinator.step),
            Loop("presence", self._presence.step),
        ]

    def _weights(self) -> dict[str, int]:
        if isinstance(self._given_queues, Mapping):
            return read_weights([f"{name}:{weight}" for name, weight in self._given_queues.items()])
        given = list(self._given_queues) if self._given_queues is not None else []
        return read_weights(given or sorted({job.options.queue for job in all_jobs()}) or ["default"])

    def _on_wake(self, queue: str) -> None:
        self._fetcher.woken(queue)
        self._fetch_loop.wake()

    def _describe(self) -> dict[str, Word]:
        return {
            "id": self.id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": self._started_ms,
            "queues": ",".join(self._turns.queues),
            "concurrency": self.settings.concurrency,
            "executor": self.settings.executor,
            "in_hand": self._fetcher.in_hand,
            "finished": self._fetcher.finished_total,
            "leads": int(self._coordinator.leads),
        }

    def _wait_until_done(self, drain: bool) -> None:
        while not self._stop_asked.wait(_IDLE_LOOK_S):
            if self._fetcher.in_hand:
                continue
            try:
                if self._nothing_left(drain):
                    return
            except ServerError:
                continue
            self._turns.wake_all()
            self._fetch_loop.wake()

    def _nothing_left(self, drain: bool) -> bool:
        keys = self.client.keys
        counted = self._broker.run_many([queue_calls.counts(keys.queue(name)) for name in self._turns.queues])
        left = sum((0 if found.paused else found.waiting) + found.pending for found in counted)
        if drain:
            left += sum(found.scheduled for found in counted)
        return not left

    def _wait_for_tasks(self) -> None:
        while not self._stop_asked.wait(_IDLE_LOOK_S):
            if self._fetcher.finished_total >= self.settings.max_tasks:
                return

    def _await_running(self, grace_s: float) -> None:
        ends = monotonic() + grace_s
        while self._fetcher.in_hand and monotonic() < ends and not self._stop_now.is_set():
            self._stop_now.wait(0.005)
        self._held.stop_all()

    def _shut_down(self) -> None:
        self._fetch_loop.stop()
        self._executor.close()
        self._release_rest()
        self._wakeup.close()
        for loop in self._loops:
            loop.stop(1.0)
        for farewell in (self._coordinator.resign, self._presence.retire):
            try:
                farewell()
            except JobrunnerError as error:
                _log.warning("left without a farewell", error=str(error))
        self._held.close()
        self._broker.close()

    def _release_rest(self) -> None:
        rest = self._held.attempts()
        self._held.drop(rest)
        try:
            for settlement in settlements(self.client.keys, [(attempt, Released()) for attempt in rest]):
                verdicts = self._broker.run(settlement.call)
                self._released += verdicts.count("waiting")
        except ServerError as error:
            _log.warning("tasks not handed back; they return when their leases end", tasks=len(rest), error=str(error))


def _poll_s(settings: WorkerSettings) -> float:
    """No longer than the shortest lease, so that a look at the queue tells of every lease before it ends."""
    shortest = min((job.options.keepalive for job in all_jobs() if job.options.keepalive), default=settings.poll)
    return min(settings.poll, shortest)
