"""The worker, run by `jobrunner work` or embedded in a program."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from jobrunner.broker.redis_errors import refuses_writes
from jobrunner.client.client import Client, endpoint_of, keys_of
from jobrunner.client.current import current_client
from jobrunner.clock import monotonic
from jobrunner.errors import (
    NO_ANSWER,
    JobrunnerError,
    ServerRefused,
    UsageError,
    WorkerBroken,
)
from jobrunner.formatting import duration
from jobrunner.jobs.declared_queues import declare_configured
from jobrunner.jobs.job_defaults import read_configured_defaults
from jobrunner.logs import SafeLogger
from jobrunner.option_names import check_options, checks_options
from jobrunner.redaction import hide_in_errors
from jobrunner.worker.assembly import Assembly, LeaseGuard, WorkerParts
from jobrunner.worker.drain import EmptyQueues, Shutdown
from jobrunner.worker.lease_keeper.keeper_client import KeeperClient
from jobrunner.worker.process_guard import Canary
from jobrunner.worker.queues import log_declared, prepare_queues, refuse_text, served_queues
from jobrunner.worker.recycling import Recycling
from jobrunner.worker.settings import WorkerOptions, WorkerSettings
from jobrunner.worker.startup import check_rights, check_server, load_jobs, once_ready
from jobrunner.worker.worker_state import RunUntil, WorkerState, configured_release, new_worker_id

_DRIVERS_PAUSE_S = 0.2
_PAUSE_S = 1.0
_BROKEN_GRACE_S = 5.0
"""A worker that lost its keeper cannot renew leases, so it hands running tasks back before their leases end."""
_HANGS_S = 60.0
_log = SafeLogger("jobrunner.worker")


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """Totals of one run of a worker."""

    finished: int
    released: int
    seconds: float


@checks_options
class Worker:
    """Runs the tasks of its queues in this program, as `jobrunner work` does in a process of its own.

    `modules` declare its jobs; without them it has those that are imported. `queues` are names, or weights by name;
    without them it serves those of the jobs. Up to `concurrency` tasks run at once. `client` is that of the process
    unless given. `allow_eviction` starts it on a server that may evict tasks. Options, which docs/reference/settings.md
    explains: `executor` ("threads", "processes", "async"), `min_concurrency`, `max_per_queue`, `gates`, `grace`,
    `max_tasks`, `max_memory`, `heartbeat`, `unknown_grace`, `events`, `release`, and intervals that need no change.
    Raises UnknownOption, InvalidOption.

    It works once: to run tasks again, make another one. Its life:

    1. loads its modules, waits for a server that is loading its data, checks that the server is safe for tasks;
    2. starts the lease keeper, then its loops (fetch, notifier, coordinator, heartbeat, stats), then the drivers of the
       queues that have one, which it does not reserve from itself;
    3. works until asked to stop, or until nothing is left (`burst`), or `max_tasks` are finished, or its memory is
       above `max_memory`, or a driver fails. With `report` it does not end for its tasks or its memory, but reports to
       its supervisor that it is due for recycling, as it reports before that it takes tasks and is ready;
    4. stops reserving, hands back what it has not begun, waits for what runs (`grace`), hands back the rest;
    5. gives up leadership, leaves the list of workers, closes its connections.

    Steps 1 and 2 are `start`, built by `assembly`; 4 and 5 are `stop`, done by `drain`.
    """

    def __init__(
        self,
        modules: Iterable[str] | None = (),
        queues: Iterable[str] | Mapping[str, int] | None = None,
        concurrency: int = 10,
        client: Client | None = None,
        *,
        allow_eviction: bool = False,
        report: Callable[[str], object] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        check_options(options, (*WorkerSettings.__slots__, "modules", "queues", "client"), "worker option")
        refuse_text(modules, "modules")
        refuse_text(queues, "queues")
        given: dict[str, Any] = dict(options)
        if given.get("release") is None:
            given["release"] = configured_release()
        self.settings = WorkerSettings(concurrency=concurrency, **given)
        self.modules = tuple(modules or ())
        self.client = client or current_client()
        self._is_client_given = client is not None
        self.id = new_worker_id()
        self._given_queues = queues
        self._allow_eviction = allow_eviction
        self._recycling = Recycling(self.settings, report)
        self._state = WorkerState()
        self._turns = threading.RLock()
        """Held while the worker starts or stops. A signal handler may stop it in the thread that does either."""
        self._stops = False
        """Whether the thread that holds `_turns` stops the worker."""
        self._released = 0
        self._parts: WorkerParts | None = None
        """None until `start` has built them."""

    def run(self, *, burst: bool = False, drain: bool = False) -> WorkerSummary:
        """Works in the calling thread until stopped. With `burst`, until nothing is waiting or pending in its queues,
        but for what waits in a paused one or for its capacity; with `drain`, until nothing is scheduled either. Raises
        UsageError when it ran before, DriverFailed when a driver cannot go on, WorkerBroken when a job took away what
        it works with, NewerFormat when a newer version took the prefix over, InvalidOption when `max_memory` is too
        little to begin."""
        began = monotonic()
        self._check_new()
        self._recycling.check()
        self._state.until = RunUntil.DRAINED if drain else RunUntil.EMPTY if burst else RunUntil.STOPPED
        self.start()
        if (parts := self._parts) is None:
            assert self._state.is_stopping, "start() of this worker was overridden without a call of Worker.start()"
            return WorkerSummary(0, 0, monotonic() - began)
        try:
            self._recycling.begin()
            self._work(parts)
            self._state.stop_gracefully()  # not after Ctrl-C in a program, which is a request
            if (failure := self.failure) is not None:
                raise failure
        except WorkerBroken as error:
            self._stop_broken(error)
            raise
        finally:
            self.stop(self.settings.grace)
        return WorkerSummary(parts.finished_total, self._released, monotonic() - began)

    def start(self) -> None:
        """Starts working in threads of its own. While the server is loading its data, waits for it; asked to stop
        before or meanwhile, returns without having started. Raises ModuleNotLoadable, ServerError, UnsafeServer, and
        UsageError when it was started before."""
        with self._turns:
            parts = self._begin()
        if parts is None:
            _log.info("worker stopped before it began", worker=self.id)
            return
        if self._state.is_stopping:  # asked too late for `_begin`
            self.stop()
            return
        try:
            parts.drivers.start()
        except BaseException:
            self.stop(grace=0)
            raise
        if not parts.tasks.rotation.queues:  # a driver that does not start took nothing
            self._recycling.take()
        if not self._state.is_working:  # stopped by another thread while its drivers started
            return
        log_declared(self.modules)
        _log.info("worker started", worker=self.id, queues=parts.queues, concurrency=self.settings.concurrency,
                  executor=self.settings.executor, server=str(endpoint_of(self.client)))  # fmt: skip

    def _begin(self) -> WorkerParts | None:
        """Builds the parts and starts all but the drivers; None when the worker was asked to stop before."""
        self._check_new()
        parts = self._parts = self._prepare()
        if parts is None:
            return None
        try:
            parts.guard.keeper.leave(
                parts.tasks.rotation.queues, has_children=self.settings.executor == "processes", worker=self.id,
                serves=",".join(sorted(parts.queues)),
            )  # fmt: skip
            parts.gates.step()  # before the first task is taken
            self._announce(parts)
            if parts.tasks.rotation.queues:
                self._recycling.take()
            for loop in parts.loops:
                loop.start()
            parts.tasks.notifier.start()
        except BaseException:  # a thread too many, among others
            Shutdown(parts, self._state).close()
            raise
        self._state.begin_work()
        return parts

    def _announce(self, parts: WorkerParts) -> None:
        """The first heartbeat. The server was there just now: where it is away, the loop tries again."""
        try:
            parts.heartbeat.step()
        except NO_ANSWER:
            return
        except ServerRefused as error:  # too few replicas refuse writes alone, so nothing noticed it before
            if not refuses_writes(error.__cause__):
                raise

    def ask_to_stop(self) -> None:
        """Lets `run` return after a graceful stop; asked again, at once. Safe in a signal handler and in any thread."""
        self._state.ask_to_stop()

    def stop(self, grace: float | None = None) -> None:
        """Stops: nothing new, up to `grace` seconds for what runs, the rest back to its place in line. A worker that is
        starting in another thread is stopped when it has; one that has not begun never starts. Called by a signal
        handler in the thread that stops already, it asks once more, as `ask_to_stop`."""
        if not self._state.has_begun and not self._state.is_stopping:
            self._state.ask_to_stop()
        with self._turns:
            parts = self._parts
            if self._stops:
                self._state.ask_to_stop()
                return
            if parts is None or not self._state.is_working:
                return
            self._stops = True
            try:
                interrupted = self._stop(parts, self.settings.grace if grace is None else grace)
            finally:
                self._stops = False
        if interrupted is not None:
            raise interrupted

    def _stop(self, parts: WorkerParts, grace: float) -> KeyboardInterrupt | None:
        in_hand = self.in_hand
        more = "once more" if self._state.stops_asked or not self._state.is_stopping else "twice"
        hint = f"waits up to {duration(grace)} for them; asked {more}, it hands them back at once"
        hints = {"hint": hint} if in_hand and grace else {}
        self._state.begin_stop()
        _log.info("worker stopping", worker=self.id, in_hand=in_hand, **hints)
        shutdown = Shutdown(parts, self._state)
        shutdown.run(monotonic() + grace)
        self._released += shutdown.released
        _log.info("worker stopped", worker=self.id, finished=parts.finished_total, released=self._released)
        return shutdown.interrupted

    @property
    def in_hand(self) -> int:
        """Tasks reserved and not yet reported; 0 before `start`."""
        return 0 if self._parts is None else self._parts.in_hand

    def health(self) -> tuple[bool, dict[str, object]]:
        """Whether the worker works and its loops turn, and a description of its state. Sends nothing to the server."""
        parts, waits_for = self._parts, self._state.waits_for
        if waits_for:  # to be restarted would not help it
            return True, {"worker": self.id, "waits": waits_for}
        if parts is None or not self._state.is_working:
            return False, {"worker": self.id, "problem": "stopped" if self._state.is_stopping else "not started"}
        described: dict[str, object] = {"worker": self.id, "in_hand": self.in_hand}
        hanging = [loop.name for loop in parts.loops if not loop.is_alive or loop.busy_s > _HANGS_S]
        if hanging:
            described["problem"] = f"loops that do not turn: {', '.join(hanging)}"
        elif (failure := self.failure) is not None:
            described["problem"] = str(failure)
        elif problem := parts.guard.keeper.problem:
            described["problem"] = problem
        return "problem" not in described, described

    @property
    def failure(self) -> JobrunnerError | None:
        """Why this worker cannot go on; None before `start`. `run` raises it; a program that embeds a worker polls
        it."""
        parts = self._parts
        if parts is None:
            return None
        return (
            self._state.refused or parts.drivers.failure or (parts.lost() if self._state.is_working else None)
        )  # fmt: skip

    def _check_new(self) -> None:
        if self._state.has_begun:
            state = "works already" if self._state.is_working else "has ended"
            raise UsageError(f"this worker {state}, and a Worker runs once; make another one: Worker(…)")

    def _prepare(self) -> WorkerParts | None:
        """Loads the modules, starts the lease keeper, checks the server, and builds the rest. None when the worker was
        asked to stop while it waited for the server."""
        self.client = load_jobs(self.modules, self.client, is_given=self._is_client_given)
        canary = Canary("its file descriptors")
        keeper = KeeperClient(endpoint_of(self.client).shared_url(), keys_of(self.client).prefix)
        keeper.start()
        guard = LeaseGuard(keeper, canary)
        try:
            declare_configured()
            read_configured_defaults()
            parts = once_ready(self.client, self._state, lambda: self._build(guard))
        except BaseException:
            guard.close()
            raise
        if parts is None:
            guard.close()
        return parts

    def _build(self, guard: LeaseGuard) -> WorkerParts:
        weights = served_queues(self._given_queues, self.client)
        check_server(self.client, allow_eviction=self._allow_eviction)
        check_rights(self.client, weights)
        hide_in_errors(self.client.redaction())
        unaligned = prepare_queues(weights, self.client, self.settings)
        assembly = Assembly(self.id, self.settings, self.client, self.modules, self._state, self._recycling.exact_tasks)
        return assembly.build(weights, guard, unaligned)

    def _work(self, parts: WorkerParts) -> None:
        if self._state.until is RunUntil.STOPPED:
            pause_s = min(self._recycling.look_s, _DRIVERS_PAUSE_S if parts.drivers.queues else _PAUSE_S)
            while self._goes_on(parts):
                self._state.wait(pause_s)
            return
        empty = EmptyQueues(parts, self._state.until)
        while self._goes_on(parts):
            self._state.wait(empty.pause_s)
            if empty.are_reached():
                if parts.in_hand:  # items that wait for capacity of a paused queue: they need no grace
                    self.stop(0.0)
                return

    def _goes_on(self, parts: WorkerParts) -> bool:
        is_due = self._recycling.is_over(parts.finished_total)
        return not self._state.is_stopping and self.failure is None and not is_due

    def _stop_broken(self, broken: WorkerBroken) -> None:
        self._state.broken = broken
        _log.error("worker broken", worker=self.id, error=str(broken))
        try:
            self.stop(min(self.settings.grace, _BROKEN_GRACE_S))
        except Exception as error:  # what is missing is missed at the end as well
            _log.warning("not stopped as it should", worker=self.id, error=f"{type(error).__name__}: {error}")
