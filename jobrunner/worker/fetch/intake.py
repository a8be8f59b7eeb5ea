"""Passes reserved tasks from the server's reply to the lease keeper and then to the executor."""

from dataclasses import dataclass, field

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls.leases import Reservation
from jobrunner.broker.calls.queues import Probe
from jobrunner.broker.keys import Keys
from jobrunner.broker.notifier import Notifier
from jobrunner.clock import monotonic
from jobrunner.encryption.cipher import PayloadEncryption
from jobrunner.errors import JobrunnerError
from jobrunner.logs import SafeLogger
from jobrunner.loop import Complaints
from jobrunner.outcome import Released
from jobrunner.worker.fetch.quarantine import Quarantine
from jobrunner.worker.fetch.queue_caps import CappedRotation
from jobrunner.worker.fetch.reserve_plan import Prefetch, QueueRotation
from jobrunner.worker.fetch.waiting_reports import Backpressure
from jobrunner.worker.lease_keeper.keeper_link import HeldLeases
from jobrunner.worker.payload_cleaner import PayloadCleaner
from jobrunner.worker.report.attempt_log import AttemptEvents, AttemptLog
from jobrunner.worker.report.reported_outcome import UnknownJobs
from jobrunner.worker.report.stats import StatsRecorder
from jobrunner.worker.run.executor import CANNOT_START, START_HINT, CannotStartError, Executor, FinishedAttempts
from jobrunner.worker.shards import ServedShards

_STOOD_STILL_MS = 500.0
"""Age from which a late reply was held up by a job. Below it, the lease was shorter than the round trip: a task that is
handed back would come again at once."""
_log = SafeLogger("jobrunner.fetcher")


@dataclass(frozen=True, slots=True)
class TaskParts:
    """The components of a worker that the fetch loop connects."""

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
    log: AttemptLog
    unknown: UnknownJobs
    events: AttemptEvents | None = None
    """None unless the worker writes the end of every attempt as an event."""
    cleaner: PayloadCleaner | None = None
    """None without a payload store."""
    release: str = ""
    timed: set[str] = field(default_factory=set)
    """Queues that keep history, according to the last reserve from each: their tasks are reported with run times."""
    shards: ServedShards | None = None
    """The shards of the worker's queues; None when they never change."""
    leases_are_short: bool = False
    """Whether a lease is declared so short that it may end before a starting lease keeper renews it. Lengths that only
    the server knows are detected at the first reserve."""


class Intake:
    """Starts reserved tasks, or releases them.

    Invariant: the lease keeper is notified of a task before the task begins; a task whose lease may have ended before
    its reply was read is never begun.
    """

    def __init__(self, parts: TaskParts, backpressure: Backpressure, *, isolates: bool) -> None:
        self._parts = parts
        self._rotation = parts.rotation
        self._backpressure = backpressure
        self._leases_are_short = parts.leases_are_short
        self._complaints = Complaints()
        self.quarantine = Quarantine(parts.leases.clear, isolates=isolates)

    @property
    def lacks_keeper(self) -> bool:
        """Whether leases may end before a lease keeper renews them, as they are short and it is starting, or it cannot
        be started: then the worker reserves nothing."""
        leases = self._parts.leases
        return not leases.is_ready and (self._leases_are_short or leases.is_missing)

    def take_probe(self, queue: str, reply: Probe | JobrunnerError, asked_at: float) -> JobrunnerError | None:
        """Processes the reply to a probe; returns it if it is an error."""
        if isinstance(reply, JobrunnerError):
            self._rotation.refused(queue)
            return reply
        self._parts.stats.synchronize(reply.now_ms, (monotonic() - asked_at) * 1000)
        if reply.has_tasks:
            self._rotation.has_tasks(queue)
        else:
            self._rotation.sleep(queue, _until_s(reply), reply.keepalive_ms / 1000)
        return None

    def take(self, queue: str, wanted: int, reply: Reservation, asked_at: float, *, begins: bool) -> None:
        """Processes a reservation of up to `wanted` tasks: starts the tasks whose leases it can hold, if `begins`, and
        releases the others."""
        attempts = self._hold(queue, wanted, reply, asked_at)
        if attempts and begins:
            self._begin(queue, attempts)
        else:
            self.give_back(attempts)

    def _hold(self, queue: str, wanted: int, reply: Reservation, asked_at: float) -> list[Attempt]:
        """Registers the leases of a reservation. Returns the tasks that are held from now on and can begin."""
        late_ms = (monotonic() - asked_at) * 1000
        self._parts.stats.synchronize(reply.now_ms, late_ms)
        if reply.keeps_history != (queue in self._parts.timed):
            (self._parts.timed.add if reply.keeps_history else self._parts.timed.discard)(queue)
        if len(reply.attempts) < wanted:
            self._rotation.sleep(queue, _until_s(reply), reply.keepalive_ms / 1000)
        else:
            self._rotation.gave_all(queue)
        attempts = [attempt for attempt in reply.attempts if attempt.keepalive_ms > late_ms]  # whose leases still last
        if len(attempts) < len(reply.attempts) and late_ms >= _STOOD_STILL_MS:
            over = [attempt for attempt in reply.attempts if attempt.keepalive_ms <= late_ms]
            self._count(queue, over)
            self.give_back(over)  # the lease keeper may have renewed their leases: then no attempt is spent
        if not attempts:
            return attempts
        self._count(queue, attempts)
        self._parts.leases.hold(attempts, asked_at)
        if self._parts.leases.can_keep(attempts):
            return attempts
        self._leases_are_short = True
        self._rotation.wake(queue)
        self.give_back(attempts)
        return []

    def _count(self, queue: str, attempts: list[Attempt]) -> None:
        """Counts attempts as held by the worker, until their report."""
        if self._backpressure.is_on:
            self._backpressure.made_room(queue)
        self._parts.prefetch.took(len(attempts))
        if isinstance(self._rotation, CappedRotation):
            self._rotation.took(queue, len(attempts))

    def _begin(self, queue: str, attempts: list[Attempt]) -> None:
        """Hands attempts to the executor; tasks suspected of a crash run one at a time and alone."""
        fit, back = self.quarantine.sort(attempts)
        if fit:
            self._submit(fit)
        if back:
            self.give_back(back)
            if self.quarantine.is_on or fit:
                self._rotation.wake(queue)
            else:  # the queue has only suspects, and other tasks have the turn
                self._rotation.pause(queue, self.quarantine.rest_s)

    def isolate(self, ended: list[Attempt]) -> None:
        """Begins a task that must run alone once no other task runs, and resumes reserves when it has ended."""
        if self.quarantine.is_over(ended):
            self._rotation.wake_all()
        elif (suspect := self.quarantine.to_begin(self._parts.prefetch.in_hand)) is not None:
            self.give_back_backlog()
            self._submit([suspect])

    def _submit(self, attempts: list[Attempt]) -> None:
        """Hands attempts to the executor. Attempts that it cannot start are handed back, and their queues pause."""
        try:
            self._parts.executor.submit(attempts)
        except CannotStartError as error:
            self.give_back(error.attempts)
            for queue in {attempt.queue for attempt in error.attempts}:
                self._rotation.pause(queue)
            if self._complaints.may_tell(CANNOT_START):
                _log.error(CANNOT_START, tasks=len(error.attempts), error=str(error), hint=START_HINT)

    def give_back(self, attempts: list[Attempt]) -> None:
        """Releases attempts to their queue positions, with no attempt spent."""
        self._parts.finished.add_all(attempts, Released())

    def give_back_stuck(self) -> None:
        """Releases the backlog for other workers when it waits behind long tasks and no task has ended for long."""
        if self._parts.prefetch.is_stuck(self._parts.executor.backlog):
            self._parts.prefetch.forget_rate()
            self.give_back_backlog()

    def give_back_backlog(self) -> None:
        """Releases the tasks that the executor has not begun."""
        self.give_back(self._parts.executor.take_back())

    def give_back_unbegun(self) -> None:
        """Releases the tasks that the executor has not begun, and a suspect that waits to run alone."""
        self.give_back_backlog()
        self.give_back(self.quarantine.take_back())


def _until_s(reply: Reservation | Probe) -> float | None:
    """Seconds until the next event of the queue, by the server's reply; None without one."""
    return None if reply.next_event_ms is None else (reply.next_event_ms - reply.now_ms) / 1000
