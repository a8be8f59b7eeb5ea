"""The fetch loop: reports what ended and reserves what comes next, both in one round trip."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.calls import leases
from jobrunner.broker.calls.leases import Reservation
from jobrunner.broker.calls.queues import wake
from jobrunner.broker.keys import Keys
from jobrunner.clock import monotonic, perf_counter
from jobrunner.errors import JobrunnerError
from jobrunner.holder import LeaseNumbers
from jobrunner.logs import OwnLog
from jobrunner.outcome import Acknowledged, Failed, Released
from jobrunner.worker.aftermath import Aftermath
from jobrunner.worker.ahead import Ahead
from jobrunner.worker.backoffs import QueueBackoffs
from jobrunner.worker.endings import Endings
from jobrunner.worker.executors.handover import Executor, Finished
from jobrunner.worker.figures import Figures
from jobrunner.worker.leases import Leases
from jobrunner.worker.pressure import Pressure
from jobrunner.worker.sealing import sealed
from jobrunner.worker.settle import Report, Settlement, settlements, too_many_hops
from jobrunner.worker.stock import Stock
from jobrunner.worker.turns import Turns
from jobrunner.worker.wakeup import Wakeup

_REFUSED_PAUSE_S = 1.0
_NO_KEEPER_PAUSE_S = 0.05
_NOTIFY_BUSY = 256
_DEAF_S = 0.2
_REFUSALS = 50
_log = OwnLog("jobrunner.fetcher")


class Fetcher:
    """One turn: reports what ended, reserves what there is room for, hands it over, says when to come back.

    What must hold: a report and its lease are kept until the server answered; the lease keeper is told of a task
    before it starts; nothing is reserved that would wait here for long; a turn that begins while it rests or after its
    end reserves nothing and starts nothing, and sets `quiet`.
    """

    def __init__(
        self, broker: Broker, keys: Keys, *, turns: Turns, stock: Stock, executor: Executor, finished: Finished,
        held: Leases, wakeup: Wakeup, figures: Figures, endings: Endings, worker_id: str, max_tasks: int = 0,
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
        self._aftermath = Aftermath(broker, keys, held, figures, endings)
        self._max_tasks = max_tasks
        self._worker_id = worker_id
        self._numbers = LeaseNumbers(worker_id)
        self._backoffs = QueueBackoffs(broker, keys)
        self._pressure = Pressure(turns)
        self._unsettled: list[Report] = []
        self._refusals = 0
        self._heard_at = 0.0
        self._leases_are_short = False
        self._woken: set[str] = set()
        self._ahead = Ahead(keys, self._numbers)
        self.reserving = True
        """Off for good when the worker stops."""
        self.resting = False
        """On while the worker was told to be quiet."""
        self.quiet = False
        self.finished_total = 0

    @property
    def in_hand(self) -> int:
        """Attempts reserved and not yet reported, and ends that flows were not yet told of."""
        reported = len(self._unsettled) + len(self._pressure) + len(self._aftermath)
        return self._stock.in_hand + len(self._ahead) + reported

    @property
    def unsettled(self) -> set[str]:
        """Tokens of attempts that ended and are not yet reported, but for those that wait for room."""
        return {attempt.token for attempt, _ in self._unsettled}

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
        self._take_wakeups()
        self._take_brought()
        self._collect()
        if self._pressure.is_on:
            self._unsettled += self._pressure.take_due()
        settling = self._settlements() if self._unsettled else []
        queue, wanted = self._plan() if reserving else (None, 0)
        refused = self._exchange(settling, queue, wanted)
        self.quiet = not reserving
        pause = self._pause()
        if refused is not None or pause > 0 or not reserving:
            self._aftermath.note()
        self._aftermath.pass_on()
        if refused is not None:
            raise refused
        return pause

    def _settlements(self) -> list[Settlement]:
        return settlements(self._keys, self._unsettled, singly=self._refusals > 0, worker=self._worker_id)

    def _exchange(self, settling: list[Settlement], queue: str | None, wanted: int) -> JobrunnerError | None:
        """The round trip of a turn; returns what the server refused, after everything else was taken in."""
        calls: list[Call[Any]] = [settlement.call for settlement in settling]
        if queue is not None:
            calls.append(leases.reserve(self._keys.queue(queue), wanted, token=self._numbers.first_of(wanted)))
        if not calls:
            return None
        self._broker.connect()
        asked_at, began = monotonic(), perf_counter()
        replies = self._broker.run_each(calls, meanwhile=self._aftermath.note)
        self._figures.round_trip(perf_counter() - began)
        refused = self._take_in(queue, wanted, replies[-1], asked_at) if queue is not None else None
        return self._settled(settling, replies) or refused

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
        released, count = kinds.count(Released), len(kinds)
        if Acknowledged in kinds:
            over = [report for report in reports if type(report[1]) is Acknowledged]
            self._held.drop(attempt for attempt, _ in over)
            self._figures.observe(over, ["ok"] * len(over))
            reports = [report for report in reports if type(report[1]) is not Acknowledged]
        if Failed in kinds:
            reports = [
                (attempt, self._backoffs.settle(attempt, outcome) if isinstance(outcome, Failed) else outcome)
                for attempt, outcome in reports
            ]
        if self._keys.seal is not None:
            reports = [(attempt, sealed(attempt, outcome, self._keys)) for attempt, outcome in reports]
        self._unsettled += reports  # before they leave the stock: no moment may look as if nothing were in hand
        self._stock.gave(count - released, released)
        self.finished_total += count - released

    def _plan(self) -> tuple[str | None, int]:
        wanted = self._wanted(self._executor.backlog)
        if not wanted:
            return None, 0
        self._look_around()
        return self._turns.next(), wanted

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
        if not self._may_reserve or self._lacks_keeper():
            return 0
        wanted = self._stock.wanted(backlog)
        if self._max_tasks:
            wanted = min(wanted, self._max_tasks - self.finished_total - self._stock.in_hand)
        return max(wanted, 0)

    def _lacks_keeper(self) -> bool:
        """Whether leases would end before a keeper that is still starting renews them: then nothing is reserved."""
        return self._leases_are_short and not self._held.is_ready

    def _settled(self, settling: list[Settlement], replies: list[Any]) -> JobrunnerError | None:
        kept: list[Report] = []
        changed: list[Report] = []
        refused: JobrunnerError | None = None
        for settlement, reply in zip(settling, replies, strict=False):
            if isinstance(reply, JobrunnerError):
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
        return refused

    def _moved(self, settlement: Settlement, verdicts: list[str]) -> list[Report]:
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
            self._turns.sleep(queue, _REFUSED_PAUSE_S, _REFUSED_PAUSE_S)
            return reply
        self._figures.synchronize(reply.now_ms)
        attempts = reply.attempts
        if len(attempts) < wanted:
            next_event_s = None if reply.next_event_ms is None else (reply.next_event_ms - reply.now_ms) / 1000
            self._turns.sleep(queue, next_event_s, reply.keepalive_ms / 1000)
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
            self._executor.submit(attempts)
        else:
            self._finished.add_all(attempts, Released())

    def _pause(self) -> float:
        if self._unsettled:
            return 0.0
        pause = self._pause_for_work()
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
