"""A worker for tests, which runs the present tasks and returns, and its clock, which tests move forward."""

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from jobrunner.broker.call import command
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import queues
from jobrunner.broker.shards import whole_queue
from jobrunner.client.client import Client, broker_of, encryption_of, keys_of
from jobrunner.clock import from_ms, monotonic, since_boot, time_ns
from jobrunner.coordinator.cron import PeriodicTicks
from jobrunner.errors import InvalidOption, NaiveDatetime, ServerError, TaskGone, TaskTimeout, UsageError
from jobrunner.inspector.shards import with_shards
from jobrunner.jobs.build import published
from jobrunner.jobs.registry import all_jobs
from jobrunner.retry import seconds
from jobrunner.settings import Duration
from jobrunner.testing.holds import Hold, find_holds, left_over
from jobrunner.worker.queues import default_queues, refuse_text, served_queues
from jobrunner.worker.worker import Worker, WorkerSummary

_ROUNDED_MS = 1.0
"""Due times are whole milliseconds, rounded up, so this much more makes a task of in_=60 due after forward(60)."""
_LATEST_MS = datetime(9999, 1, 1, tzinfo=UTC).timestamp() * 1000
"""Latest instant of the clock: a datetime can be at most a year later."""
_YEAR_MS = 365.25 * 86_400_000
_BOOT_MS = -since_boot() * 1000 + time_ns() / 1e6
"""When this machine was started, Unix ms. The clock of a test goes by this, as freezegun and time-machine stop or move
Python's clock, and not that of the server."""


class Travel:
    """The clock of a client (`now_ms=`): the server's own until it is moved, then this machine's plus the distance
    moved.

    It continues from the instant that it was moved to and never goes back, as the time of a queue never does. `before`
    has functions that are called before each move, so that events at times in between are not missed.
    """

    def __init__(self) -> None:
        self.before: list[Callable[[], None]] = []
        self._ahead_ms = 0.0

    def __call__(self) -> bytes:
        return repr(self.now_ms).encode() if self._ahead_ms else b""

    @property
    def now_ms(self) -> float:
        """The present, Unix ms."""
        present_ms = math.floor(since_boot() * 1000 + _BOOT_MS)
        return present_ms + self._ahead_ms + (_ROUNDED_MS if self._ahead_ms else 0.0)

    @property
    def now(self) -> datetime:
        """The present; aware, UTC."""
        return from_ms(self.now_ms)

    def forward(self, by: Duration) -> datetime:
        """Moves the clock by a timedelta or seconds, and returns its new present. Raises InvalidOption."""
        by_s = seconds(by, option="travel.forward")
        if self.now_ms + by_s * 1000 > _LATEST_MS:
            raise InvalidOption(f"travel.forward is {by_s:.15g} s, and it is {self.now.isoformat()}: stay before 9999")
        for look in self.before:
            look()
        self._ahead_ms += by_s * 1000
        return self.now

    def to(self, instant: datetime) -> datetime:
        """Moves the clock to an aware datetime that is not past. Raises NaiveDatetime, InvalidOption."""
        if instant.tzinfo is None:
            raise NaiveDatetime(f"travel.to({instant.isoformat()}) has no time zone; write datetime(…, tzinfo=UTC)")
        by = instant - self.now
        if by < timedelta(0):
            raise InvalidOption(f"travel.to({instant.isoformat()}): it is {self.now.isoformat()}; give a later instant")
        return self.forward(by)


_LOOK_S = 0.005
_LOOKS_AT_SHARDS = 500
"""How often a hold is found before it ends a run: a worker checks once a second whether a limit should move to a
shard."""
_MOST_JOURNEYS, _JOURNEYS_OF_A_TASK = 1000, 25
"""Most moves of the clock while the number of open tasks does not fall: for the whole run, and in addition for each
open task, as each may have a due time of its own for each of its attempts."""
_LIMIT_S = 60.0
_GIVE_UP_S = 1.0
_BY_HAND = 0


@dataclass(frozen=True, slots=True)
class RunSummary(WorkerSummary):
    """Totals of one run of the worker of a test."""

    held: tuple[Hold, ...] = ()
    """Queues whose waiting tasks could not be handed out when the run ended, each with the pause or the limit."""


class Journeys:
    """Counts the moves of the clock since the number of open tasks last fell."""

    def __init__(self) -> None:
        self.made = 0
        self._fewest = math.inf

    def note(self, left: int) -> None:
        """Counts a move of the clock while `left` tasks are open."""
        if left < self._fewest:
            self._fewest, self.made = left, 0
        self.made += 1

    @property
    def are_endless(self) -> bool:
        """Whether tasks appear to be rescheduled without end."""
        return self.made >= _MOST_JOURNEYS + _JOURNEYS_OF_A_TASK * self._fewest


class JobrunnerWorker:
    """Runs a client's tasks with a real Worker until nothing is left. Periodic jobs fire by the clock of `travel`.

    Their schedules begin at its creation: only later ticks fire.
    """

    def __init__(self, client: Client, travel: Travel) -> None:
        self._client = client
        self._travel = travel
        self._fire = PeriodicTicks(broker_of(client), keys_of(client), encryption_of(client))
        travel.before.append(self._fire_periodic)
        self._fire_periodic()

    def run(
        self,
        *,
        drain: bool = False,
        queues: Iterable[str] | Mapping[str, int] | None = None,
        timeout: Duration = _LIMIT_S,
        **options: Any,
    ) -> RunSummary:
        """Runs until no task is waiting or pending, or until pauses and limits hold all waiting tasks; `held` of the
        summary then names these. With `drain`, runs until no task is scheduled either: the clock moves to each due time
        and to the refill of each limit, so retries and tasks of next month run now.

        `queues`: as of Worker; default those of all jobs, and others with tasks of jobs in them. `options` are those of
        Worker. Raises TaskTimeout when the run has not ended after `timeout`, UsageError when tasks are rescheduled
        without end, or when the next task is due in more than a century.
        """
        limit_s = seconds(timeout, option="timeout")
        self._fire_periodic()
        refuse_text(queues, "queues")
        weights = dict.fromkeys(self._queues(), 1) if queues is None else served_queues(queues, self._client)
        served = with_shards(self._client, list(weights))
        if not self._any_left(served, drain):
            return RunSummary(0, 0, 0.0)
        worker = Worker(queues=weights, client=self._client, **options)
        watched = _WatchedRun(self, worker, served, drain, limit_s)
        done = watched.run()
        held = watched.ended_by or find_holds(self._client, served).holds
        return RunSummary(done.finished, done.released, done.seconds, held)

    __call__ = run

    def held_by(self, served: list[str], *, drain: bool, journeys: Journeys) -> tuple[Hold, ...]:
        """The holds of all waiting tasks; empty while a task runs, or can be handed out now. With `drain` moves the
        clock to an instant at which a task can be. Raises ServerError, UsageError."""
        found = find_holds(self._client, served)
        if found.moves:
            return ()
        if not drain:
            return found.holds
        due = [(due_ms, name) for name in served if (due_ms := self._first_due(name)) is not None]
        lifts = [(hold.lifts_ms, hold.queue) for hold in found.holds if hold.lifts_ms is not None]
        if not due and not lifts:
            return found.holds if any(hold.why != "a pause" for hold in found.holds) else ()
        soonest = min([*due, *lifts])
        if soonest in due:
            journeys.note(sum(one.open for one in self._counts(served)))
        self._travel_to(*soonest)
        self._fire_periodic()
        keys = keys_of(self._client)
        broker_of(self._client).run_many([queues.wake(keys.queue(hold.queue)) for hold in found.holds])
        return ()

    def _travel_to(self, instant_ms: float, queue: str) -> None:
        ahead_ms = max(instant_ms - self._travel.now_ms + 1, 1)
        try:
            self._travel.forward(ahead_ms / 1000)
        except InvalidOption as error:
            raise UsageError(
                f"the next task of queue {queue!r} is {ahead_ms / _YEAR_MS:,.0f} years ahead, and the clock cannot "
                f"travel there: {error}. Cancel such a task, or use run() without drain=True"
            ) from error

    def problem(self, served: list[str]) -> str:
        """Describes the tasks that are left in the queues."""
        try:
            return left_over(self._client, served)
        except ServerError as error:
            return f"the server cannot be asked: {error}"

    def _fire_periodic(self) -> None:
        periodics = [job for job in all_jobs() if job.periodic is not None]
        keys, now_ms = keys_of(self._client), self._travel.now_ms
        if not periodics and not broker_of(self._client).run(leader_calls.added_periodics(keys)):
            return
        begun = [
            leader_calls.start_periodic(keys.queue(job.options.queue), job.name, round(now_ms)) for job in periodics
        ]
        if periodics:
            named = queues.register(keys, sorted({job.options.queue for job in periodics}))
            defined = leader_calls.define_periodics(keys, published(periodics, encryption_of(self._client)))
            broker_of(self._client).run_many([*begun, *named, defined])
        self._fire.forget()
        self._fire.step(_BY_HAND, from_ms(now_ms))

    def _queues(self) -> list[str]:
        of_jobs = set(default_queues())
        others = {name for name in self._client.queues() if name not in of_jobs and self._has_jobs(name)}
        return sorted(of_jobs | others)

    def _has_jobs(self, name: str) -> bool:
        for keys in map(keys_of(self._client).queue, with_shards(self._client, [name])):
            for state in ("waiting", "scheduled"):
                for task_id in broker_of(self._client).run(queues.ids(keys, state, start=0, count=1)):
                    with suppress(TaskGone):
                        return bool(self._client.task(task_id, queue=name).record().type)
        return False

    def _any_left(self, served: list[str], drain: bool) -> bool:
        counted = self._counts(served)
        return any(found.waiting or found.pending or (drain and found.scheduled) for found in counted)

    def _counts(self, served: list[str]) -> list[queues.QueueCounts]:
        return broker_of(self._client).run_many([queues.counts(keys_of(self._client).queue(name)) for name in served])

    def _first_due(self, name: str) -> float | None:
        scheduled = keys_of(self._client).queue(name).scheduled
        first = command("ZRANGE", scheduled, 0, 0, "WITHSCORES", read=lambda reply: reply)
        reply = broker_of(self._client).run(first)
        return float(reply[1]) if reply else None


class _WatchedRun:
    """One run of a worker. A thread watches it, moves the clock, and ends a run that cannot go on."""

    def __init__(
        self, fixture: JobrunnerWorker, worker: Worker, served: list[str], drain: bool, limit_s: float
    ) -> None:
        self._fixture = fixture
        self._worker = worker
        self._served = served
        self._drain = drain
        self._limit_s = limit_s
        self._over = threading.Event()
        self._journeys = Journeys()
        self._is_late = False
        self._error: Exception | None = None
        self.ended_by: tuple[Hold, ...] = ()
        """The holds of all waiting tasks, if they ended the run."""

    def run(self) -> WorkerSummary:
        """Runs the worker to its end. Raises as JobrunnerWorker.run."""
        watcher = threading.Thread(target=self._watch, name="jobrunner-travel", daemon=True)
        watcher.start()
        try:
            summary = self._worker.run(burst=not self._drain, drain=self._drain)
        finally:
            self._over.set()
            watcher.join()
        if self._error is not None:
            raise self._error
        if self._journeys.are_endless:
            raise UsageError(
                f"the clock travelled to {self._journeys.made} due times and no fewer tasks were left: a job keeps "
                "rescheduling itself; use run() without drain=True, and travel by hand"
            )
        if self._is_late:
            raise TaskTimeout(
                f"jobrunner_worker.run() was stopped after timeout={self._limit_s:g} s: "
                f"{self._fixture.problem(self._served)}; give run(timeout=…) another limit"
            )
        return summary

    def _watch(self) -> None:
        try:
            self._look_after()
        except Exception as error:  # no other thread would end the run
            self._error = error
            self._end()

    def _look_after(self) -> None:
        ends = monotonic() + self._limit_s
        stands_still = 0
        held: tuple[Hold, ...] = ()
        while not self._over.wait(_LOOK_S):
            self._is_late = monotonic() > ends
            if stands_still > (_LOOKS_AT_SHARDS if self._may_shift(held) else 1):
                self.ended_by = held
            if self._is_late or self._journeys.are_endless or self.ended_by:
                self._end()
                return
            with suppress(ServerError):
                held = () if self._worker.in_hand else self._fixture.held_by(
                    self._served, drain=self._drain, journeys=self._journeys
                )
                stands_still = stands_still + 1 if held else 0

    def _may_shift(self, held: Sequence[Hold]) -> bool:
        """Whether a worker may move a limit between the shards of a queue, which takes about a second."""
        of_shards = Counter(map(whole_queue, self._served))
        return any(hold.why != "a pause" and of_shards[whole_queue(hold.queue)] > 1 for hold in held)

    def _end(self) -> None:
        """Asks the worker to stop, and does not wait for a running job."""
        self._worker.ask_to_stop()
        if self._is_late and not self._over.wait(_GIVE_UP_S):
            self._worker.ask_to_stop()
