"""Stations under real workers: full queues, loops, fan-outs, and nothing lost."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import structlog

from jobrunner import Client
from jobrunner.attempt import Attempt
from jobrunner.jobs.declared_queues import declare_of_pipeline, forget_queue
from jobrunner.jobs.options import JobOptions
from jobrunner.jobs.registry import StationDefinition, forget_station, register_station
from jobrunner.jobs.running_task import JobRun
from jobrunner.outcome import Dropped, FannedOut, Moved
from tests.support.waiting import wait_for

Act = Callable[[Attempt], Any]


class Item:
    """Runs one attempt."""

    def __init__(self, act: Act, attempt: Attempt) -> None:
        self._act, self._attempt = act, attempt

    def run(self) -> Any:
        return self._act(self._attempt)


@pytest.fixture
def station() -> Iterator[Callable[..., None]]:
    """station(queue, act, …): declares a station with this function for the items of a queue."""
    declared: list[str] = []

    def declare(queue: str, act: Act, **settings: Any) -> None:
        def build(attempt: Attempt, _: JobRun) -> Item:
            return Item(act, attempt)

        definition = StationDefinition(
            name=queue, origin=f"test:{queue}", queue=queue, options=JobOptions(queue=queue), build=build,
            is_async=False,
        )  # fmt: skip
        register_station(queue, definition)
        declare_of_pipeline(queue, settings, f"test:{queue}")
        declared.append(queue)

    yield declare
    for queue in declared:
        forget_station(queue)
        forget_queue(queue)


def test_a_slow_consumer_holds_up_what_is_before_it_and_nothing_is_lost_or_run_twice(
    current: Client, station: Any, start: Any
) -> None:
    """KEU-34, KEU-25"""
    ran: Counter[bytes] = Counter()
    sizes: list[int] = []

    def parse(attempt: Attempt) -> Moved:
        ran[attempt.payload or b""] += 1
        return Moved(queue="slow/clean")

    station("slow/raw", parse)
    current.queue("slow/clean").configure(max_size=5)
    current.queue("slow/raw").push_many(range(300))
    station("slow/other", lambda attempt: Dropped())
    start(queues=["slow/raw", "slow/other"], concurrency=4)
    clean = current.queue("slow/clean")
    wait_for(lambda: clean.counts()["waiting"] == 5)

    current.queue("slow/other").push_many(range(20))
    wait_for(lambda: current.queue("slow/other").totals().get("dropped") == 20)

    taken: list[Any] = []
    while len(taken) < 300:
        wait_for(lambda: clean.counts()["waiting"] > 0)
        sizes.append(clean.counts()["waiting"])
        leases = clean.reserve(3)
        taken += [lease.payload for lease in leases]
        clean.commit_many(leases)

    assert max(sizes) <= 5
    assert sorted(taken) == list(range(300))
    assert set(ran.values()) == {1}
    assert current.queue("slow/raw").totals()["moved_out"] == 300


def test_stations_of_one_worker_hand_on_to_each_other_through_small_queues(
    current: Client, station: Any, run: Any
) -> None:
    """KEU-25: three stations, 1 000 items, each with the stamps of all."""
    ends: list[list[int]] = []

    def stamp(number: int, to: str) -> Act:
        def act(attempt: Attempt) -> Moved:
            stamps = msgspec.json.decode(attempt.payload or b"")
            return Moved(queue=to, payload=msgspec.json.encode([*stamps, number]))

        return act

    station("line/a", stamp(1, "line/b"))
    station("line/b", stamp(2, "line/c"), max_size=20)
    station("line/c", lambda attempt: ends.append(msgspec.json.decode(attempt.payload)), max_size=20)
    for queue in ("line/b", "line/c"):
        current.queue(queue).configure(max_size=20)
    current.queue("line/a").push_many([] for _ in range(1000))

    summary = run(queues=["line/a", "line/b", "line/c"])

    assert ends == [[1, 2]] * 1000
    assert summary.finished == 3000
    assert current.queue("line/c").totals()["succeeded"] == 1000


def test_a_loop_on_a_full_queue_comes_to_its_end(current: Client, station: Any, run: Any) -> None:
    """KEU-26: A→A, 20 rounds, then dropped."""
    runs: Counter[str] = Counter()

    def again(attempt: Attempt) -> Any:
        runs[attempt.id] += 1
        return Dropped() if runs[attempt.id] == 20 else Moved(queue="loop/a", waits=False, max_hops=100)

    station("loop/a", again)
    queue = current.queue("loop/a")
    queue.push_many(range(10))
    queue.configure(max_size=3)

    run(queues=["loop/a"])

    assert set(runs.values()) == {20}
    assert len(runs) == 10
    assert queue.totals()["dropped"] == 10
    assert queue.counts() == {"waiting": 0, "scheduled": 0, "pending": 0, "dead": 0, "done": 0}


def test_an_endless_loop_ends_at_the_limit_of_hops(current: Client, station: Any, run: Any) -> None:
    """KEU-26"""
    runs = 0

    def again(attempt: Attempt) -> Moved:
        nonlocal runs
        runs += 1
        return Moved(queue="endless/a", waits=False, max_hops=7)

    station("endless/a", again)
    current.queue("endless/a").push(1)

    run(queues=["endless/a"])

    assert runs == 8
    (dead,) = current.queue("endless/a").tasks("dead")
    assert "moved 7 times" in dead.error


def test_a_fan_out_makes_new_items_in_one_step(current: Client, station: Any, run: Any) -> None:
    lock, ends = threading.Lock(), []

    def split(attempt: Attempt) -> FannedOut:
        parts = msgspec.json.decode(attempt.payload or b"")
        return FannedOut(
            children=tuple(Moved(queue="fan/part", payload=msgspec.json.encode(part), max_hops=9) for part in parts)
        )

    def collect(attempt: Attempt) -> None:
        with lock:
            ends.append(msgspec.json.decode(attempt.payload or b""))

    station("fan/whole", split)
    station("fan/part", collect)
    current.queue("fan/part").configure(max_size=10)
    current.queue("fan/whole").push_many([[n, n + 1000, n + 2000] for n in range(200)])

    run(queues=["fan/whole", "fan/part"])

    assert sorted(ends) == [*range(200), *range(1000, 1200), *range(2000, 2200)]
    assert current.queue("fan/part").totals()["enqueued"] == 600


def test_a_worker_that_stops_moves_what_it_has_run_when_room_comes_in_its_grace(
    current: Client, station: Any, start: Any
) -> None:
    ran: Counter[bytes] = Counter()

    def parse(attempt: Attempt) -> Moved:
        ran[attempt.payload or b""] += 1
        return Moved(queue="stop/full")

    station("stop/raw", parse)
    full, raw = current.queue("stop/full"), current.queue("stop/raw")
    full.configure(max_size=1)
    raw.push_many(range(30))
    worker = start(queues=["stop/raw"], concurrency=4)
    wait_for(lambda: full.counts()["waiting"] == 1 and len(worker._parts.fetcher.reporting.backpressure))

    stopping = threading.Thread(target=worker.stop, kwargs={"grace": 60})
    stopping.start()
    wait_for(lambda: worker._parts.fetcher.quiet)
    assert stopping.is_alive()
    moved: list[int] = []
    wait_for(lambda: moved.extend(item.payload for item in full.pop(9)) is None and not stopping.is_alive())
    moved += [item.payload for item in full.pop(9)]

    assert sorted(ran) == sorted(b"%d" % number for number in moved)
    assert set(ran.values()) == {1}
    assert (raw.counts()["waiting"], raw.counts()["pending"]) == (30 - len(moved), 0)


def test_what_waits_for_room_is_handed_back_when_the_grace_is_over(current: Client, station: Any, start: Any) -> None:
    station("stop/raw", lambda attempt: Moved(queue="stop/full"))
    current.queue("stop/full").configure(max_size=1)
    raw = current.queue("stop/raw")
    ids = raw.push_many(range(30))
    worker = start(queues=["stop/raw"], concurrency=4)
    wait_for(lambda: current.queue("stop/full").counts()["waiting"] == 1 and worker.in_hand)

    worker.stop(grace=0.2)

    moved = current.queue("stop/full").ids("waiting")
    assert sorted([*raw.ids("waiting"), *moved]) == ids
    assert raw.counts()["pending"] == 0
    assert {record.retry_count for record in raw.tasks("waiting")} == {0}


def test_burst_does_not_wait_for_capacity_of_a_paused_queue(current: Client, station: Any, run: Any) -> None:
    """It never ended: items in hand waited for a queue that nobody takes from, and others behind them."""
    for name, to in (("x", "a"), ("a", "b"), ("b", "c")):
        station(f"stuck/{name}", lambda attempt, to=to: Moved(queue=f"stuck/{to}"))
    queues = {name: current.queue(f"stuck/{name}") for name in "xabc"}
    queues["a"].configure(max_size=3)
    queues["c"].configure(max_size=2)
    queues["c"].pause()
    ids = queues["b"].push_many(range(5))
    with structlog.testing.capture_logs() as logged:
        assert run(queues=["stuck/b"], concurrency=2).released
    said = [line["queue"] for line in logged if line["event"].startswith("the worker ends while items wait")]
    assert said == ["stuck/b"]
    assert sorted(queues["b"].ids("waiting") + queues["c"].ids("waiting")) == ids

    queues["c"].resume()
    queues["b"].configure(max_size=1)
    queues["b"].pause()
    ids += queues["x"].push_many(range(9))
    run(queues=["stuck/x", "stuck/a"], concurrency=2)
    assert sorted(one for queue in queues.values() for one in queue.ids("waiting")) == sorted(ids)
    assert {record.retry_count for queue in queues.values() for record in queue.tasks("waiting")} == {0}


def test_a_station_in_child_processes_moves_its_items_on(current: Client, run: Any) -> None:
    from tests.unit.worker.child_jobs import CHILD_STATION

    current.queue(CHILD_STATION).push_many([b"move", b"spread", b"drop"])

    run(queues=[CHILD_STATION], executor="processes", concurrency=1, modules=["tests.unit.worker.child_jobs"])

    totals = current.queue(CHILD_STATION).totals()
    assert (totals["moved_out"], totals["succeeded"], totals["dropped"]) == (1, 1, 1)
    assert current.queue("child/next").counts()["scheduled"] == 1
    assert current.queue("child/a").counts()["waiting"] == 1
