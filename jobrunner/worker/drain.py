"""The end of a worker's work: detecting that its queues are empty, and stopping without losing tasks that it holds."""

from collections.abc import Collection, Mapping
from itertools import chain

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import run_each_or_errors
from jobrunner.broker.calls import flows
from jobrunner.broker.calls import queues as queue_calls
from jobrunner.broker.calls.server import server_time
from jobrunner.client.operations.flow_relay import relay
from jobrunner.clock import monotonic
from jobrunner.errors import JobrunnerError, ServerError, WorkerBroken
from jobrunner.jobs.registry import held_up
from jobrunner.logs import SafeLogger
from jobrunner.outcome import Failed, Outcome, Released
from jobrunner.worker.assembly import WorkerParts
from jobrunner.worker.report.report_calls import report_calls
from jobrunner.worker.worker_state import RunUntil, WorkerState

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
_RUNNING_PAUSE_S = 0.005
_DRIVERS_PAUSE_S = 0.05
_LOOP_STOP_S = 1.0
_BROKEN_DELAY_S = 2.0
_log = SafeLogger("jobrunner.worker")


class EmptyQueues:
    """Detects that a worker with `burst` or `drain` is done. It asks the server only while nothing is in hand but items
    that wait for capacity, at growing intervals.

    It waits neither for tasks in a paused queue nor for items that only a paused queue holds up, as these may never
    have room."""

    def __init__(self, parts: WorkerParts, until: RunUntil) -> None:
        self._parts = parts
        self._until = until
        self._paused: dict[str, int] = {}
        """How many tasks are in each paused queue; the worker does not wait for them."""
        self._held_up: dict[str, int] = {}
        """How many are in each queue whose items in hand wait for capacity of a paused queue, directly or not."""
        self.pause_s = _FIRST_PAUSE_S
        """How long to wait before the next call of `are_reached`."""

    def are_reached(self) -> bool:
        """Whether no work is left. Otherwise it makes the fetch loop poll its queues at once."""
        parts = self._parts
        finished, held = parts.fetcher.finished_total, parts.fetcher.reporting.backpressure.held
        in_hand = sum(count for count, _ in held.values())
        if parts.in_hand != in_hand:
            self.pause_s = _FIRST_PAUSE_S
            return False
        self.pause_s = min(self.pause_s * 1.5, _LONGEST_PAUSE_S)
        try:
            targets = {queue: to for queue, (_, to) in held.items()}
            left = self._count_left(targets) or (self._pass_on_ends() and self._count_left(targets))
            if not left and parts.fetcher.finished_total == finished and parts.in_hand == in_hand:
                self._warn()
                return True  # otherwise a task came and ended meanwhile, and its flow may go on
        except ServerError:
            return False
        parts.fetcher.fetch_now()
        return False

    def _warn(self) -> None:
        for name, waiting in self._paused.items():
            _log.warning("the worker ends while tasks wait in a paused queue", queue=name, waiting=waiting)
        for name, waiting in self._held_up.items():
            _log.warning("the worker ends while items wait for capacity of a paused queue", queue=name, waiting=waiting)

    def _count_left(self, held: Mapping[str, Collection[str]]) -> int:
        """Counts what this worker waits for; `held`: the queues of the items that wait for capacity, and their
        targets."""
        parts, run_many, keys = self._parts, self._parts.tasks.broker.run_many, self._parts.tasks.keys
        names = [*dict.fromkeys([*parts.all_queues, *chain.from_iterable(held.values())])]
        counted = run_many([queue_calls.counts(keys.queue(name)) for name in names])
        found = dict(zip(names, counted, strict=True))
        waits = held_up(held, {name for name, one in found.items() if one.paused})
        own = {name: found[name] for name in parts.all_queues}
        self._paused = {name: one.waiting for name, one in own.items() if one.paused and one.waiting}
        self._held_up = {name: found[name].waiting + found[name].pending for name in waits}
        left: int = sum(
            (0 if one.paused or name in waits else one.waiting) + (0 if name in waits else one.pending)
            for name, one in own.items()
        )
        if self._until is RunUntil.DRAINED:
            left += sum(one.scheduled for one in own.values())
        others = [keys.queue(name) for name in parts.all_queues if name not in parts.drivers.shards.weights]
        if left and others:  # do not wait for batches of other workers: their driver may be down for days
            now_ms = self._now_ms()
            left -= sum(run_many([queue_calls.held_by_batches(queue, now_ms=now_ms) for queue in others]))
        return left

    def _pass_on_ends(self) -> bool:
        """Passes on ends that no report of this worker had, as of a step that expired: its flow would stand until a
        leader's scan, and this worker may be the only one. Returns whether there were any."""
        broker, keys = self._parts.tasks.broker, self._parts.tasks.keys
        tags = list(dict.fromkeys(keys.queue(name).tag for name in self._parts.all_queues))
        posted = broker.run_many([flows.has_ends(keys, tag) for tag in tags])
        found = [tag for tag, is_posted in zip(tags, posted, strict=True) if is_posted]
        relay(broker, keys, tags=found)
        return bool(found)

    def _now_ms(self) -> float:
        """The time by the clock of the leases: the server's, or a clock set by a test."""
        broker = self._parts.tasks.broker
        set_to = broker.now_ms()
        return float(set_to) if set_to else broker.run(server_time())


class Shutdown:
    """Stops the parts of a worker: it reserves nothing more, running tasks get their grace, other tasks are
    released."""

    def __init__(self, parts: WorkerParts, state: WorkerState) -> None:
        self._parts = parts
        self._tasks = parts.tasks
        self._state = state
        self._broken: WorkerBroken | None = None
        self.released = 0
        """Tasks handed back to their place in line."""
        self.interrupted: KeyboardInterrupt | None = None
        """The error that the caller raises when everything has stopped."""

    def run(self, ends: float) -> None:
        """Stops gracefully: running tasks and batches may go on until `ends` (monotonic clock), unless a second stop is
        requested. Ctrl-C in a program without a handler of its own is such a request, too: see `interrupted`."""
        try:
            self._parts.drivers.ask_to_stop()  # may wait for a driver that is just starting
            self._await_running(ends)
            self._await_drivers(ends)
        except KeyboardInterrupt as error:
            self.interrupted = error
            self._state.stop_now()
            self._tasks.leases.stop_all()
        self._parts.drivers.stop(monotonic() if self._state.must_stop_now else ends)
        self._broken = self._state.broken or self._parts.lost()  # a stop was requested before the loss was noticed
        self.close()

    def close(self) -> None:
        """Stops at once; also for a worker that has not begun to work."""
        tasks = self._tasks
        self._parts.fetcher.reserving = False
        tasks.notifier.close()  # first: it may bring tasks, which are then released
        stopped = self._parts.fetcher.loop.stop()
        tasks.executor.close()
        if stopped:
            self._report_last()
        self._release_rest()
        if stopped and self._have_ended_meanwhile():
            self._report_last()
        for loop in self._parts.loops:
            loop.stop(_LOOP_STOP_S)
        tasks.log.flush()
        for farewell in (tasks.stats.flush, self._parts.coordinator.resign, self._parts.heartbeat.retire):
            try:
                farewell()
            except JobrunnerError as error:
                _log.warning("a step of the shutdown failed", error=str(error))
        self._parts.guard.close()
        tasks.broker.close()

    def _await_running(self, ends: float) -> None:
        fetcher = self._parts.fetcher
        fetcher.reserving = False
        fetcher.loop.wake()
        while not self._state.must_stop_now and monotonic() < ends:
            if fetcher.quiet and not fetcher.in_hand:
                return
            self._state.wait(_RUNNING_PAUSE_S)
        self._tasks.leases.stop_all()

    def _await_drivers(self, ends: float) -> None:
        """Waits for batches in hand. The drivers' `stop` would block without noticing a second request."""
        while self._parts.drivers.in_hand and not self._state.must_stop_now and monotonic() < ends:
            self._state.wait(_DRIVERS_PAUSE_S)

    def _report_last(self) -> None:
        """Reports attempts that ended after the fetch loop: they must not be released as if they had not ended."""
        fetcher = self._parts.fetcher
        fetcher.reporting.end()
        try:
            fetcher.step()
            error = fetcher.refusal
        except JobrunnerError as whole:
            error = whole
        if error is not None:
            _log.warning("the last reports were not sent", tasks=len(fetcher.reporting.tokens), error=str(error))

    def _have_ended_meanwhile(self) -> bool:
        """Whether attempts ended since the last reports. Those that ended as a child process was killed for the stop
        are not among them: they were handed back with the others."""
        finished = self._tasks.finished
        for attempt, outcome in finished.drain():
            if type(outcome) is not Released:
                finished.add(attempt, outcome)
        return bool(finished)

    def _release_rest(self) -> None:
        tasks = self._tasks
        unreported = self._parts.fetcher.reporting.tokens  # they ended, and must not run again
        rest = [attempt for attempt in tasks.leases.attempts() if attempt.token not in unreported]
        tasks.leases.drop(rest)
        reports = report_calls(tasks.keys, [(attempt, self._last_outcome(attempt)) for attempt in rest])
        kept, refused = 0, None
        replies = run_each_or_errors(tasks.broker, [one.call for one in reports])
        for report, reply in zip(reports, replies, strict=True):
            if isinstance(reply, JobrunnerError):
                kept, refused = kept + len(report.reports), refused or reply
            else:
                self.released += reply.count("waiting")
        if refused is not None:
            _log.warning("tasks not handed back; they return when their leases end", tasks=kept, error=str(refused))

    def _last_outcome(self, attempt: Attempt) -> Outcome:
        """The outcome of an attempt that is still held at the end: released. An attempt that was running when this
        worker broke may be the cause, and would break the next worker, too, so it fails as in a crash."""
        if self._broken is None or not attempt.began_s or attempt.run_s >= 0:
            return Released()
        return Failed(f"AttemptCrashed: {self._broken}", _BROKEN_DELAY_S)
