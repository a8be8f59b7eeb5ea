"""Moab's settings for dequeueing, rows MDQ-01 to MDQ-29, one test each.

Time is set by the test wherever a row is about time; rows about processes get real ones.
"""
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from structlog.testing import capture_logs

from jobrunner import Client, Item, Job, Queue, RateLimit, Worker, job
from jobrunner.broker.keys import Keys
from jobrunner.client.client import keys_of
from jobrunner.client.current import forget, use
from jobrunner.client.operations import lease as lease_operations
from jobrunner.errors import InvalidOption, LeaseLost, NotReserved
from tests.acceptance.fleet import Fleet
from tests.acceptance.jobs_for_tests import Work
from tests.acceptance.ledger import VARIABLE, Entry, Ledger, record
from tests.acceptance.row_queues import (
    HOUR_MS,
    NOW_MS,
    SLACK_S,
    Audit,
    Start,
    crowd,
    hold,
    server_ms,
    states,
    take,
    take_on_demand,
)
from tests.support.clock import Clock
from tests.support.server import Server
from tests.support.waiting import wait_for

StartWorker = Callable[..., Worker]
HOURLY = RateLimit(max_tokens=15, interval=1, interval_unit="HOURS")


@pytest.fixture
def queue(client: Client) -> Queue:
    return client.queue("q")


@pytest.fixture
def work(current: Client, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartWorker]:
    """work("t", concurrency=1): a worker in threads of this process; it stops with the test."""
    monkeypatch.setenv(VARIABLE, str(ledger.path))
    started: list[Worker] = []

    def begin(*queues: str, **options: Any) -> Worker:
        started.append(Worker([], queues, client=current, **options))
        started[-1].start()
        return started[-1]

    yield begin
    for worker in started:
        worker.stop(grace=1)


@pytest.fixture
def still(queue: Queue, clock: Clock) -> Queue:
    """The queue on a stopped clock."""
    clock.set(NOW_MS)
    return queue


def fill(queue: Queue, count: int) -> None:
    for number in range(0, count, 1000):
        queue.push_many(range(number, min(number + 1000, count)))


def test_a_batch_is_reserved_processed_and_reported_one_by_one(still: Queue, clock: Clock, audit: Audit) -> None:
    """MDQ-01: 25 tasks in batches of ten; of the first, seven succeed and three fail, and exactly these return."""
    fill(still, 25)
    batches = [still.reserve(10) for _ in range(4)]
    assert [[lease.payload for lease in batch] for batch in batches] == [
        [*range(10)], [*range(10, 20)], [*range(20, 25)], [],
    ]  # fmt: skip
    for lease in batches[0]:
        if lease.payload in (2, 5, 9):
            assert lease.rollback(delay=1, error="no")
        else:
            assert lease.commit()
    clock.advance(1000)
    assert [(lease.payload, lease.attempts) for lease in still.reserve(10)] == [(2, 2), (5, 2), (9, 2)]
    assert audit("q") == states(pending=18)


def overlap(entries: list[Entry]) -> int:
    """How many runs there were at once, at most."""
    steps = sorted((entry.at, 1 if entry.event == "start" else -1) for entry in entries)
    return max(itertools.accumulate(step for _, step in steps))


BEGUN: list[str] = []


@job(queue="t", name="RowsTimed")
class Timed(Job):
    """Takes its time, under a lease that needs no renewal; the first ones wait until so many of them have begun."""

    at_once: int

    def run(self) -> None:
        """Sleeps."""
        record("start", self.task.id)
        BEGUN.append(self.task.id)
        wait_for(lambda: len(BEGUN) >= self.at_once)
        time.sleep(0.1)
        record("end", self.task.id)


def assert_parallel(entries: list[Entry], workers: int, work_s: float) -> float:
    """Runs overlapped as many times as there were workers, and never more. Returns how long all of them took."""
    assert overlap(entries) == workers
    lasted = max(entry.at for entry in entries) - min(entry.at for entry in entries)
    assert lasted >= work_s / workers
    return lasted


@pytest.mark.parametrize("workers", [1, 3])
def test_more_workers_do_more_at_once(
    work: StartWorker, ledger: Ledger, client: Client, workers: int, audit: Audit
) -> None:
    """MDQ-02: workers with one slot each."""
    for _ in range(workers):
        work("t", concurrency=1)
    BEGUN.clear()
    Timed.enqueue_many([Timed(at_once=workers) for _ in range(9)])
    wait_for(lambda: client.queue("t").totals().get("succeeded") == 9, timeout_s=20)
    assert_parallel(ledger.entries(), workers, 0.9)
    assert audit("t") == states()


@pytest.mark.slow
def test_eight_workers_take_an_eighth_of_the_time_of_one(fleet: Fleet, ledger: Ledger, client: Client) -> None:
    """MDQ-02: 80 tasks of 0.25 s."""
    for workers in (1, 8):
        ledger.path.write_text("")
        started = fleet.start(workers, concurrency=1)
        done = client.queue("t").totals().get("succeeded", 0) + 80
        Work.enqueue_many([Work(n=n, seconds=0.25) for n in range(80)])
        wait_for(lambda done=done: client.queue("t").totals().get("succeeded") == done, timeout_s=60)
        lasted = assert_parallel(ledger.entries(), workers, 20)
        assert lasted < 20 / workers + SLACK_S
        for worker in started:
            worker.stop()
            worker.wait()


@pytest.mark.parametrize("total", [4_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_there_is_no_ceiling_on_what_is_in_flight(queue: Queue, raw: redis.Redis, audit: Audit, total: int) -> None:
    """MDQ-03: all are handed out, and a reserve among many leases costs the server no more than one among few."""
    assert queue.reserve() == [], "from now on the server knows the script"
    fill(queue, total)
    costs_us = []
    for _ in range(total // 100):
        before = raw.info("commandstats")["cmdstat_evalsha"]["usec"]
        assert len(queue.reserve(100, keepalive=3600)) == 100
        costs_us.append(raw.info("commandstats")["cmdstat_evalsha"]["usec"] - before)
    assert queue.reserve() == []
    assert audit("q") == states(pending=total)
    assert min(costs_us[-10:]) < 8 * min(costs_us[:10]), "forty times as many leases; the machine may be busy"


RAN: list[float] = []


@job(queue="q", name="RowsInstant", result_ttl=0)
class Instant(Job):
    """Notes when it ran."""

    def run(self) -> None:
        """At once."""
        RAN.append(time.monotonic())


def test_without_limits_a_worker_goes_as_fast_as_it_can(current: Client) -> None:
    """MDQ-04: 1 000 empty jobs, and no pause between any two of them; the best of many times, as the machine may pause.
    How long it takes from one to the next is for benchmarks."""
    worker = Worker([], ["q"], concurrency=1, poll=60, client=current)
    worker.start()
    try:
        for times_left in reversed(range(40)):
            RAN.clear()
            Instant.enqueue_many([Instant() for _ in range(1000)])
            wait_for(lambda: len(RAN) == 1000)
            longest_s = max(later - earlier for earlier, later in itertools.pairwise(RAN))
            if longest_s < 0.5:
                break
            assert times_left, f"{longest_s:.3f} s between two jobs"
    finally:
        worker.stop(grace=1)


LIMITS = [
    pytest.param({}, [50, 0, 0], id="none"),
    pytest.param({"max_inflight": 7}, [7, 0, 7], id="in flight"),
    pytest.param({"rate": RateLimit(max_tokens=20, interval=10)}, [20, 2, 0], id="rate"),
    pytest.param({"max_inflight": 7, "rate": RateLimit(max_tokens=20, interval=10)}, [7, 0, 7], id="both"),
    pytest.param({"max_inflight": 30, "rate": RateLimit(max_tokens=20, interval=10)}, [20, 2, 0], id="both, other way"),
]


@pytest.mark.parametrize(("limits", "handed_out"), LIMITS)
def test_rate_and_number_in_flight_are_limited_each_for_a_queue(
    still: Queue, client: Client, clock: Clock, audit: Audit, limits: dict[str, Any], handed_out: list[int]
) -> None:
    """MDQ-05: one, the other, both or none: at once, a second later, and when all of that is reported; of no other."""
    still.configure(**limits)
    fill(still, 50)
    first = still.reserve(100)
    clock.advance(1000)
    second = still.reserve(100)
    for lease in first + second:
        lease.commit()
    third = still.reserve(100)
    assert [len(first), len(second), len(third)] == handed_out
    other = client.queue("other")
    fill(other, 100)
    assert len(other.reserve(200)) == 100
    assert audit("q") == still.counts()


def test_the_number_in_flight_is_a_setting_of_the_queue(still: Queue, clock: Clock, client: Client) -> None:
    """MDQ-06: set before the first task, raised, and lowered below what is pending: nothing is taken back then."""
    still.configure(max_inflight=3)
    assert client.queue("q").settings().max_inflight == 3
    fill(still, 30)
    held = still.reserve(30)
    still.configure(max_inflight=8)
    held += still.reserve(30)
    assert len(held) == 8
    still.configure(max_inflight=5)
    assert still.counts() == states(waiting=22, pending=8)
    assert held[0].extend()
    for lease in held[:3]:
        assert still.reserve(30) == []
        assert lease.commit()
    assert still.reserve(30) == []
    assert held[3].commit()
    assert len(still.reserve(30)) == 1


def test_no_limit_is_the_default(still: Queue, clock: Clock) -> None:
    """MDQ-07: missing, 0 and None are no limit; negative and what is no whole number is refused and nothing is set."""
    assert still.settings().max_inflight == 0
    fill(still, 4000)
    assert len(still.reserve(1000)) == 1000
    for unlimited in (0, None):
        still.configure(max_inflight=1)
        assert still.reserve() == []
        still.configure(max_inflight=unlimited)
        assert still.settings().max_inflight == 0
        assert len(still.reserve(1000)) == 1000
    still.configure(max_inflight=3001)
    for wrong in (-1, 1.0, 2.5, "3", True, [3], float("nan")):
        with pytest.raises(InvalidOption, match="max_inflight"):
            still.configure(max_inflight=wrong, keepalive=7)
    assert (still.settings().max_inflight, still.settings().keepalive) == (3001, 30)
    assert len(still.reserve(1000)) == 1


def test_never_more_than_so_many_are_in_flight(still: Queue, clock: Clock, audit: Audit) -> None:
    """MDQ-08: batches near the limit, two workers in turn, renewals, and leases that end in the very call."""
    still.configure(max_inflight=7, keepalive=10, max_attempts=0)
    fill(still, 40)
    first, second = still.reserve(3), still.reserve(3)
    assert len(still.reserve(3)) == 1
    assert still.reserve(3) == []
    clock.advance(9_000)
    assert all(lease.extend() for lease in first)
    clock.advance(1_000)  # the four that nobody renewed ended
    again = still.reserve(9)
    assert [lease.payload for lease in again] == [3, 4, 5, 6]
    assert {lease.attempts for lease in again} == {2}
    with pytest.raises(LeaseLost):
        second[0].commit()
    assert first[0].rollback(delay=0)
    assert first[1].release()
    assert first[2].commit()
    clock.advance(1)
    assert [lease.payload for lease in still.reserve(9)] == [1, 7, 8]
    assert still.reserve(9) == []
    assert audit("q") == states(waiting=32, pending=7)


CROWDS = [
    pytest.param(1, 100, id="one"),
    pytest.param(4, 300, id="four"),
    pytest.param(16, 2000, id="sixteen", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("processes", "tasks"), CROWDS)
def test_the_server_keeps_the_limit_however_many_ask(
    queue: Queue, start: Start, raw: redis.Redis, keys: Keys, audit: Audit, processes: int, tasks: int
) -> None:
    """MDQ-11, MDQ-08: processes that reserve by threes, renew, fail, release and forget, and an observer."""
    queue.configure(max_inflight=7, max_attempts=0)
    fill(queue, tasks)
    own, seen = keys.queue("q"), list[int]()

    def all_succeeded() -> bool:
        seen.append(raw.zcard(own.pending))
        return int(raw.hget(own.counters, "succeeded") or 0) == tasks

    children = [start(crowd, "q", seed) for seed in range(processes)]
    for child in children:
        assert child.hear() == "ready"
    for child in children:
        child.say("go")
    ends = time.monotonic() + 90
    while not all_succeeded():  # without a pause: a fast machine is through in some milliseconds
        assert time.monotonic() < ends, "waited 90 s in vain"
    for child in children:
        child.say("enough")
    got = [child.hear() for child in children]
    assert max(seen) == 7
    assert sum(bool(number) for number in got) >= min(processes, 2), "they did not run at the same time"
    assert sum(got) > tasks, "nothing was tried again"
    assert audit("q") == states()


def test_what_a_dead_worker_held_counts_until_its_leases_end(
    queue: Queue, start: Start, raw: redis.Redis, keys: Keys, audit: Audit
) -> None:
    """MDQ-09: all the room is held by a worker that was killed: nothing for one keepalive, then all at once."""
    queue.configure(max_inflight=2, keepalive=2)
    fill(queue, 5)
    worker = start(hold, "q", 2)
    ids = worker.hear()
    worker.kill()
    ends = min(raw.zscore(keys.queue("q").pending, task_id) or 0 for task_id in ids)
    empty = 0
    while not (found := queue.reserve(5)):
        empty += server_ms(raw) < ends
    assert server_ms(raw) >= ends
    assert empty, "the worker was killed too late"
    assert server_ms(raw) < ends + SLACK_S * 1000
    found += queue.reserve(5)
    assert [lease.id for lease in found] == ids
    assert {lease.attempts for lease in found} == {2}
    assert audit("q") == states(waiting=3, pending=2)


def test_at_the_limit_the_answer_is_empty_and_comes_at_once(still: Queue, audit: Audit) -> None:
    """MDQ-10: no error and no wait; the best of some answers counts, as the machine may pause."""
    still.configure(max_inflight=1)
    fill(still, 2)
    held = take(still)
    lasted = []
    for _ in range(10):
        began = time.perf_counter()
        assert still.reserve() == still.reserve(10) == []
        lasted.append((time.perf_counter() - began) / 2)
    assert min(lasted) < 0.05
    held.commit()
    assert take(still).payload == 1
    assert audit("q") == states(pending=1)


def test_a_rate_is_no_window_with_edges(still: Queue, clock: Clock) -> None:
    """MDQ-12: ten at 9.9 s leave nothing for 10.1 s, where a window would begin; a second after them there is one."""
    still.configure(rate=RateLimit(max_tokens=10, interval=10))
    fill(still, 40)
    clock.advance(9_900)
    assert len(still.reserve(40)) == 10
    clock.advance(200)
    assert still.reserve(40) == []
    clock.advance(800)
    assert len(still.reserve(40)) == 1


@pytest.mark.parametrize("idle_hours", [0, 1, 5, 24, 24 * 365])
def test_a_bucket_holds_so_many_tokens_and_no_more(still: Queue, clock: Clock, idle_hours: int) -> None:
    """MDQ-13: full at first, and full after an hour, a day or a year without a task."""
    still.configure(rate=HOURLY)
    fill(still, 99)
    clock.advance(idle_hours * HOUR_MS)
    assert len(still.reserve(99)) == 15
    clock.advance(idle_hours * HOUR_MS)
    assert len(still.reserve(99)) == (15 if idle_hours else 0)


def test_a_bucket_refills_continuously(still: Queue, clock: Clock) -> None:
    """MDQ-14: 15 an hour are one at 240 s and not a microsecond before; fractions of a token are kept."""
    still.configure(rate=HOURLY)
    fill(still, 99)
    drained_at = clock.set(NOW_MS)
    assert len(still.reserve(99)) == 15
    clock.set(drained_at + 239_999.999)
    assert still.reserve(99) == []
    clock.set(drained_at + 240_000)
    assert len(still.reserve(99)) == 1
    clock.set(drained_at + 2.75 * 240_000)
    assert len(still.reserve(99)) == 1
    clock.set(drained_at + 3 * 240_000 - 0.001)
    assert still.reserve(99) == []
    clock.set(drained_at + 3 * 240_000)
    assert len(still.reserve(99)) == 1
    clock.set(drained_at + 3 * 240_000 + HOUR_MS)
    assert len(still.reserve(99)) == 15


@pytest.mark.parametrize(("unit", "seconds"), [("SECONDS", 1), ("MINUTES", 60), ("HOURS", 3600)])
def test_a_rate_has_one_of_three_units(still: Queue, clock: Clock, client: Client, unit: str, seconds: int) -> None:
    """MDQ-15: two intervals of it fill the bucket; every other unit, size or interval is refused and nothing is set."""
    rate = RateLimit(max_tokens=4, interval=2, interval_unit=unit)
    still.configure(rate=rate)
    assert client.queue("q").settings().rate == rate
    fill(still, 20)
    assert len(still.reserve(20)) == 4
    clock.advance(2_000 * seconds - 0.001)
    assert len(still.reserve(20)) == 3
    clock.advance(0.001)
    assert len(still.reserve(20)) == 1
    for name, wrongs in {
        "interval_unit": ("seconds", "Hours", "DAYS", "", None, 1),
        "interval": (0, -1, 1.0, 0.5, "1", True, None),
        "max_tokens": (0, -1, 1.0, 2.5, "10", True, None),
    }.items():
        for wrong in wrongs:
            with pytest.raises(InvalidOption, match=name):
                still.configure(rate=RateLimit(**{"max_tokens": 9, name: wrong}))
    for wrong in (5, "5/s", (5, 1, "SECONDS"), {"max_tokens": 5}):
        with pytest.raises(InvalidOption, match="rate"):
            still.configure(rate=wrong)
    assert client.queue("q").settings().rate == rate


@pytest.mark.parametrize(
    ("tokens", "unit", "each_ms"), [(1000, "SECONDS", 1), (2000, "MINUTES", 30), (15, "HOURS", 240_000)]
)
def test_documented_rates_hold(still: Queue, clock: Clock, tokens: int, unit: str, each_ms: int) -> None:
    """MDQ-16: all tokens in one burst, then one each millisecond, 30 ms or 240 s, and no loop over tokens."""
    still.configure(rate=RateLimit(max_tokens=tokens, interval=1, interval_unit=unit))
    fill(still, tokens + 20)
    assert len(still.reserve(tokens + 20)) == tokens
    for _ in range(3):
        clock.advance(each_ms - 0.001)
        assert still.reserve(20) == []
        clock.advance(0.001)
        assert len(still.reserve(20)) == 1
    clock.advance(7 * each_ms)
    assert len(still.reserve(20)) == 7


def test_all_tokens_may_be_spent_at_once(still: Queue) -> None:
    """MDQ-17: a batch that is larger than the bucket gets what there is."""
    still.configure(rate=RateLimit(max_tokens=10, interval=10))
    fill(still, 50)
    assert [len(still.reserve(50)) for _ in range(3)] == [10, 0, 0]


@pytest.mark.parametrize(("tokens", "total"), [(1, 61), (10, 70)])
def test_one_rate_may_come_in_two_bursts(still: Queue, clock: Clock, tokens: int, total: int) -> None:
    """MDQ-18: one a second and ten in ten seconds: in 60 s, asked each second, the bucket and 60 more."""
    still.configure(rate=RateLimit(max_tokens=tokens, interval=tokens))
    fill(still, 200)
    taken = [len(still.reserve(200))]
    for _ in range(60):
        clock.advance(1000)
        taken.append(len(still.reserve(200)))
    assert taken == [tokens] + [1] * 60
    assert sum(taken) == total


def test_an_answer_that_another_limit_empties_costs_no_token(still: Queue) -> None:
    """MDQ-19: a hundred tokens, room for three: after all the empty answers there are 97 tokens left."""
    still.configure(rate=RateLimit(max_tokens=100, interval=1), max_inflight=3)
    fill(still, 150)
    assert [len(still.reserve(50)) for _ in range(5)] == [3, 0, 0, 0, 0]
    still.pause()
    assert still.reserve(50) == []
    still.resume()
    still.configure(max_inflight=0)
    assert len(still.reserve(150)) == 97
    assert still.reserve(150) == []


def test_a_rate_is_shared_by_all_workers(still: Queue, clock: Clock, start: Start, audit: Audit) -> None:
    """MDQ-20: eight processes that ask at the same time, 20 a second for ten seconds: never above that, 220 in all."""
    still.configure(rate=RateLimit(max_tokens=20, interval=1))
    fill(still, 400)
    workers = [start(take_on_demand, "q") for _ in range(8)]
    taken: list[str] = []
    for step in range(21):
        for worker in workers:
            worker.say((3, 2, NOW_MS + step * 500))
        taken += itertools.chain(*(worker.hear() for worker in workers))
        assert len(taken) == len(set(taken)) == 20 + step * 10
    assert len(taken) == 220
    assert audit("q") == states(waiting=180, pending=220)


def test_only_the_sum_over_all_workers_is_promised(still: Queue, clock: Clock, client: Client, server: Server) -> None:
    """MDQ-21: one worker may get all and another none; in any order the sum is the same."""
    still.configure(rate=RateLimit(max_tokens=10, interval=1))
    fill(still, 100)
    with Client(server.url, keys_of(client).prefix, now_ms=clock) as another:
        greedy, late = still, another.queue("q")
        for _ in range(4):
            assert len(greedy.reserve(100)) + len(late.reserve(100)) == 10
            clock.advance(1000)
            greedy, late = late, greedy
        assert len(late.reserve(1)) + len(greedy.reserve(4)) + len(late.reserve(100)) == 10


def test_a_pause_stops_handing_out_and_nothing_else(still: Queue, clock: Clock, audit: Audit) -> None:
    """MDQ-22: enqueueing, reports, renewals, failures, the end of leases and promotion go on; then all is available."""
    still.configure(keepalive=10)
    fill(still, 4)
    done, failed, renewed, lost = still.reserve(4)
    still.pause()
    assert still.is_paused()
    still.push_many([*range(4, 8), Item(8, in_=5)])
    assert still.reserve(9) == still.pop(9) == []
    assert done.commit()
    assert failed.rollback(delay=1)
    clock.advance(9_999)
    assert renewed.extend()
    clock.advance(1)
    assert still.counts() == states(waiting=7, pending=1)
    with pytest.raises(NotReserved):
        lost.commit()
    assert still.reserve(9) == still.pop(9) == []
    still.resume()
    assert not still.is_paused()
    assert sorted(lease.payload for lease in still.reserve(9)) == [1, *range(3, 9)]
    assert renewed.commit()
    assert audit("q") == states(pending=7)


def test_a_paused_queue_answers_like_an_empty_one(
    queue: Queue, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MDQ-23: at once, or when the wait is over; a consumer that waits when the queue is resumed gets the task soon."""
    queue.pause()
    queue.push("x")
    began = time.monotonic()
    assert queue.reserve() == []
    assert queue.reserve(wait=0.3) == []
    assert 0.3 <= time.monotonic() - began < 0.3 + SLACK_S
    monkeypatch.setattr(lease_operations, "_RECHECK_S", 60.0)
    timer = threading.Timer(0.1, queue.resume)
    timer.start()
    (lease,) = queue.reserve(wait=40)
    timer.join()
    lease.release()
    queue.pause()
    assert audit("q") == states(waiting=1)


def test_a_pause_is_a_switch_that_outlives_everything(shell: Any, start_server: Callable[..., Server]) -> None:
    """MDQ-24: set from the command line while no worker runs; server and workers start anew and obey it."""
    server = start_server(appendonly="yes", appendfsync="always")
    environment = {"JOBRUNNER_URL": server.url, "JOBRUNNER_PREFIX": "kept"}
    with Client(server.url, "kept") as client:
        use(client)
        try:
            stopped, other = Instant().enqueue(), Instant().enqueue(queue="other")
            assert shell.run("queues", "pause", "q", **environment).code == 0
            server.kill()
            server.start()
            assert client.queue("q").is_paused()
            worker = Worker([], ["q", "other"], client=client)
            worker.start()
            wait_for(lambda: not other.exists())
            assert client.queue("q").reserve() == []
            assert stopped.state == "waiting"
            client.queue("q").resume()
            wait_for(lambda: not stopped.exists())
            worker.stop(grace=1)
        finally:
            forget()


def test_a_pause_may_have_an_end(still: Queue, clock: Clock, client: Client) -> None:
    """MDQ-24: resuming needs no running process; the last call counts, whichever process made it."""
    still.push("x")
    still.pause(for_=5)
    clock.advance(4_999.999)
    assert client.queue("q").is_paused()
    assert still.reserve() == []
    clock.advance(0.001)
    assert not still.is_paused()
    take(still).release()

    still.pause(for_=5)
    client.queue("q").pause()
    clock.advance(24 * HOUR_MS)
    assert still.reserve() == []
    still.pause(for_=1)
    still.resume()
    assert take(still).payload == "x"


@pytest.mark.parametrize("paused_s", [0.3, pytest.param(60, marks=pytest.mark.slow)])
def test_workers_do_not_notice_a_pause(
    work: StartWorker, client: Client, raw: redis.Redis, ledger: Ledger, paused_s: float
) -> None:
    """MDQ-25: they poll the queue and log nothing above `info`; when it is resumed, they go on."""
    queue = client.queue("t")
    queue.pause()
    task = Work(n=1).enqueue()
    with capture_logs() as said:
        work("t", poll=0.02)
        began, asked = time.monotonic(), _asked(raw)
        wait_for(lambda: _asked(raw) >= asked + 15 and time.monotonic() - began > paused_s, timeout_s=paused_s + 20)
        assert queue.counts() == states(waiting=1)
        queue.resume()
        assert task.result(timeout=10) == 1
    assert {line["event"] for line in said} >= {"worker started"}
    assert {line["log_level"] for line in said} <= {"debug", "info"}


def _asked(raw: redis.Redis) -> int:
    found: int = raw.info("commandstats")["cmdstat_evalsha"]["calls"]
    return found


def test_a_setting_counts_from_the_next_call_on(still: Queue, server: Server, client: Client, clock: Clock) -> None:
    """MDQ-26: ten seconds are allowed; here the server decides at each call, for all clients at once."""
    fill(still, 100)
    with Client(server.url, keys_of(client).prefix, now_ms=clock) as another:
        operator = another.queue("q")
        operator.configure(max_inflight=1)
        held = take(still)
        operator.configure(max_inflight=5)
        assert len(still.reserve(9)) == 4
        operator.configure(max_inflight=0, rate=RateLimit(max_tokens=3, interval=10))
        assert len(still.reserve(9)) == 3
        operator.configure(rate=None)
        assert len(still.reserve(9)) == 9
        operator.pause()
        assert still.reserve(9) == []
        operator.resume()
        operator.configure(keepalive=7)
        (lease,) = still.reserve()
        assert lease.deadline.timestamp() * 1000 == NOW_MS + 7000
    assert held.commit()


def test_all_processes_obey_a_new_setting(queue: Queue, start: Start) -> None:
    """MDQ-27: two that have asked before get, each at its next call, what the new setting allows."""
    fill(queue, 100)
    workers = [start(take_on_demand, "q") for _ in range(2)]

    def ask() -> list[int]:
        found = []
        for worker in workers:
            worker.say((2, 1, None))
            found.append(len(worker.hear()))
        return found

    assert ask() == [2, 2]
    queue.pause()
    assert ask() == [0, 0]
    queue.resume()
    assert ask() == [2, 2]
    queue.configure(max_inflight=9)
    assert ask() == [1, 0]
    queue.configure(max_inflight=12)
    assert ask() == [2, 1]


def test_a_bucket_survives_restarts(start_server: Callable[..., Server], clock: Clock) -> None:
    """MDQ-28: drained, it is empty for the next client, and after kill -9 of the server; then it refills as ever."""
    clock.set(NOW_MS)
    server = start_server(appendonly="yes", appendfsync="always")
    with Client(server.url, "kept", now_ms=clock) as client:
        client.queue("q").configure(rate=HOURLY)
        fill(client.queue("q"), 40)
        assert len(client.queue("q").reserve(40)) == 15
    with Client(server.url, "kept", now_ms=clock) as client:
        assert client.queue("q").reserve(40) == []
    server.kill()
    server.start()
    with Client(server.url, "kept", now_ms=clock) as client:
        clock.advance(239_999)
        assert client.queue("q").reserve(40) == []
        clock.advance(1)
        assert len(client.queue("q").reserve(40)) == 1


@pytest.mark.parametrize("step_ms", [-1, -5_000, -24 * HOUR_MS])
def test_a_clock_that_steps_back_neither_fills_nor_drains_a_bucket(still: Queue, clock: Clock, step_ms: int) -> None:
    """MDQ-29: there are as many tokens as before, and from there on they flow at their rate."""
    still.configure(rate=RateLimit(max_tokens=10, interval=10))
    fill(still, 60)
    assert len(still.reserve(6)) == 6
    clock.advance(step_ms)
    assert len(still.reserve(60)) == 4
    assert still.reserve(60) == []
    clock.advance(2_000)
    assert len(still.reserve(60)) == 2


@pytest.mark.parametrize("step_ms", [-1, -5_000, -24 * HOUR_MS])
def test_a_clock_that_steps_back_does_not_stop_a_drained_bucket(still: Queue, clock: Clock, step_ms: int) -> None:
    """MDQ-29: it need not be where it was before tokens flow again."""
    still.configure(rate=RateLimit(max_tokens=10, interval=10))
    fill(still, 60)
    assert len(still.reserve(10)) == 10
    clock.advance(step_ms)
    assert still.reserve(60) == []
    clock.advance(3_000)
    assert len(still.reserve(60)) == 3
