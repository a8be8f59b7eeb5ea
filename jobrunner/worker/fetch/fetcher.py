"""The fetch loop: reports what ended and reserves what comes next, both in one round trip."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.calls import leases
from jobrunner.broker.calls.leases import Reservation
from jobrunner.broker.calls.queues import Probe, probe, wake
from jobrunner.broker.keys import Keys
from jobrunner.clock import monotonic, perf_counter
from jobrunner.errors import JobrunnerError, OutcomeUnknown, ServerUnavailable
from jobrunner.lease_number import LeaseNumbers
from jobrunner.logs import SafeLogger
from jobrunner.outcome import Acknowledged, Failed, Released, Unknown
from jobrunner.worker.fetch.backpressure import Backpressure
from jobrunner.worker.fetch.notifier import Notifier
from jobrunner.worker.fetch.prefetch import Prefetch
from jobrunner.worker.fetch.queue_rotation import QueueRotation, ReservePlan
from jobrunner.worker.fetch.reserve_ahead import ReserveAhead
from jobrunner.worker.fetch.unknown_jobs import UnknownJobs
from jobrunner.worker.lease_keeper.keeper_client import KeeperClient
from jobrunner.worker.quarantine import Quarantine
from jobrunner.worker.report.after_report import AfterReport
from jobrunner.worker.report.attempt_events import AttemptEvents
from jobrunner.worker.report.encryption import sealed
from jobrunner.worker.report.queue_backoff import QueueBackoffs
from jobrunner.worker.report.reports import Report, ReportCall, report_calls, too_many_hops
from jobrunner.worker.report.stats import StatsRecorder
from jobrunner.worker.report.undelivered import UndeliveredReports
from jobrunner.worker.run.executors.slots import Executor, FinishedAttempts

_NO_KEEPER_PAUSE_S = 0.05
_NOTIFY_BUSY = 256
_DEAF_S = 0.2
_REFUSALS = 50
"""After so many turns a report is given up that its server answers with an error each time."""
_AWAY = (ServerUnavailable, OutcomeUnknown)
"""What comes in place of a reply where one server of a cluster is away; where none answers it is raised."""
_log = SafeLogger("jobrunner.fetcher")


class Fetcher:
    """One turn: reports what ended, reserves what there is room for, hands it over, says when to come back.

    What must hold: a report and its lease are kept until the server answered; the lease keeper is told of a task
    before it starts; nothing is reserved that would wait here for long; a turn that begins while it rests or after its
    end reserves nothing and starts nothing, and sets `quiet`.
    """

    def __init__(
        self, broker: Broker, keys: Keys, *, turns: QueueRotation, stock: Prefetch, executor: Executor,
        finished: FinishedAttempts, held: KeeperClient, wakeup: Notifier, figures: StatsRecorder,
        endings: AttemptEvents, worker_id: str, max_tasks: int = 0, unknown: UnknownJobs | None = None,
        isolates: bool = True,
    ) -> None:  # fmt: skip
        self._broker = broker
        self._keys = keys
        self._turns = turns
        self._stock = stock
        self._executor = executor
        self._finished = finished
        self._held = held
        self._wakeup = wakeup
        self._figures = figures
        self._aftermath = AfterReport(broker, keys, held, figures, endings)
        self._max_tasks = max_tasks
        self._worker_id = worker_id
        self._numbers = LeaseNumbers(worker_id, held.took)
        self._backoffs = QueueBackoffs(broker, keys)
        self._unknown = unknown or UnknownJobs(0.0)
        self._pressure = Backpressure(turns)
        self._away = UndeliveredReports()
        self._unsettled: list[Report] = []
        self._refusals = 0
        self._heard_at = 0.0
        self._leases_are_short = False
        self._woken: set[str] = set()
        self._quarantine = Quarantine(held.clear, isolates=isolates)
        self._ahead = ReserveAhead(keys, self._numbers)
        self.reserving = True
        """Off for good when the worker stops."""
        self.resting = False
        """On while the worker was told to be quiet."""
        self.quiet = False
        self.finished_total = 0

    @property
    def in_hand(self) -> int:
        """Attempts reserved and not yet reported, and ends that flows were not yet told of."""
        reported = len(self._unsettled) + len(self._pressure) + len(self._away) + len(self._aftermath)
        return self._stock.in_hand + len(self._ahead) + reported

    @property
    def unsettled(self) -> set[str]:
        """Tokens of attempts that ended and are not yet reported, but for those that wait for room."""
        return {*self._away.tokens(), *(attempt.token for attempt, _ in self._unsettled)}

    def woken(self, queue: str, brought: Sequence[Reservation | JobrunnerError]) -> None:
        """Called by the wake-up thread: a hint, and what the reservations brought that it was armed with."""
        looked_at = self._ahead.heard(brought)
        if queue and queue not in looked_at:
            self._woken.add(queue)

    def step(self) -> float:
        """One turn; returns the seconds to the next, which a wake-up or a finished task cuts short."""
        reserving = self._may_reserve
        if not reserving:
            self._release_backlog()
            self._release_held_up()
            self._finished.add_all(self._quarantine.take_back(), Released())
        self._take_wakeups()
        self._take_brought()
        self._collect()
        if self._quarantine.is_on:
            self._isolate()
        if self._pressure.is_on:
            self._unsettled += self._pressure.take_due()
        if self._away.is_on:
            self._unsettled += self._away.take_due()
        settling = self._settlements() if self._unsettled else []
        refused = self._exchange(settling, self._plan() if reserving else ReservePlan())
        self.quiet = not reserving
        pause = self._pause()
        if refused is not None or pause > 0 or not reserving:
            self._aftermath.note()
        self._aftermath.pass_on()
        if refused is not None:
            raise refused
        return pause

    def _settlements(self) -> list[ReportCall]:
        return report_calls(self._keys, self._unsettled, singly=self._refusals > 0, worker=self._worker_id)

    def _exchange(self, settling: list[ReportCall], plan: ReservePlan) -> JobrunnerError | None:
        """The round trip of a turn; returns what the server refused, after everything else was taken in."""
        calls: list[Call[Any]] = [settlement.call for settlement in settling]
        for queue, share in plan.shares.items():
            first = self._numbers.first_of(share)
            calls.append(leases.reserve(self._keys.queue(queue), share, token=first, most_bytes=leases.REPLY_BYTES))
        calls += [probe(self._keys.queue(queue)) for queue in plan.probed]
        if not calls:
            return None
        self._broker.connect()
        asked_at, began = monotonic(), perf_counter()
        replies = self._broker.run_each(calls, meanwhile=self._aftermath.note)
        self._figures.round_trip(perf_counter() - began)
        refused = None
        found = iter(replies[len(settling) :])
        for queue, share in plan.shares.items():
            refused = self._take_in(queue, share, next(found), asked_at) or refused
        for queue in plan.probed:
            refused = self._take_probe(queue, next(found)) or refused
        return self._settled(settling, replies) or refused

    def _take_probe(self, queue: str, reply: Probe | JobrunnerError) -> JobrunnerError | None:
        if isinstance(reply, JobrunnerError):
            self._turns.refused(queue)
            return reply
        self._figures.synchronize(reply.now_ms)
        if reply.has_tasks:
            self._turns.has_tasks(queue)
        else:
            self._turns.sleep(queue, _until_s(reply), reply.keepalive_ms / 1000)
        return None

    def _isolate(self) -> None:
        """Begins the task that runs alone when nothing else does, and takes others again when it has."""
        if self._quarantine.is_over([attempt for attempt, _ in self._unsettled]):
            self._turns.wake_all()
        elif (suspect := self._quarantine.to_begin(self._stock.in_hand)) is not None:
            self._release_backlog()
            self._executor.submit([suspect])

    def _release_backlog(self) -> None:
        self._finished.add_all(self._executor.take_back(), Released())

    def _release_held_up(self) -> None:
        self._unsettled += [(attempt, Released()) for attempt, _ in self._pressure.take_all()]

    def _take_wakeups(self) -> None:
        while self._woken:
            queue = self._woken.pop()
            if self._wanted(self._executor.backlog):
                self._turns.wake(queue)
            else:
                self._broker.run(wake(self._keys.queue(queue)))

    def _take_brought(self) -> None:
        while self._ahead:
            queue, count, brought = self._ahead.first()
            asked_at = monotonic() - self._figures.age_ms(brought.now_ms) / 1000
            is_wanted = self._wanted(self._executor.backlog) >= len(brought.attempts)
            if len(brought.attempts) == count:
                self._turns.wake(queue)
            self._take_in(queue, count, brought, asked_at, is_wanted=is_wanted)
            self._ahead.done()

    def _listen(self) -> None:
        if self._wakeup.is_armed:
            return
        queues = self._turns.open if self._wakeup.can_bring and not self._pressure.is_on else []
        self._wakeup.arm(partial(self._ahead.plan, queues, self._wanted(self._executor.backlog)))

    def _collect(self) -> None:
        reports = self._finished.drain()
        if not reports:
            self._stock.gave(0)
            if self._stock.is_stuck(self._executor.backlog):
                self._stock.forget_rate()
                self._release_backlog()
            return
        kinds = [type(outcome) for _, outcome in reports]
        released, count = kinds.count(Released) + kinds.count(Unknown), len(kinds)
        if Acknowledged in kinds:
            over = [report for report in reports if type(report[1]) is Acknowledged]
            self._held.drop(attempt for attempt, _ in over)
            self._figures.observe(over, ["ok"] * len(over))
            reports = [report for report in reports if type(report[1]) is not Acknowledged]
        if Unknown in kinds:
            reports = [
                (attempt, self._unknown.settle(attempt, outcome) if isinstance(outcome, Unknown) else outcome)
                for attempt, outcome in reports
            ]
        if Failed in kinds or Unknown in kinds:
            reports = [
                (attempt, self._backoffs.settle(attempt, outcome) if isinstance(outcome, Failed) else outcome)
                for attempt, outcome in reports
            ]
        if self._keys.seal is not None:
            reports = [(attempt, sealed(attempt, outcome, self._keys)) for attempt, outcome in reports]
        self._unsettled += reports  # before they leave the stock: no moment may look as if nothing were in hand
        self._stock.gave(count - released, released)
        self.finished_total += count - released

    def _plan(self) -> ReservePlan:
        wanted = self._wanted(self._executor.backlog)
        if not wanted:
            return ReservePlan()
        self._look_around()
        return self._turns.plan(wanted)

    def _look_around(self) -> None:
        """Hints are not heard while every slot is taken, so a busy worker looks at all its queues now and then."""
        now = monotonic()
        if self._wakeup.is_armed:
            self._heard_at = now
        elif now - self._heard_at >= _DEAF_S:
            self._heard_at = now
            self._turns.wake_all()

    @property
    def _may_reserve(self) -> bool:
        return self.reserving and not self.resting

    def _wanted(self, backlog: int) -> int:
        """How many to reserve now."""
        if not self._may_reserve or self._quarantine.is_on or self._lacks_keeper():
            return 0
        wanted = self._stock.wanted(backlog)
        if self._max_tasks:
            wanted = min(wanted, self._max_tasks - self.finished_total - self._stock.in_hand)
        return max(wanted, 0)

    def _lacks_keeper(self) -> bool:
        """Whether leases would end before a keeper that is still starting renews them: then nothing is reserved."""
        return self._leases_are_short and not self._held.is_ready

    def _settled(self, settling: list[ReportCall], replies: list[Any]) -> JobrunnerError | None:
        kept: list[Report] = []
        changed: list[Report] = []
        refused: JobrunnerError | None = None
        for settlement, reply in zip(settling, replies, strict=False):
            if isinstance(reply, _AWAY):
                self._away.keep(settlement.reports, reply)
            elif isinstance(reply, JobrunnerError):
                refused = reply
                kept += settlement.reports
            elif settlement.targets:
                changed += self._moved(settlement, reply)
            else:
                self._aftermath.take(settlement, reply)
        self._refusals = self._refusals + 1 if kept else 0
        if self._refusals >= _REFUSALS:
            _log.error("reports given up; their leases will end", reports=len(kept), error=str(refused))
            self._held.drop(attempt for attempt, _ in kept)
            kept, self._refusals = [], 0
        self._unsettled = kept + changed
        if self._pressure.is_on:
            self._pressure.after_turn(self._unsettled)
        if self._away.is_on:
            self._away.after_turn()
        return refused

    def _moved(self, settlement: ReportCall, verdicts: list[str]) -> list[Report]:
        """Keeps the reports whose target is full; returns those that have to be made in another way."""
        over: list[Attempt] = []
        changed: list[Report] = []
        for report, verdict in zip(settlement.reports, verdicts, strict=True):
            if verdict == "full":
                self._pressure.keep(report)
            elif verdict == "hops":
                changed.append(too_many_hops(*report))
            else:
                over.append(report[0])
        if over:
            self._wake(settlement.targets)
        self._held.drop(over)
        self._aftermath.take(settlement, verdicts)
        return changed

    def _wake(self, queues: Iterable[str]) -> None:
        """These got items from here: no need to wait for the hint of it."""
        for queue in queues:
            self._turns.wake(queue)

    def _take_in(
        self, queue: str, wanted: int, reply: Reservation | JobrunnerError, asked_at: float, *, is_wanted: bool = True
    ) -> JobrunnerError | None:
        if isinstance(reply, JobrunnerError):
            self._turns.refused(queue)
            return reply
        self._figures.synchronize(reply.now_ms)
        attempts = reply.attempts
        if len(attempts) < wanted:
            self._turns.sleep(queue, _until_s(reply), reply.keepalive_ms / 1000)
        else:
            self._turns.gave_all(queue)
        late_ms = (monotonic() - asked_at) * 1000
        attempts = [
            attempt for attempt in attempts if attempt.keepalive_ms > late_ms
        ]  # the others are not ours any more
        if attempts:
            self._pressure.made_room(queue)
            self._begin(queue, attempts, asked_at, is_wanted=is_wanted)
        return None

    def _begin(self, queue: str, attempts: list[Attempt], asked_at: float, *, is_wanted: bool) -> None:
        self._stock.took(len(attempts))
        self._held.hold(attempts, asked_at)
        if not self._held.can_keep(attempts):
            self._leases_are_short = True
            self._turns.wake(queue)
            self._finished.add_all(attempts, Released())
        elif self._may_reserve and is_wanted:
            fit, back = self._quarantine.sort(attempts)
            if fit:
                self._executor.submit(fit)
            if back:
                self._finished.add_all(back, Released())
                if self._quarantine.is_on or fit:
                    self._turns.wake(queue)
                else:  # nothing but suspects, and it is the turn of others
                    self._turns.rest(queue, self._quarantine.rest_s)
        else:
            self._finished.add_all(attempts, Released())

    def _pause(self) -> float:
        if self._unsettled:
            return 0.0
        pause = self._pause_for_work()
        if self._quarantine.is_on:
            pause = min(pause, self._quarantine.pause_s(self._stock.in_hand))
        if self._away.is_on:
            pause = min(pause, self._away.until_next())
        return min(pause, self._pressure.until_next()) if self._pressure.is_on else pause

    def _pause_for_work(self) -> float:
        backlog = self._executor.backlog
        wanted = self._wanted(backlog)
        if backlog:
            self._finished.notify_at = self._stock.ends_together(backlog, _NOTIFY_BUSY)
            if wanted and self._turns.until_next() == 0.0:
                return 0.0
            self._executor.nudge()
            if self._stock.has_free_slots and wanted and self._turns.queues:
                self._listen()  # what comes now can begin at once
            return self._stock.pause_s
        self._finished.notify_at = 1
        if len(self._finished):
            return 0.0
        if not wanted:
            return _NO_KEEPER_PAUSE_S if self._lacks_keeper() else 3600.0
        pause = self._turns.until_next()
        if pause > 0 and self._turns.queues:
            self._listen()
        return pause


def _until_s(reply: Reservation | Probe) -> float | None:
    """Seconds until the queue needs the next look, as it said."""
    return None if reply.next_event_ms is None else (reply.next_event_ms - reply.now_ms) / 1000
