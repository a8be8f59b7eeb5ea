"""Turns of the fetch loop, one `step()` at a time, on a real server with an executor that only keeps what it gets."""

import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import structlog
from structlog.testing import capture_logs

from jobrunner import Client, RateLimit
from jobrunner.attempt import SUSPECT, Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.calls import leases
from jobrunner.broker.calls.leases import Reservation
from jobrunner.broker.keys import Keys
from jobrunner.broker.redis_errors import error_of_reply, server_error
from jobrunner.client.client import broker_of
from jobrunner.clock import monotonic, perf_counter, unix_ms
from jobrunner.encryption.cipher import PayloadEncryption
from jobrunner.errors import JobrunnerError, OutcomeUnknown, ServerError, ServerRefused, ServerUnavailable
from jobrunner.inspector.limit_use import tokens_left
from jobrunner.inspector.stats import series
from jobrunner.outcome import Acknowledged, Failed, Moved, Outcome, Released, Succeeded, Unknown
from jobrunner.worker.fetch import fetcher, intake, quarantine, reserve_plan, waiting_reports, wakeups
from jobrunner.worker.fetch.fetcher import Fetcher
from jobrunner.worker.fetch.intake import TaskParts
from jobrunner.worker.fetch.reserve_plan import Prefetch, QueueRotation
from jobrunner.worker.fetch.waiting_reports import Backpressure, UndeliveredReports
from jobrunner.worker.report import stats
from jobrunner.worker.report.attempt_log import AttemptLog
from jobrunner.worker.report.report_calls import Report
from jobrunner.worker.report.reported_outcome import QueueBackoffs, UnknownJobs
from jobrunner.worker.report.stats import StatsRecorder
from jobrunner.worker.run.executor import CannotStartError, FinishedAttempts
from tests.support.stopped_clock import stopped
from tests.unit.worker.attempts import attempt_at

USUAL_KEEPALIVE = 3
"""Where the reply to a reserve has the length of its leases."""


class Shelf:
    """An executor with some slots that begins attempts only when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Attempt] = []
        self.nudged = 0

    @property
    def backlog(self) -> int:
        return len(self.waiting)

    def submit(self, attempts: list[Attempt]) -> None:
        self.waiting += attempts

    def nudge(self) -> None:
        self.nudged += 1

    def problem(self) -> str:
        return ""

    def take_back(self) -> list[Attempt]:
        taken, self.waiting = self.waiting, []
        return taken

    def begin(self, count: int = 1000) -> list[Attempt]:
        """The next attempts are in slots now."""
        begun, self.waiting = self.waiting[:count], self.waiting[count:]
        return begun


class Held:
    """Replaces the lease keeper and records its calls."""

    def __init__(self) -> None:
        self.tokens: dict[str, float] = {}
        self.is_ready = True
        self.is_missing = False

    def clear(self, attempt: Attempt) -> None:
        """Of its suspicion."""

    def took(self, lowest: int, highest: int) -> None:
        """Numbers of leases."""

    def can_keep(self, attempts: list[Attempt]) -> bool:
        return self.is_ready

    def hold(self, attempts: list[Attempt], since_s: float) -> None:
        self.tokens.update((attempt.token, since_s) for attempt in attempts)

    def drop(self, attempts: Any) -> None:
        for attempt in attempts:
            self.tokens.pop(attempt.token, None)


class Ear:
    """In the place of the wake-up thread."""

    def __init__(self) -> None:
        self.is_armed = False
        self.can_bring = True
        self.calls: Sequence[Call[Reservation]] = ()

    def arm(self, plan: Callable[[], Sequence[Call[Reservation]]]) -> None:
        self.is_armed, self.calls = True, plan()


class Bench:
    """A fetcher with all that it works with."""

    def __init__(
        self, broker: Any, keys: Keys, *, slots: int = 3, queues: Iterable[str] | dict[str, int] = ("q",),
        max_tasks: int = 0, prefetch_s: float = 0.03, leases_are_short: bool = False, encryption: Any = None,
        unknown_grace: float = 0.0,
    ) -> None:  # fmt: skip
        self.shelf, self.held, self.ear = Shelf(), Held(), Ear()
        self.finished = FinishedAttempts(lambda: None)
        weights = queues if isinstance(queues, dict) else dict.fromkeys(queues, 1)
        self.turns = QueueRotation(weights, 15.0)
        self.stock = Prefetch(slots, prefetch_s, 500)
        self.figures = StatsRecorder(broker, keys, "w")
        parts = TaskParts(
            broker, keys, encryption, "host.1.00c0de", self.turns, self.stock, self.shelf, self.finished,  # type: ignore[arg-type]
            self.held, self.ear, self.figures, AttemptLog(), UnknownJobs(unknown_grace),  # type: ignore[arg-type]
            leases_are_short=leases_are_short,
        )  # fmt: skip
        self.fetcher = Fetcher(parts, max_tasks=max_tasks)
        self.step = self.fetcher.step

    def begun(self, steps: int = 1) -> list[Attempt]:
        for _ in range(steps):
            self.step()
        return self.shelf.begin()


class Unreachable:
    """A broker that loses the replies that the test names."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.endpoint: Any = broker.endpoint
        self.losing = False

    def connect(self) -> None:
        self._broker.connect()

    def run(self, call: Any) -> Any:
        return self._broker.run(call)

    def run_each(self, calls: Any, meanwhile: Any = None) -> list[Any]:
        replies = self._broker.run_each(calls, meanwhile)
        if self.losing:
            raise OutcomeUnknown("the connection broke")
        return replies


class LosingOne(Unreachable):
    """A broker to a cluster of which one node loses the replies, while others answer."""

    def run_each(self, calls: Any, meanwhile: Any = None) -> list[Any]:
        replies = self._broker.run_each(calls, meanwhile)
        return [OutcomeUnknown("that node is away") for _ in replies] if self.losing else replies


@pytest.fixture(autouse=True)
def _polls_nothing_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test process that is stopped for a fifth of a second would ask the server once more."""
    monkeypatch.setattr(fetcher, "_POLL_ALL_S", 600.0)


@pytest.fixture
def bench(broker: Broker, keys: Keys) -> Bench:
    return Bench(broker, keys)


def push(client: Client, count: int, queue: str = "q") -> list[str]:
    return client.queue(queue).push_many(range(count))


def test_it_takes_what_its_slots_can_take_in_order(bench: Bench, client: Client) -> None:
    ids = push(client, 5)
    assert [attempt.id for attempt in bench.begun()] == ids[:3]
    assert client.queue("q").counts()["pending"] == 3


def test_the_keeper_knows_every_task_it_hands_over(bench: Bench, client: Client) -> None:
    push(client, 2)
    assert {attempt.token for attempt in bench.begun()} == set(bench.held.tokens)


def test_reports_and_reserves_go_in_one_round_trip(broker: Broker, keys: Keys, client: Client) -> None:
    class Counting(Unreachable):
        trips = 0

        def run_each(self, calls: Any, meanwhile: Any) -> list[Any]:
            self.trips += 1
            return self._broker.run_each(calls, meanwhile)

    way = Counting(broker)
    bench = Bench(way, keys)
    push(client, 6)
    first, second, third = bench.begun()
    bench.finished.add(first, Succeeded())
    bench.finished.add(second, Failed("no", 60.0))
    bench.finished.add(third, Released())
    bench.step()
    assert way.trips == 2
    assert client.queue("q").counts() == {"waiting": 1, "scheduled": 1, "pending": 3, "dead": 0, "done": 0}


def test_a_busy_worker_takes_note_of_its_reports_while_the_server_works_on_the_next(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(client, 6)
    first = bench.begun()
    for attempt in first:
        bench.finished.add(attempt, Succeeded())
    monkeypatch.setattr(bench.fetcher, "_pause", lambda: 0.0)

    second = bench.begun()
    assert set(bench.held.tokens) == {attempt.token for attempt in [*first, *second]}
    assert bench.fetcher.in_hand == 4, "three that run, and what is not noted yet"

    for attempt in second:
        bench.finished.add(attempt, Succeeded())
    bench.step()
    assert set(bench.held.tokens) == {attempt.token for attempt in second}

    bench.fetcher.reserving = False
    bench.step()
    assert (bench.held.tokens, bench.fetcher.in_hand) == ({}, 0)


@pytest.mark.parametrize(("count", "listens"), [(2, True), (3, False)])
def test_while_slots_are_free_it_listens_for_what_comes_as_its_tasks_are_about_to_begin(
    bench: Bench, client: Client, count: int, listens: bool
) -> None:
    push(client, count)
    assert bench.step() == 0.005
    assert bench.shelf.backlog == count
    assert bench.ear.is_armed is listens
    assert bench.finished.notify_at == 256, "outcomes are reported together all the same"


def test_each_outcome_ends_where_it_should(bench: Bench, client: Client) -> None:
    push(client, 3)
    good, bad, back = bench.begun()
    bench.finished.add(good, Succeeded(b"1"))
    bench.finished.add(bad, Failed("no", 60.0))
    bench.finished.add(back, Released())
    bench.fetcher.reserving = False
    bench.step()
    assert client.queue("q").counts() == {"waiting": 1, "scheduled": 1, "pending": 0, "dead": 0, "done": 0}
    assert bench.held.tokens == {}
    assert bench.fetcher.in_hand == 0


def test_what_was_acknowledged_early_is_not_reported_again(bench: Bench, client: Client) -> None:
    push(client, 1)
    (attempt,) = bench.begun()
    bench.finished.add(attempt, Acknowledged())
    bench.step()
    assert client.queue("q").counts()["pending"] == 1, "no report was sent"
    assert bench.held.tokens == {}
    assert (bench.fetcher.in_hand, bench.fetcher.finished_total) == (0, 1)


def test_an_outcome_that_cannot_be_encrypted_fails_its_own_task_alone(
    broker: Broker, keys: Keys, client: Client
) -> None:
    """All reports of that turn were lost: their leases were renewed for ever, and their slots were never free."""
    bench = Bench(broker, keys, encryption=PayloadEncryption([b64encode(bytes(32)).decode()], prefix=keys.prefix))
    good, bad = push(client, 2)
    for attempt in bench.begun():
        if attempt.id == good:
            bench.finished.add(attempt, Succeeded())
        else:
            attempt.payload, attempt.encoding = b"x", b"sealed/1 damaged"
            bench.finished.add(attempt, Moved(queue="q"))
    bench.step()

    assert (bench.held.tokens, bench.fetcher.in_hand) == ({}, 0)
    assert client.queue("q").totals()["succeeded"] == 1
    assert "DecryptionFailed" in str(client.task(bad).record().error)


def test_what_is_handed_back_is_no_finished_task(bench: Bench, client: Client) -> None:
    push(client, 3)
    for attempt in bench.begun():
        bench.finished.add(attempt, Released())
    bench.fetcher.reserving = False
    bench.step()
    assert bench.fetcher.finished_total == 0
    assert bench.stock.depth == 0


def test_a_report_whose_reply_was_lost_is_sent_again(broker: Broker, keys: Keys, client: Client) -> None:
    """MOSQ-02, R10: the second report returns that the task is gone, and changes nothing."""
    way = Unreachable(broker)
    bench = Bench(way, keys)
    push(client, 1)
    (attempt,) = bench.begun()
    bench.finished.add(attempt, Succeeded())
    way.losing = True
    for _ in range(2):
        with pytest.raises(ServerError):
            bench.step()
        assert bench.held.tokens, "its lease is kept until the server answered"
        assert bench.fetcher.in_hand == 1
    way.losing = False
    bench.step()
    assert (bench.held.tokens, bench.fetcher.in_hand) == ({}, 0)
    assert client.queue("q").totals()["succeeded"] == 1


def test_a_turn_that_asked_only_a_node_that_is_away_listens_to_the_others(broker: Broker, keys: Keys) -> None:
    """It ended without that, so a task on another node waited until the loop asked again: up to three seconds."""
    way = Unreachable(broker)
    way.endpoint = SimpleNamespace(cluster=object())
    bench = Bench(way, keys)
    way.losing = True
    with pytest.raises(OutcomeUnknown):
        bench.step()
    assert bench.ear.is_armed
    assert bench.turns.until_next() > 0, "the queue rests"


@pytest.mark.parametrize("of_a_node", [False, True])
def test_reports_whose_reply_was_lost_are_not_counted_as_stale(
    broker: Broker, keys: Keys, client: Client, monkeypatch: pytest.MonkeyPatch, of_a_node: bool
) -> None:
    """Beside one that was stale before, and reserves, for which the driver sends nothing again by itself."""
    now = [monotonic()]
    monkeypatch.setattr(waiting_reports, "monotonic", lambda: now[0])
    way = LosingOne(broker) if of_a_node else Unreachable(broker)
    bench = Bench(way, keys, slots=4)
    ids = push(client, 5)
    good, bad, gone, late = bench.begun()
    client.queue("q").delete(ids[2])
    bench.finished.add(gone, Failed("deleted"))
    bench.step()
    bench.finished.add(good, Succeeded())
    bench.finished.add(bad, Failed("no"))
    way.losing = True
    with suppress(OutcomeUnknown):
        bench.step()
    way.losing = False
    client.queue("q").delete(ids[3])
    bench.finished.add(late, Failed("deleted later"))
    now[0] += 3.0
    bench.step()
    bench.step()
    bench.figures.flush()

    assert bench.fetcher.in_hand == 1
    assert series(client, queue="q").total.counts == {"succeeded": 1, "failed": 1, "stale": 2}


class Refusing(Unreachable):
    """A broker whose server refuses the first call of each exchange, or with `error` all of them, while the test says
    so."""

    error: JobrunnerError | None = None

    def run_each(self, calls: Any, meanwhile: Any) -> list[Any]:
        if self.losing and self.error is not None:
            return [self.error] * len(calls)
        replies = self._broker.run_each(calls, meanwhile)
        return [ServerError("refused"), *replies[1:]] if self.losing else replies


def test_what_was_reserved_beside_a_refused_report_is_taken_in(broker: Broker, keys: Keys, client: Client) -> None:
    """Otherwise its attempt would be spent, and no worker would run it until its lease ends."""
    way = Refusing(broker)
    bench = Bench(way, keys)
    push(client, 6)
    for attempt in bench.begun():
        bench.finished.add(attempt, Succeeded())
    way.losing = True
    bench.step()
    assert isinstance(bench.fetcher.refusal, JobrunnerError)
    assert len(bench.shelf.waiting) == 3


def test_refused_reports_are_sent_one_by_one(broker: Broker, keys: Keys, client: Client) -> None:
    """So one that cannot be taken does not hold up the others."""
    way = Refusing(broker)
    bench = Bench(way, keys)
    push(client, 3)
    for attempt in bench.begun():
        bench.finished.add(attempt, Succeeded())
    way.losing = True
    for _ in range(2):
        bench.step()
    assert bench.fetcher.in_hand == 1


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of reports that wait and of queues that rest, which stands still."""
    now = [monotonic()]
    for module in (waiting_reports, reserve_plan):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


def test_reports_that_are_refused_for_a_minute_are_given_up(
    broker: Broker, keys: Keys, client: Client, now: list[float]
) -> None:
    """Not after a number of turns, as each task that ends begins one."""
    way = Refusing(broker)
    bench = Bench(way, keys)
    push(client, 1)
    (attempt,) = bench.begun()
    bench.finished.add(attempt, Succeeded())
    way.losing = True
    for _ in range(100):
        bench.fetcher.loop.turn()
        now[0] += 0.59
    assert (list(bench.held.tokens), bench.fetcher.in_hand) == ([attempt.token], 1)
    for _ in range(10):
        bench.fetcher.loop.turn()
        now[0] += 0.59
    way.losing = False
    bench.fetcher.loop.turn()
    assert (bench.held.tokens, bench.fetcher.in_hand) == ({}, 0)


class Damaged(Unreachable):
    """A broker whose server refuses all commits in one queue while the test says so, and counts them."""

    def __init__(self, broker: Broker, key: bytes) -> None:
        super().__init__(broker)
        self._key = key
        self.tries = 0

    def run_each(self, calls: Any, meanwhile: Any) -> list[Any]:
        replies = []
        for call in calls:
            is_commit = call.script is not None and call.script.name == "commit"
            is_refused = self.losing and is_commit and call.keys[0].startswith(self._key)
            self.tries += is_refused
            replies += [ServerRefused("WRONGTYPE")] if is_refused else self._broker.run_each([call], lambda: None)
        meanwhile()
        return replies


@pytest.mark.parametrize("count", [64, 65, 500])
def test_reports_that_are_all_refused_leave_their_queue_without_a_turn_and_slow_no_other(
    broker: Broker, keys: Keys, client: Client, now: list[float], count: int
) -> None:
    """Each turn with such reports alone backed off, and the worker took ever more tasks that it could not report: one
    of two queues with 30,000 tasks each went on with 400 of 8,000 tasks a second."""
    way = Damaged(broker, keys.queue("bad").base)
    bench = Bench(way, keys, queues=("bad", "good"), slots=20)
    push(client, count, "bad")
    push(client, 200, "good")
    way.losing = True
    began = bad = 0
    for _ in range(400):
        bench.step()  # raises nothing, so the loop does not back off
        for attempt in bench.shelf.begin():
            began += 1
            bad += attempt.queue == "bad"
            bench.finished.add(attempt, Succeeded())
        now[0] += 0.05
    bench.step()
    assert client.queue("good").totals()["succeeded"] == 200
    assert bad == count if count <= 65 else 65 <= bad < 65 + 2 * 20, "what was in hand when there were too many"
    assert way.tries < 20 / 1.5 * bad + 5 * bad, "in 20 s, with pauses that grow to between 1.5 and 3 s"

    way.losing = False
    now[0] += 3.0
    for _ in range(4 + 2 * count // 20):
        bench.step()
        for attempt in bench.shelf.begin():
            bench.finished.add(attempt, Succeeded())
    assert client.queue("bad").totals()["succeeded"] == count
    assert (bench.held.tokens, bench.fetcher.in_hand) == ({}, 0)


def test_refused_reports_are_tried_together(broker: Broker, keys: Keys, client: Client, now: list[float]) -> None:
    """A turn for each would cost a round trip for each."""
    way = Damaged(broker, keys.queue("bad").base)
    bench = Bench(way, keys, queues=("bad",), slots=60)
    push(client, 60, "bad")
    way.losing = True
    for attempt in bench.begun(3):
        bench.finished.add(attempt, Succeeded())
    with_tries = 0
    for _ in range(1000):
        before = way.tries
        bench.step()
        with_tries += way.tries > before
        now[0] += 0.01
    assert way.tries > 60 * 3, "in 10 s"
    assert with_tries <= 10 / 0.1


@pytest.mark.parametrize("is_away", [False, True])
def test_at_the_end_all_reports_are_tried_and_tasks_that_did_not_begin_are_left_to_be_released(
    broker: Broker, keys: Keys, client: Client, now: list[float], is_away: bool
) -> None:
    """Whatever pause they are in. Tasks whose release was refused stayed until their leases ended, and were dead if
    they had one attempt."""
    way = HalfAway(broker, keys.queue("q").base) if is_away else Refusing(broker)
    if isinstance(way, Refusing):
        way.error = server_error(error_of_reply("NOREPLICAS Not enough good replicas"))
        way.error.__cause__ = error_of_reply("NOREPLICAS Not enough good replicas")
    bench = Bench(way, keys)
    push(client, 3)
    first, second, unbegun = bench.begun()
    bench.fetcher.reserving = False
    for attempt, outcome in [(first, Succeeded()), (second, Succeeded()), (unbegun, Released())]:
        bench.finished.add(attempt, outcome)
    way.losing = True
    for _ in range(20):
        bench.fetcher.loop.turn()
        now[0] += 3.0
    assert bench.fetcher.in_hand == 3
    bench.fetcher.loop.turn()  # just now, so the next is in over a second
    way.losing = False
    bench.fetcher.reporting.end()
    bench.step()

    assert client.queue("q").totals()["succeeded"] == 2
    assert (bench.fetcher.reporting.tokens, list(bench.held.tokens)) == (set(), [unbegun.token])


@pytest.mark.parametrize("reply", ["NOREPLICAS Not enough good replicas", "MISCONF disk", "OOM maxmemory", "READONLY"])
def test_reports_wait_as_long_as_the_server_takes_no_writes(
    broker: Broker, keys: Keys, client: Client, now: list[float], reply: str
) -> None:
    """They were given up after fifty turns, some three seconds, and the tasks ran twice."""
    way = Refusing(broker)
    bench = Bench(way, keys)
    push(client, 3)
    attempts = bench.begun()
    for attempt in attempts:
        bench.finished.add(attempt, Succeeded())
    way.losing = True
    way.error = server_error(error_of_reply(reply))
    way.error.__cause__ = error_of_reply(reply)
    for _ in range(100):
        bench.fetcher.loop.turn()
        now[0] += 3.0
    assert bench.held.tokens.keys() == bench.fetcher.reporting.tokens == {one.token for one in attempts}
    way.losing = False
    bench.fetcher.loop.turn()

    assert client.queue("q").totals()["succeeded"] == 3
    assert (bench.held.tokens, bench.fetcher.in_hand) == ({}, 0)


def test_a_refused_report_holds_up_no_other_queue(
    broker: Broker, keys: Keys, client: Client, raw: redis.Redis, now: list[float]
) -> None:
    """Each refusal was a failure of the loop, and the next turn began after a back-off of up to three seconds."""
    bench = Bench(broker, keys, slots=4, queues=("broken", "good"))
    push(client, 1, "broken")
    (attempt,) = bench.begun(2)
    raw.delete(keys.queue("broken").counters)
    raw.set(keys.queue("broken").counters, "no hash")
    bench.finished.add(attempt, Succeeded())
    for _ in range(20):
        push(client, 1, "good")
        bench.turns.wake("good")
        now[0] += 1.1
        assert bench.fetcher.loop.turn() <= 1.1
        (good,) = bench.shelf.begin()
        bench.finished.add(good, Succeeded())
    assert bench.fetcher.reporting.tokens == {attempt.token, good.token}


@pytest.fixture
def good_and_bad(bench: Bench, client: Client) -> set[str]:
    """Tokens of an attempt that has succeeded and one that has failed, neither reported; a third is handed back."""
    push(client, 3)
    good, bad, back = bench.begun()
    bench.finished.add(good, Succeeded())
    bench.finished.add(bad, Failed("no"))
    bench.finished.add(back, Released())
    return {good.token, bad.token}


def test_attempts_that_ended_are_known_while_the_server_is_asked_how_to_report_one(
    bench: Bench, good_and_bad: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that stopped in that moment handed the others back as if they had not ended, and they ran again."""
    known: list[set[str]] = []
    ask = QueueBackoffs.reported

    def asked(backoffs: QueueBackoffs, attempt: Attempt, outcome: Failed) -> Failed:
        known.append(bench.fetcher.reporting.tokens)
        return ask(backoffs, attempt, outcome)

    monkeypatch.setattr(QueueBackoffs, "reported", asked)
    bench.step()

    assert known == [good_and_bad]
    assert bench.fetcher.reporting.tokens == set()


def test_attempts_that_ended_are_known_when_the_fetch_loop_takes_them_in_meanwhile(
    bench: Bench, good_and_bad: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = FinishedAttempts.copy

    def moving_on(finished: FinishedAttempts) -> Sequence[Report]:
        reports = copy(finished)
        bench.fetcher.reporting.collect()
        return reports

    monkeypatch.setattr(FinishedAttempts, "copy", moving_on)

    assert bench.fetcher.reporting.tokens == good_and_bad


def test_undelivered_reports_can_be_listed_while_more_are_kept() -> None:
    undelivered = UndeliveredReports()
    undelivered.keep([(attempt_at("t", queue="a"), Succeeded())], ServerUnavailable("away"))
    tokens = undelivered.tokens()
    undelivered.keep([(attempt_at("t", queue="b"), Succeeded())], ServerUnavailable("away"))

    assert len(list(tokens)) == 1


@pytest.mark.parametrize("of", [Backpressure, UndeliveredReports])
def test_reports_that_wait_can_be_counted_while_more_are_kept(bench: Bench, of: type) -> None:
    """By the main thread, which ended a burst or a stop with `dictionary changed size during iteration`."""
    full = Moved(queue="p/full")
    if of is Backpressure:
        waiting: Any = bench.fetcher.reporting.backpressure
        keep, by_queue = waiting.keep, waiting._held_up
    else:
        waiting = UndeliveredReports()
        keep, by_queue = lambda report: waiting.keep([report], ServerUnavailable("away")), waiting._queues

    class Meanwhile(list[Report]):
        def __len__(self) -> int:
            keep((attempt_at("t", queue="b"), full))
            return super().__len__()

    keep((attempt_at("t", queue="a"), full))
    by_queue["a"].reports = Meanwhile(by_queue["a"].reports)

    assert len(waiting) == 1


class HalfAway(Unreachable):
    """A broker of a cluster; the server of one queue does not answer while the test says so."""

    def __init__(self, broker: Broker, key: bytes) -> None:
        super().__init__(broker)
        self._key = key
        self.tries = 0

    def run_each(self, calls: Any, meanwhile: Any) -> list[Any]:
        gone = [self.losing and any(key.startswith(self._key) for key in call.keys) for call in calls]
        self.tries += sum(gone)
        replies = iter(
            self._broker.run_each([call for call, is_gone in zip(calls, gone, strict=True) if not is_gone], meanwhile)
        )
        return [ServerUnavailable("no server") if is_gone else next(replies) for is_gone in gone]


def test_reports_whose_server_is_away_are_kept_until_it_is_back(
    broker: Broker, keys: Keys, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many turns that takes: with a single server a worker waits as long, too. The other queue goes on."""
    now = [monotonic()]
    monkeypatch.setattr(waiting_reports, "monotonic", lambda: now[0])
    way = HalfAway(broker, keys.queue("gone").base)
    bench = Bench(way, keys, queues=("gone", "good"), slots=40)
    push(client, 3, "gone")
    push(client, 200, "good")
    for attempt in bench.begun(2):
        bench.finished.add(attempt, Succeeded())
    way.losing = True
    for _ in range(200):
        now[0] += 0.5
        with suppress(ServerUnavailable):  # of what is reserved; no report says so
            bench.step()
        for attempt in bench.shelf.begin():
            bench.finished.add(attempt, Succeeded())
    with suppress(ServerUnavailable):
        bench.step()

    assert client.queue("good").totals()["succeeded"] == 200
    assert bench.fetcher.in_hand == len(bench.held.tokens) == len(bench.fetcher.reporting.tokens) == 3
    assert 30 < way.tries < 120, "in 100 s, with pauses that grow"
    way.losing = False
    now[0] += 3.0
    for _ in range(2):
        bench.step()
    assert client.queue("gone").totals()["succeeded"] == 3
    assert (bench.held.tokens, bench.fetcher.in_hand) == ({}, 0)


def test_the_next_try_of_such_reports_is_waited_for(broker: Broker, keys: Keys, client: Client) -> None:
    way = HalfAway(broker, keys.queue("gone").base)
    bench = Bench(way, keys, queues=("gone", "good"))
    push(client, 1, "gone")
    (attempt,) = bench.begun()
    bench.finished.add(attempt, Succeeded())
    bench.fetcher.reserving = False
    way.losing = True
    assert 0 < bench.step() <= 0.2
    assert not bench.finished, "it is kept"
    assert bench.fetcher.in_hand == 1


def test_suspects_of_one_queue_do_not_starve_another(
    broker: Broker, keys: Keys, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty that run for long, of a worker that crashed: one in five seconds of the worker is theirs at most."""
    now = [float(round(monotonic()))]
    for module in (fetcher, intake, quarantine, reserve_plan):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])
    push(client, 50, "bad")
    own = keys.queue("bad")
    held = broker.run(leases.reserve(own, 50, token="dead", keepalive_ms=60_000)).attempts
    broker.run(leases.crash(own, [(one.id, one.token, True) for one in held], reason="it died"))
    bench = Bench(broker, keys, queues=("bad", "good"), slots=20)
    begun, held_up = 0, 0
    for _ in range(800):
        push(client, 20, "good")
        bench.turns.wake("good")
        bench.step()
        for attempt in bench.shelf.begin():
            if attempt.queue == "good":
                bench.finished.add(attempt, Succeeded())
            begun += attempt.queue == "bad"
        held_up += bench.fetcher._quarantine.is_on
        now[0] += 0.125  # exact in binary: no sum of it is a little less than five seconds
    assert held_up <= 5 * 41, "five times five seconds, of 800 turns in 100 s"
    assert begun >= 3, "and they do have their turn"
    assert client.queue("good").totals()["succeeded"] > 8_000, "of 16 000"


def test_suspects_are_not_fetched_again_and_again_while_it_is_the_turn_of_others(
    broker: Broker, keys: Keys, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that was handed back came with a hint, and the hint with the same suspects: hundreds of times a second, each
    time for tokens of the rate."""
    clock = stopped(monkeypatch, fetcher, intake, quarantine, reserve_plan)
    rate = RateLimit(100, per=3600)
    client.queue("q").configure(rate=rate)
    push(client, 3)
    own = keys.queue("q")
    held = broker.run(leases.reserve(own, 3, token="dead", keepalive_ms=60_000)).attempts
    broker.run(leases.crash(own, [(one.id, one.token, True) for one in held], reason="it died"))
    bench = Bench(broker, keys, slots=4)
    (suspect,) = bench.begun(2)
    clock.now += 3.0
    bench.finished.add(suspect, Succeeded())
    bench.step()
    left = tokens_left(client, "q", rate)
    for _ in range(100):
        bench.fetcher.wakeups.woken(["q"], [])
        bench.step()
        if bench.ear.is_armed:
            bring(bench, client)
        assert bench.shelf.waiting == []
        clock.now += 1.9 / 100

    assert tokens_left(client, "q", rate) >= left - 2 * 4, "two for each of at most four reserves in two seconds"
    clock.now += 1.0
    (second,) = bench.begun(3)
    assert second.id != suspect.id


@pytest.mark.parametrize("outcome", [Succeeded(), Acknowledged()])
def test_others_begin_as_soon_as_a_suspect_ends(
    bench: Bench, broker: Broker, keys: Keys, client: Client, outcome: Outcome
) -> None:
    """Also when it was acknowledged early, so that nothing is reported at its end: the worker idled for 5 s."""
    push(client, 1)
    own = keys.queue("q")
    held = broker.run(leases.reserve(own, 1, token="dead", keepalive_ms=60_000)).attempts
    broker.run(leases.crash(own, [(one.id, one.token, True) for one in held], reason="it died"))
    (suspect,) = bench.begun(2)
    assert bench.fetcher._quarantine.is_on
    bench.finished.add(suspect, outcome)
    bench.step()
    assert not bench.fetcher._quarantine.is_on


def test_a_damaged_queue_holds_up_no_other(broker: Broker, keys: Keys, client: Client, raw: redis.Redis) -> None:
    bench = Bench(broker, keys, queues=("broken", "good"))
    raw.set(keys.queue("broken").waiting, "not a sorted set")
    push(client, 1, "good")
    bench.step()
    assert isinstance(bench.fetcher.refusal, ServerRefused)
    assert len(bench.begun()) == 1


def test_a_queue_that_rests_after_an_error_counts_as_recovered_when_it_answers(
    broker: Broker, keys: Keys, client: Client, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turns in between ask nothing of it. With nodes of a cluster away they said `recovered`, again and again."""
    structlog.reset_defaults()
    bench = Bench(broker, keys, queues=("broken", "good"))
    raw.set(keys.queue("broken").waiting, "not a sorted set")
    with capture_logs() as said:
        for _ in range(3):
            bench.fetcher.loop.turn()
        assert [entry["event"] for entry in said] == ["loop failed"]
        raw.delete(keys.queue("broken").waiting)
        watch = stopped(monkeypatch, reserve_plan)
        watch.now = monotonic() + 60
        bench.fetcher.loop.turn()
    assert [entry["event"] for entry in said] == ["loop failed", "recovered"]


def test_a_turn_after_the_stop_reserves_nothing_and_hands_the_backlog_back(bench: Bench, client: Client) -> None:
    push(client, 5)
    bench.step()
    running = bench.shelf.begin(1)
    bench.fetcher.reserving = False
    assert not bench.fetcher.quiet
    bench.step()
    assert bench.fetcher.quiet
    assert client.queue("q").counts() == {"waiting": 4, "scheduled": 0, "pending": 1, "dead": 0, "done": 0}
    assert bench.fetcher.in_hand == len(running)


def test_what_a_reserve_brings_after_the_stop_is_handed_back_unbegun(
    broker: Broker, keys: Keys, client: Client
) -> None:
    """The stop came while the reply was on its way."""

    class Slow(Unreachable):
        def run_each(self, calls: Any, meanwhile: Any) -> list[Any]:
            replies = self._broker.run_each(calls, meanwhile)
            bench.fetcher.reserving = False
            return replies

    bench = Bench(Slow(broker), keys)
    push(client, 2)
    bench.step()
    assert bench.shelf.waiting == []
    assert not bench.fetcher.quiet
    bench.step()
    assert bench.fetcher.quiet
    assert client.queue("q").counts() == {"waiting": 2, "scheduled": 0, "pending": 0, "dead": 0, "done": 0}


def test_a_reply_that_was_read_later_than_its_leases_last_is_not_begun(
    broker: Broker, keys: Keys, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job blocked the interpreter meanwhile, and other workers may hold the tasks by now. What is still its own goes
    back with no attempt spent."""

    class Late(Unreachable):
        def run_each(self, calls: Any, meanwhile: Any) -> list[Any]:
            replies = self._broker.run_each(calls, meanwhile)
            monkeypatch.setattr(intake, "monotonic", lambda: monotonic() + 31)
            return replies

    bench = Bench(Late(broker), keys)
    ids = push(client, 2)
    assert bench.begun() == []
    assert bench.held.tokens == {}, "the keeper would renew what is handed back"
    bench.fetcher.reserving = False
    bench.step()
    assert bench.fetcher.in_hand == 0
    assert [(task.id, task.attempts) for task in client.queue("q").tasks("waiting")] == [(one, 0) for one in ids]


def test_a_lease_that_is_shorter_than_the_way_of_its_reply_is_left_to_end(
    broker: Broker, keys: Keys, client: Client
) -> None:
    """Handed back, its task would come again at once, thousands of times a second."""

    class Slow(Unreachable):
        def run_each(self, calls: Any, meanwhile: Any) -> list[Any]:
            replies = self._broker.run_each(calls, meanwhile)
            replies[-1][USUAL_KEEPALIVE] = b"0"
            return replies

    bench = Bench(Slow(broker), keys)
    push(client, 2)
    assert bench.begun() == []
    assert bench.fetcher.in_hand == 0
    assert client.queue("q").counts()["pending"] == 2


class Seen(Unreachable):
    """A broker that notes what the executor had when each exchange was sent, and when it was answered."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.bench: Bench | None = None
        self.error: ServerUnavailable | None = None
        self.refusal: ServerRefused | None = None
        self.sent: list[int] = []
        self.worked_on: list[int] = []

    def run_each(self, calls: Any, meanwhile: Any) -> list[Any]:
        assert self.bench is not None
        self.sent.append(len(self.bench.shelf.waiting))
        if self.error is not None:
            raise self.error
        found = self._broker.run_each(calls, meanwhile)
        self.worked_on.append(len(self.bench.shelf.waiting))
        return found if self.refusal is None else [self.refusal, *found[1:]]


@pytest.fixture
def fast(broker: Broker, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A worker whose tasks are short: it may hold ten, and asks for five at a time."""
    way = Seen(broker)
    way.bench = bench = Bench(way, keys, slots=2)
    monkeypatch.setattr(Prefetch, "depth", 8)
    monkeypatch.setattr(bench.stock, "batch_max", 5)
    monkeypatch.setattr(bench, "way", way, raising=False)
    return bench


def test_a_full_reply_is_read_while_the_server_handles_the_next_exchange(fast: Bench, client: Client) -> None:
    push(client, 25)
    way: Any = fast.way  # type: ignore[attr-defined]

    assert fast.step() == 0.0
    assert (fast.shelf.waiting, fast.held.tokens, fast.fetcher.in_hand) == ([], {}, 5), "reserved, and not read yet"
    assert fast.step() > 0
    assert (way.sent, way.worked_on) == ([0, 0], [0, 5]), "read when the next exchange was under way"
    assert (len(fast.shelf.waiting), len(fast.held.tokens)) == (10, 10), "with nothing to send all is read at once"
    for _ in range(9):
        for attempt in fast.shelf.begin():
            fast.finished.add(attempt, Succeeded())
        fast.step()

    assert client.queue("q").totals()["succeeded"] == 25
    assert (fast.fetcher.in_hand, fast.held.tokens) == (0, {})


def test_no_more_is_reserved_than_may_be_held_with_what_is_unread(fast: Bench, client: Client) -> None:
    push(client, 50)
    held = []
    for _ in range(4):
        fast.step()
        held.append(fast.fetcher.in_hand)
        assert client.queue("q").counts()["pending"] == held[-1]
    assert held == [5, 10, 10, 10]


def test_a_very_fast_worker_asks_for_two_batches_at_once(
    fast: Bench, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A far server's round trip is then shared by twice as many tasks. Of a second reply that is short both are read at
    once, in their order."""
    monkeypatch.setattr(Prefetch, "depth", 20)
    ids = push(client, 18)
    fast.step()
    assert (fast.fetcher.in_hand, fast.shelf.waiting) == (10, [])
    fast.step()

    assert [attempt.id for attempt in fast.shelf.waiting] == ids


def test_a_reply_that_has_less_than_was_asked_for_is_read_at_once(fast: Bench, client: Client) -> None:
    push(client, 3)

    assert fast.step() > 0
    assert len(fast.shelf.waiting) == 3


@pytest.mark.parametrize("why", ["reserving", "resting"])
def test_unread_tasks_of_one_that_takes_nothing_any_more_are_handed_back(fast: Bench, client: Client, why: str) -> None:
    push(client, 25)
    fast.step()
    setattr(fast.fetcher, why, why == "resting")
    while fast.fetcher.in_hand:
        fast.step()

    assert fast.shelf.begin() == []
    assert client.queue("q").counts() == {"waiting": 25, "scheduled": 0, "pending": 0, "dead": 0, "done": 0}


def test_unread_tasks_begin_when_the_server_goes_away(fast: Bench, client: Client) -> None:
    push(client, 25)
    fast.step()
    way: Any = fast.way  # type: ignore[attr-defined]
    way.error = ServerUnavailable("gone")
    with pytest.raises(ServerUnavailable):
        fast.step()

    assert len(fast.shelf.waiting) == 5
    assert len(fast.held.tokens) == 5


def test_no_task_waits_for_the_pause_after_a_refused_report(fast: Bench, client: Client) -> None:
    push(client, 25)
    fast.step()
    fast.step()
    for attempt in fast.shelf.begin()[:5]:
        fast.finished.add(attempt, Succeeded())
    way: Any = fast.way  # type: ignore[attr-defined]
    way.refusal = ServerRefused("a key is damaged")

    fast.step()
    assert len(fast.shelf.waiting) == 5, "what came with the refusal has begun"


def test_the_limit_on_tasks_counts_the_unread_ones(
    broker: Broker, keys: Keys, client: Client, monkeypatch: Any
) -> None:
    monkeypatch.setattr(Prefetch, "depth", 8)
    bench = Bench(broker, keys, slots=2, max_tasks=12)
    push(client, 25)
    for _ in range(6):
        bench.step()
        for attempt in bench.shelf.begin():
            bench.finished.add(attempt, Succeeded())

    bench.step()
    assert client.queue("q").totals()["succeeded"] == 12
    assert client.queue("q").counts()["waiting"] == 13


def test_what_the_keeper_cannot_keep_yet_is_handed_back_at_once(bench: Bench, client: Client) -> None:
    """No attempt is spent, and the queue is polled again soon."""
    push(client, 2)
    bench.held.is_ready = False
    assert bench.begun() == []
    bench.step()
    assert client.queue("q").counts() == {"waiting": 2, "scheduled": 0, "pending": 0, "dead": 0, "done": 0}
    assert 0 < bench.step() < 1
    assert client.queue("q").totals()["enqueued"] == 2
    assert bench.shelf.waiting == []
    bench.held.is_ready = True
    assert len(bench.begun()) == 2
    assert bench.fetcher.finished_total == 0


def test_nothing_is_reserved_without_a_keeper_where_leases_are_declared_to_be_short(
    broker: Broker, keys: Keys, client: Client
) -> None:
    """When a worker is killed before its keeper runs, its short leases end, and each spends an attempt."""
    bench = Bench(broker, keys, leases_are_short=True)
    push(client, 2)
    bench.held.is_ready = False
    assert 0 < bench.step() < 1
    assert bench.ear.calls == ()
    assert client.queue("q").counts()["waiting"] == 2
    bench.held.is_ready = True
    assert len(bench.begun()) == 2


def test_nothing_is_reserved_while_no_keeper_can_be_started(bench: Bench, client: Client) -> None:
    """Leases of any length would end while their tasks run."""
    push(client, 2)
    bench.held.is_ready, bench.held.is_missing = False, True
    assert 0 < bench.step() < 1
    assert bench.ear.calls == ()
    assert client.queue("q").counts()["waiting"] == 2
    bench.held.is_ready, bench.held.is_missing = True, False
    assert len(bench.begun()) == 2


def test_no_more_tasks_than_asked_for_are_reserved(broker: Broker, keys: Keys, client: Client) -> None:
    bench = Bench(broker, keys, max_tasks=4)
    push(client, 10)
    done = 0
    for _ in range(5):
        bench.step()
        for attempt in bench.shelf.begin():
            bench.finished.add(attempt, Succeeded())
            done += 1
    assert done == bench.fetcher.finished_total == 4
    assert client.queue("q").counts() == {"waiting": 6, "scheduled": 0, "pending": 0, "dead": 0, "done": 0}


def test_it_listens_only_when_it_has_room_and_knows_of_no_work(bench: Bench, client: Client) -> None:
    push(client, 3)
    bench.step()
    bench.shelf.begin()
    bench.step()
    assert not bench.ear.is_armed, "every slot is taken"
    assert bench.step() > 1000


def test_an_empty_queue_is_listened_to(bench: Bench) -> None:
    assert 14 < bench.step() <= 15
    assert bench.ear.is_armed


def test_a_hint_that_comes_while_every_slot_is_taken_is_handed_on(
    bench: Bench, client: Client, raw: redis.Redis, keys: Keys
) -> None:
    push(client, 3)
    bench.begun()
    raw.delete(keys.queue("q").wake)
    bench.fetcher.wakeups.woken(["q"], [])
    bench.step()
    assert raw.zcard(keys.queue("q").wake) == 1


def test_tasks_that_only_other_workers_know_are_left_to_them(
    broker: Broker, client: Client, raw: redis.Redis, keys: Keys
) -> None:
    """An idle worker of another service took them again each time that they were due: it had the hint of its own
    hand-back, so it was the one that knew when. The last of 200 tasks began after 96 s."""
    bench, wake = Bench(broker, keys, unknown_grace=60.0), keys.queue("q").wake
    push(client, 2)
    for attempt in bench.begun():
        bench.finished.add(attempt, Unknown("no such job"))
    bench.step()
    assert client.queue("q").counts()["scheduled"] == 2
    assert bench.turns.open == []

    raw.delete(wake)
    bench.fetcher.wakeups.woken(["q"], [])
    bench.step()
    assert raw.zcard(wake) == 1, "the hint of the hand-back is for another worker"
    raw.delete(wake)
    bench.fetcher.wakeups.woken(["q"], [])
    bench.step()
    assert raw.zcard(wake) == 0, "there is no other one"


def test_a_worker_with_tasks_of_its_own_goes_on_with_the_queue(broker: Broker, client: Client, keys: Keys) -> None:
    bench = Bench(broker, keys, slots=2, unknown_grace=60.0)
    push(client, 3)
    _own, unknown = bench.begun()
    bench.finished.add(unknown, Unknown("no such job"))
    bench.step()
    assert bench.turns.open == ["q"]
    assert len(bench.begun()) == 1


def test_of_hints_that_come_together_it_keeps_one_for_each_task_that_it_can_take(
    broker: Broker, raw: redis.Redis, keys: Keys
) -> None:
    """An idle worker hears of many queues at once on a cluster. The others are for other idle workers."""
    names = [f"q{n}" for n in range(5)]
    bench = Bench(broker, keys, slots=2, queues=names)
    bench.step()
    bench.fetcher.wakeups.woken(names, [])
    bench.step()
    assert sum(raw.zcard(keys.queue(name).wake) for name in names) == 3


def test_a_hint_makes_it_look(bench: Bench, client: Client) -> None:
    bench.step()
    push(client, 1)
    assert bench.begun() == []
    bench.fetcher.wakeups.woken(["q"], [])
    assert len(bench.begun()) == 1


def test_a_scheduled_task_is_looked_for_when_it_is_due(bench: Bench, client: Client) -> None:
    client.queue("q").push("x", in_=12)
    assert 2 < bench.step() < 13, "not after 15 s, as when there is nothing"


def test_a_backlog_that_stands_still_goes_back(bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long tasks took all slots; the tasks that wait for them go to other workers."""
    monkeypatch.setattr("jobrunner.worker.fetch.reserve_plan._STUCK_S", 0.0)
    bench.stock._rate = 1000.0
    push(client, 20)
    bench.step()
    running = bench.shelf.begin(3)
    assert bench.shelf.backlog == 17
    bench.step()
    bench.step()
    assert bench.shelf.backlog == 0
    assert bench.fetcher.in_hand == len(running)
    assert client.queue("q").counts()["waiting"] == 17
    assert bench.stock.depth == 0, "and it does not fetch them again"


def test_queues_take_turns_by_weight(broker: Broker, keys: Keys, client: Client) -> None:
    bench = Bench(broker, keys, slots=1, queues={"a": 3, "b": 1}, prefetch_s=0.0)
    push(client, 50, "a")
    push(client, 50, "b")
    seen = []
    for _ in range(12):
        bench.step()
        for attempt in bench.shelf.begin():
            seen.append(attempt.queue)
            bench.finished.add(attempt, Succeeded())
    assert (seen.count("a"), seen.count("b")) == (9, 3)


class Counting(Unreachable):
    """A broker that counts round trips and what was asked for in the last."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.trips = 0
        self.asked: list[str] = []

    def run_each(self, calls: Any, meanwhile: Any) -> list[Any]:
        self.trips += 1
        self.asked = [call.script.name for call in calls]
        return self._broker.run_each(calls, meanwhile)


def test_all_queues_are_looked_at_in_one_round_trip(broker: Broker, keys: Keys, client: Client) -> None:
    way = Counting(broker)
    names = tuple(f"q{number}" for number in range(64))
    bench = Bench(way, keys, queues=names, slots=10)
    push(client, 3, "q7")
    push(client, 30, "q50")
    bench.step()
    assert (way.trips, way.asked) == (1, ["probe"] * 64)
    begun = bench.begun()
    assert way.trips == 2
    assert {attempt.queue for attempt in begun} == {"q7", "q50"}
    assert len(begun) == 8, "five of each, but one has only three"
    assert len(bench.begun()) == 2
    assert way.asked == ["reserve"], "the other gives all of the rest"


def test_a_busy_worker_looks_at_its_empty_queues_beside_what_it_reserves(
    broker: Broker, keys: Keys, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = Counting(broker)
    names = tuple(f"q{number}" for number in range(64))
    bench = Bench(way, keys, queues=names, slots=4, prefetch_s=0.0)  # else it takes more the faster these tasks end
    push(client, 100, "q0")
    bench.step()
    first = bench.begun()
    push(client, 1, "q9")
    monkeypatch.setattr("jobrunner.worker.fetch.fetcher._POLL_ALL_S", 0.0)
    for attempt in first:
        bench.finished.add(attempt, Succeeded())
    trips = way.trips
    second = bench.begun()
    assert len(second) == 4
    assert (way.trips, way.asked) == (trips + 1, ["commit", "reserve", *["probe"] * 63])
    monkeypatch.undo()
    for attempt in second:
        bench.finished.add(attempt, Succeeded())
    assert {attempt.queue for attempt in bench.begun()} == {"q0", "q9"}


def test_a_damaged_queue_among_many_holds_up_no_other(
    broker: Broker, keys: Keys, client: Client, raw: redis.Redis
) -> None:
    bench = Bench(broker, keys, queues=("broken", *(f"q{number}" for number in range(9))))
    raw.set(keys.queue("broken").waiting, "not a sorted set")
    raw.set(keys.queue("q3").settings, "no hash")
    push(client, 2, "q8")
    bench.step()
    assert isinstance(bench.fetcher.refusal, ServerRefused)
    assert len(bench.begun()) == 2


def test_a_paused_queue_among_many_is_reserved_from_when_it_goes_on(broker: Broker, keys: Keys, client: Client) -> None:
    way = Counting(broker)
    bench = Bench(way, keys, queues=tuple(f"q{number}" for number in range(9)))
    push(client, 2, "q4")
    client.queue("q4").pause()
    bench.step()
    assert bench.step() > 10, "it waits for a hint"
    client.queue("q4").resume()
    bench.fetcher.wakeups.woken(["q4"], [])
    assert len(bench.begun()) == 2


def bring(bench: Bench, client: Client, queue: str = "q") -> list[Reservation]:
    """Does what the server does at the next hint."""
    bench.ear.is_armed = False
    found = [broker_of(client).run(call) for call in bench.ear.calls]
    bench.fetcher.wakeups.woken([queue], found)
    return found


def test_it_listens_with_reservations_for_no_more_than_it_could_take(client: Client, keys: Keys) -> None:
    def planned(slots: int, queues: int) -> list[int]:
        one = Bench(broker_of(client), keys, slots=slots, queues=tuple(f"q{n}" for n in range(queues)))
        for _ in range(queues + 1):
            one.step()
        assert one.ear.is_armed
        return [int(call.words[1]) for call in one.ear.calls]

    assert planned(slots=10, queues=1) == [2]
    assert planned(slots=1, queues=1) == [1]
    assert planned(slots=6, queues=4) == [1] * 4
    assert planned(slots=3, queues=4) == []
    assert planned(slots=50, queues=5) == []


def test_it_asks_for_nothing_ahead_where_that_cannot_be_told_apart_from_long_ago(bench: Bench) -> None:
    bench.ear.can_bring = False
    bench.step()

    assert bench.ear.is_armed
    assert bench.ear.calls == []


def test_what_a_hint_brought_begins_without_another_look(bench: Bench, client: Client, raw: redis.Redis) -> None:
    bench.step()
    (task,) = push(client, 1)
    bring(bench, client)
    asked = int(raw.info("commandstats")["cmdstat_evalsha"]["calls"])

    begun = bench.begun()

    assert [attempt.id for attempt in begun] == [task]
    assert bench.held.tokens.keys() == {begun[0].token}
    assert int(raw.info("commandstats")["cmdstat_evalsha"]["calls"]) == asked, "of two came one: that is all"
    assert bench.ear.is_armed


@pytest.mark.parametrize(("begins_in", "pauses_taken"), [(2, 2), (math.inf, wakeups._GIVE_WAY_TIMES)])
def test_a_turn_leaves_the_interpreter_to_what_a_hint_brought_until_it_begins(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch, begins_in: float, pauses_taken: int
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        assert not bench.ear.is_armed, "it gives way before the rest of its turn"
        pauses.append(seconds)
        if len(pauses) == begins_in:
            bench.shelf.waiting[0].began_s = 1.0

    monkeypatch.setattr(wakeups, "sleep", pause)
    bench.step()
    push(client, 1)
    bring(bench, client)
    bench.step()

    assert len(pauses) == pauses_taken
    assert sum(pauses) < 0.001


def test_a_turn_that_asked_for_its_tasks_itself_does_not_pause(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "sleep", lambda _: pytest.fail("it paused"))
    push(client, 3)

    assert len(bench.begun()) == 3


def test_as_many_as_were_asked_for_may_not_be_all(bench: Bench, client: Client) -> None:
    bench.step()
    push(client, 3)
    bring(bench, client)

    assert len(bench.begun()) == 3


def test_what_a_hint_brought_and_no_slot_is_free_for_is_handed_back(
    bench: Bench, client: Client, audit: Callable[..., dict[str, int]]
) -> None:
    bench.step()
    push(client, 3)
    bench.turns.wake("q")
    running = bench.begun()
    assert len(running) == 3
    push(client, 2)
    (brought,) = bring(bench, client)
    assert len(brought.attempts) == 2
    assert bench.fetcher.in_hand == 4

    bench.step()

    assert bench.begun(2) == []
    assert audit("q") | {"pending": 3, "waiting": 2} == audit("q")
    assert all(attempt.number == 1 for attempt in broker_of(client).run(bench.ear.calls[0]).attempts), "it spent none"


@pytest.mark.parametrize("why", ["reserving", "resting"])
def test_what_a_hint_brought_to_one_that_takes_nothing_any_more_is_handed_back(
    bench: Bench, client: Client, audit: Callable[..., dict[str, int]], why: str
) -> None:
    bench.step()
    setattr(bench.fetcher, why, why == "resting")
    push(client, 2)
    bring(bench, client)

    bench.step()

    assert bench.begun(2) == []
    assert bench.fetcher.in_hand == 0
    assert audit("q") | {"pending": 0, "waiting": 2} == audit("q")


@pytest.mark.parametrize("how", ["reserved", "brought by a hint", "suspect of a crash"])
def test_what_the_executor_cannot_start_goes_back_unspent_and_is_tried_again_after_a_pause(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """No descriptor or thread is free for what would run it."""
    clock = stopped(monkeypatch, reserve_plan)
    tried: list[list[Attempt]] = []

    def refuse(attempts: list[Attempt]) -> None:
        tried.append(attempts)
        raise CannotStartError(attempts, OSError("Too many open files"))

    if how == "brought by a hint":
        bench.step()
    push(client, 1)
    with monkeypatch.context() as scarce:
        scarce.setattr(bench.shelf, "submit", refuse)
        if how == "brought by a hint":
            bring(bench, client)
        elif how == "suspect of a crash":
            suspects = partial(_as_suspects, bench.fetcher._quarantine.sort)
            scarce.setattr(bench.fetcher._quarantine, "sort", suspects)
        for _ in range(4):
            bench.fetcher.wakeups.woken(["q"], [])  # a task that is handed back comes with a hint
            bench.step()
        assert len(tried) == 1
        assert "q" not in bench.turns.open, "the notifier does not reserve from it either"
        assert (bench.held.tokens, bench.fetcher.in_hand) == ({}, 0)
        assert client.queue("q").counts()["waiting"] == 1
    assert caplog.text.count("tasks cannot begin and are handed back") == 1

    clock.now += reserve_plan._REFUSED_PAUSE_S
    begun = bench.begun(2)
    assert [(attempt.id, attempt.number) for attempt in begun] == [(tried[0][0].id, 1)]


def _as_suspects(sort: Callable[[list[Attempt]], Any], attempts: list[Attempt]) -> Any:
    for attempt in attempts:
        attempt.suspect = SUSPECT
    return sort(attempts)


def test_a_hint_that_brought_an_error_is_a_hint(bench: Bench, client: Client) -> None:
    bench.step()
    push(client, 1)
    bench.ear.is_armed = False
    bench.fetcher.wakeups.woken(["q"], [ServerRefused("NOSCRIPT")])

    assert len(bench.begun()) == 1


def bring_old(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch, *, age_s: float, queue: str = "q"
) -> float:
    """A task that the server handed out so long ago; returns when that was."""
    while not bench.ear.is_armed:
        bench.step()
    push(client, 1, queue)
    bring(bench, client, queue)
    brought_at = monotonic()
    for module in (fetcher, intake):
        monkeypatch.setattr(module, "monotonic", lambda: monotonic() + age_s)
    monkeypatch.setattr(stats, "perf_counter", lambda: perf_counter() + age_s)
    return brought_at


def test_what_was_brought_is_held_since_the_server_handed_it_out(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought_at = bring_old(bench, client, monkeypatch, age_s=9)

    (attempt,) = bench.begun()

    assert bench.held.tokens[attempt.token] == pytest.approx(brought_at, abs=4)


@pytest.mark.parametrize("queue", ["q", "z"])
def test_what_was_brought_too_long_ago_is_not_begun(
    broker: Broker, keys: Keys, client: Client, monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    """As after a worker was suspended: its lease has ended, and another worker holds the task. The replies of all
    queues come together; the first one made the others look new, and two workers ran the task at once."""
    bench = Bench(broker, keys, queues=("q", "z"), slots=4)
    bring_old(bench, client, monkeypatch, age_s=31, queue=queue)

    assert bench.begun() == []
    bench.fetcher.reserving = False
    bench.step()
    assert bench.fetcher.in_hand == 0


def test_what_was_brought_is_no_older_than_the_wait_for_it(bench: Bench, client: Client) -> None:
    """The server's clock was set back: by what is known of it, its tasks would be too old, again and again."""
    while not bench.ear.is_armed:
        bench.step()
    bench.figures.synchronize(unix_ms() + 60_000, 0)
    push(client, 1)
    bring(bench, client)

    assert len(bench.begun()) == 1
    assert bench.figures.age_ms(unix_ms()) < 30_000, "and the clock is known again"


def test_a_reply_that_is_read_late_does_not_set_the_servers_clock_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = [1000.0]
    monkeypatch.setattr(stats, "perf_counter", lambda: at[0])
    assert bench.figures.age_ms(0) == math.inf, "nothing is known of its clock"
    bench.figures.synchronize(50_000, 10)
    at[0] += 5
    assert bench.figures.age_ms(50_000) == 5_000
    bench.figures.synchronize(50_100, 5_000)
    assert bench.figures.age_ms(50_000) == 5_000, "it may have come 4.9 s ago"
    bench.figures.synchronize(51_000, 500)
    assert bench.figures.age_ms(51_000) == 500, "no: the clock was set back"
    bench.figures.synchronize(99_000, 500)
    assert bench.figures.age_ms(99_000) == 0, "and forward"
