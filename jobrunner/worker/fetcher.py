"""The fetch loop: reports what ended and reserves what comes next, both in one round trip."""

from typing import Any

import structlog

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.calls import leases
from jobrunner.broker.calls.leases import Reservation
from jobrunner.broker.calls.queues import wake
from jobrunner.broker.keys import Keys
from jobrunner.client.token import new_token
from jobrunner.clock import monotonic
from jobrunner.errors import JobrunnerError, ServerError
from jobrunner.jobs.registry import find
from jobrunner.outcome import Released
from jobrunner.worker.executors.handover import Executor, Finished
from jobrunner.worker.leases import Leases
from jobrunner.worker.settle import Report, Settlement, settlements, tell
from jobrunner.worker.stock import Stock
from jobrunner.worker.turns import Turns
from jobrunner.worker.wakeup import Wakeup

_BUSY_PAUSE_S = 0.005
_NOTIFY_BUSY = 256
_DEAF_S = 0.2
_REFUSALS = 50
_log = structlog.get_logger("jobrunner.fetcher")


class Fetcher:
    """One turn: reports what ended, reserves what there is room for, hands it over, says when to come back.

    What must hold: a report is kept until the server answered it; a task is known to the lease keeper before it
    starts; nothing is reserved that would wait here for long.
    """

    def __init__(
        self, broker: Broker, keys: Keys, *, turns: Turns, stock: Stock, executor: Executor, finished: Finished,
        held: Leases, wakeup: Wakeup,
    ) -> None:  # fmt: skip
        self._broker = broker
        self._keys = keys
        self._turns = turns
        self._stock = stock
        self._executor = executor
        self._finished = finished
        self._held = held
        self._wakeup = wakeup
        self._unsettled: list[Report] = []
        self._refusals = 0
        self._heard_at = 0.0
        self._early: set[str] = set()
        self._woken: set[str] = set()
        self.reserving = True
        self.finished_total = 0

    @property
    def in_hand(self) -> int:
        """Attempts reserved and not yet reported."""
        return self._stock.in_hand + len(self._unsettled)

    def woken(self, queue: str) -> None:
        """Called by the wake-up thread."""
        if queue:
            self._woken.add(queue)

    def step(self) -> float:
        """One turn; returns the seconds to the next, which a wake-up or a finished task cuts short."""
        self._take_wakeups()
        self._collect()
        settling = settlements(self._keys, self._unsettled) if self._unsettled else []
        queue, wanted = self._plan()
        calls: list[Call[Any]] = [settlement.call for settlement in settling]
        token = new_token()
        if queue is not None:
            calls.append(leases.reserve(self._keys.queue(queue), wanted, token=token))
        if calls:
            replies = self._broker.run_each(calls)
            self._settled(settling, replies)
            if queue is not None:
                self._take_in(queue, wanted, replies[-1])
        return self._pause()

    def release_backlog(self) -> None:
        """Hands back what was not begun."""
        for attempt in self._executor.take_back():
            self._finished.add(attempt, Released())

    def _take_wakeups(self) -> None:
        while self._woken:
            queue = self._woken.pop()
            if self.reserving and self._stock.has_room():
                self._turns.wake(queue)
            else:
                self._broker.run(wake(self._keys.queue(queue)))

    def _collect(self) -> None:
        reports = self._finished.drain()
        self._stock.gave(len(reports))
        if not reports:
            if self._stock.is_stuck(self._executor.backlog):
                self._stock.forget_rate()
                self.release_backlog()
            return
        self.finished_total += len(reports)
        self._held.drop(attempt for attempt, _ in reports)
        if self._early:
            reports = [report for report in reports if not self._was_settled_early(report[0])]
        self._unsettled += reports

    def _was_settled_early(self, attempt: Attempt) -> bool:
        if attempt.token not in self._early:
            return False
        self._early.discard(attempt.token)
        return True

    def _plan(self) -> tuple[str | None, int]:
        if not self.reserving:
            return None, 0
        wanted = self._stock.wanted(self._executor.backlog)
        if wanted <= 0:
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

    def _settled(self, settling: list[Settlement], replies: list[Any]) -> None:
        kept: list[Report] = []
        refused: JobrunnerError | None = None
        for settlement, reply in zip(settling, replies, strict=False):
            if isinstance(reply, JobrunnerError):
                refused = reply
                kept += settlement.reports
            else:
                tell(settlement, reply)
        self._unsettled = kept
        self._refusals = self._refusals + 1 if refused is not None else 0
        if refused is not None:
            if self._refusals >= _REFUSALS:
                _log.error("reports given up; their leases will end", reports=len(kept), error=str(refused))
                self._unsettled, self._refusals = [], 0
            raise refused

    def _take_in(self, queue: str, wanted: int, reply: Reservation | JobrunnerError) -> None:
        if isinstance(reply, JobrunnerError):
            raise reply
        attempts = reply.attempts
        if len(attempts) < wanted:
            next_event_s = None if reply.next_event_ms is None else (reply.next_event_ms - reply.now_ms) / 1000
            self._turns.sleep(queue, next_event_s)
        if attempts:
            self._stock.took(len(attempts))
            self._held.hold(attempts)
            self._executor.submit(self._settle_early(attempts))

    def _settle_early(self, attempts: list[Attempt]) -> list[Attempt]:
        early = [attempt for attempt in attempts if _is_early(attempt)]
        if not early:
            return attempts
        keys = self._keys.queue(early[0].queue)
        reports = [(attempt.id, attempt.token, 0, "succeeded", b"") for attempt in early]
        refused: set[str] = set()
        try:
            verdicts = self._broker.run(leases.commit(keys, reports))
            refused.update(a.token for a, verdict in zip(early, verdicts, strict=True) if verdict != "ok")
        except ServerError as error:
            _log.warning("tasks acknowledged early are given up: their acknowledgement failed", error=str(error))
            refused.update(attempt.token for attempt in early)
        self._early.update(attempt.token for attempt in early if attempt.token not in refused)
        dropped = [attempt for attempt in early if attempt.token in refused]
        self._stock.gave(len(dropped))
        self._held.drop(dropped)
        return [attempt for attempt in attempts if attempt.token not in refused]

    def _pause(self) -> float:
        if self._unsettled:
            return 0.0
        backlog = self._executor.backlog
        if backlog:
            self._finished.notify_at = _NOTIFY_BUSY
            if self._stock.wanted(backlog) and self._turns.until_next() == 0.0 and self.reserving:
                return 0.0
            self._executor.nudge()
            return _BUSY_PAUSE_S
        self._finished.notify_at = 1
        if len(self._finished):
            return 0.0
        if not (self.reserving and self._stock.has_room()):
            return 3600.0
        pause = self._turns.until_next()
        if pause > 0:
            self._wakeup.arm(pause)
        return pause


def _is_early(attempt: Attempt) -> bool:
    definition = find(attempt.type)
    return definition is not None and definition.options.ack == "early"
