"""Rows KEU-25 to KEU-38 with stations: the guarantees for users of pipelines, with real workers.

The same rows for bare queues are in test_rows_keu.py.
"""

import itertools
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from jobrunner import Backoff, Client, Worker, job
from jobrunner.broker.keys import Keys
from jobrunner.errors import PipelineError
from jobrunner.etl import Drop, Pipeline, To
from jobrunner.jobs.registry import forget
from tests.acceptance import row_pipelines
from tests.acceptance.row_queues import Audit, Start, states
from tests.support.server import Server
from tests.support.waiting import wait_for

FALSY = [0, "", None, False, [], {}, 0.0]
AT_ONCE = Backoff(base=0.01, factor=1, jitter=0)
Run = Callable[..., None]


@pytest.fixture
def line() -> Pipeline:
    """A pipeline `p` without stations."""
    return Pipeline("p")


@pytest.fixture
def run(line: Pipeline, current: Client) -> Run:
    """run(): a worker takes what there is, until nothing is waiting or pending; drain=True: nor scheduled."""

    def work(*, drain: bool = False, **options: Any) -> None:
        served = [node.queue for node in line.graph.nodes if node.is_served]
        line.apply()
        Worker(queues=served, **{"concurrency": 4, **options}).run(burst=True, drain=drain)

    return work


def payloads(line: Pipeline, queue: str) -> list[Any]:
    """Takes all items out of a queue and returns them."""
    taken = line.queue(queue)
    return [item.payload for batch in iter(lambda: taken.pop(1000), []) for item in batch]


def dead(line: Pipeline, queue: str) -> list[Any]:
    """Records of the dead of a queue."""
    return line.queue(queue).tasks("dead")


@pytest.mark.parametrize("executor", ["threads", "async"])
def test_stations_are_joined_by_queues(line: Pipeline, run: Run, audit: Audit, executor: str) -> None:
    """KEU-25: a thousand items at the end of three stations, each once and with a stamp of each station."""
    for queue, to in itertools.pairwise("abcd"):
        line.station(queue, to=to)(lambda item: [*item.payload, item.queue])
    line.declare("d")
    line.push_many("a", [[number] for number in range(1000)])

    run(executor=executor)

    assert sorted(payloads(line, "d")) == [[number, "p/a", "p/b", "p/c"] for number in range(1000)]
    assert [audit(f"p/{queue}") for queue in "abc"] == [states()] * 3


def test_a_station_may_lead_to_itself(line: Pipeline, run: Run, audit: Audit) -> None:
    """KEU-26: twenty rounds and then a drop are twenty runs, and nothing is left."""
    runs = []

    @line.station("a", to="a")
    def again(item: Any) -> int:
        runs.append(item.attempt)
        if item.payload == 20:
            raise Drop("enough")
        return item.payload + 1

    line.push("a", 1)
    run()

    assert runs == [1] * 20
    assert audit("p/a") == states()
    assert line.queue("a").totals()["dropped"] == 1


def test_a_loop_without_an_end_is_stopped_by_its_limit_of_hops(current: Client, line: Pipeline) -> None:
    """KEU-26: after `max_hops` moves the item is dead, and says why; a loop of two, and a station on its own."""
    short = Pipeline("short", max_hops=7)
    short.station("a", to="b")(lambda item: None)
    short.station("b", to="a")(lambda item: None)
    short.station("self", to="self")(lambda item: None)
    short.push("a", "for ever")
    short.push("self", "for ever")

    Worker(queues=["short/a", "short/b", "short/self"]).run(burst=True)

    (in_pair,) = dead(short, "b")
    (alone,) = dead(short, "self")
    assert in_pair.fields["hops"] == alone.fields["hops"] == b"7"
    assert "TooManyHops" in in_pair.error
    assert "7" in alone.error


def test_a_topology_may_fork_and_join(line: Pipeline, run: Run, audit: Audit) -> None:
    """KEU-26: in a diamond each item takes one of both ways and arrives once."""

    @line.station("a", to=("b", "c"))
    def fork(item: Any) -> To:
        return To("b" if item.payload % 2 else "c", [item.payload])

    line.station("b", to="d")(lambda item: [*item.payload, "odd"])
    line.station("c", to="d")(lambda item: [*item.payload, "even"])
    line.declare("d")
    line.push_many("a", range(300))

    run()

    assert sorted(payloads(line, "d")) == [[n, "odd" if n % 2 else "even"] for n in range(300)]


def test_a_list_is_one_item_and_only_a_fan_out_makes_several(line: Pipeline, run: Run, audit: Audit) -> None:
    """KEU-27: one item becomes none, one or many, in one step; each goes to the queue named for it, with an id of its
    own that repetitions keep, and with the headers of its parent."""
    line.station("list", to="end")(lambda item: [item.payload, [2, 3]])

    @line.station("fan", to=("end", "other"), fan_out=True)
    def spread(item: Any) -> Iterator[To]:
        for number in range(item.payload):
            yield To("other" if number % 2 else "end", number, headers={"number": str(number)})

    line.declare("end")
    line.declare("other")
    line.push("list", 1)
    none, one, many = (line.push("fan", count, headers={"trace": "t"}) for count in (0, 1, 5))
    run()

    found = [lease for queue in ("end", "other") for lease in line.queue(queue).reserve(100)]
    assert sorted(repr(lease.payload) for lease in found) == sorted(map(repr, [[1, [2, 3]], 0, 0, 1, 2, 3, 4]))
    children = [lease for lease in found if lease.payload != [1, [2, 3]]]
    assert len({lease.id for lease in children} | {none, one, many}) == 9
    assert all(lease.headers == {"trace": "t", "number": str(lease.payload)} for lease in children)
    totals = line.queue("fan").totals()
    assert (totals["dropped"], totals["succeeded"], totals.get("moved_out", 0)) == (1, 2, 0)
    assert audit("p/fan") == states()


@pytest.mark.processes
@pytest.mark.parametrize(("moves", "kills"), [(1000, 4), pytest.param(5000, 20, marks=pytest.mark.slow)])
def test_an_item_is_in_one_queue_whichever_worker_is_killed(
    current: Client, start: Start, server: Server, keys: Keys, audit: Audit, moves: int, kills: int
) -> None:
    """KEU-29: workers are killed at random points; a reader of both queues in one step finds each item in one."""
    pair = row_pipelines.pair
    pair.apply(current)
    for first in range(0, moves, 1000):
        pair.push_many("a", [[n] for n in range(first, min(first + 1000, moves))])
    own = [getattr(keys.queue(name), state) for name in ("pair/a", "pair/b") for state in states() if state != "done"]
    seen, is_over = set[tuple[int, ...]](), threading.Event()

    def look() -> None:
        with server.connect() as connection:
            while not is_over.is_set():
                pipeline = connection.pipeline(transaction=True)
                for key in own:
                    pipeline.zcard(key)
                seen.add(tuple(pipeline.execute()))

    observer = threading.Thread(target=look)
    observer.start()
    b = pair.queue("b")
    workers = [start(row_pipelines.serve, ["pair/a"]) for _ in range(2)]
    for moved in sorted(random.Random(29).sample(range(1, moves * 9 // 10), kills)):
        wait_for(lambda moved=moved: b.counts()["waiting"] >= moved, timeout_s=60)
        workers.pop(0).kill()
        workers.append(start(row_pipelines.serve, ["pair/a"]))
    wait_for(lambda: b.counts()["waiting"] == moves, timeout_s=60)
    is_over.set()
    observer.join()

    assert {sum(counts) for counts in seen} == {moves}
    assert len(seen) > kills
    assert sorted(payloads(pair, "b")) == [[number, "moved"] for number in range(moves)]
    assert audit("pair/a") == states()


def test_a_pipeline_is_one_slot_and_what_is_outside_is_refused_when_it_is_built(
    line: Pipeline, run: Run, raw: redis.Redis, keys: Keys
) -> None:
    """KEU-30: before anything is sent; so is a target that no station, sink or declaration knows."""
    asked = raw.info("stats")["total_commands_processed"]
    with pytest.raises(PipelineError, match="is of pipeline 'other', not of 'p'"):
        line.station("a", to="other/b")
    line.station("a", to="b")(lambda item: None)
    with pytest.raises(PipelineError, match="has no such queue"):
        line.push("a", 1)
    assert raw.info("stats")["total_commands_processed"] == asked + 1

    line.sink("b", history=60)(lambda item: "done")
    line.push("a", 1)
    run()
    written = list(raw.scan_iter(match=f"{keys.prefix}:{{p}}:*"))
    assert len(written) > 5
    assert {key_slot(key) for key in written} == {key_slot(b"p")}
    assert {b"p/a", b"p/b"} <= raw.smembers(keys.queues)


def test_a_station_begins_with_the_first_attempt(line: Pipeline, run: Run, current: Client) -> None:
    """KEU-33: failed twice and moved: attempt 1 in the next station; the total is kept."""
    tries: list[tuple[str, int]] = []

    @line.station("a", to="b", max_attempts=3, backoff=AT_ONCE)
    def flaky(item: Any) -> None:
        tries.append(("a", item.attempt))
        if item.attempt < 3:
            raise ValueError("not yet")

    @line.station("b", to="c")
    def next_one(item: Any) -> None:
        tries.append(("b", item.attempt))

    line.declare("c")
    task_id = line.push("a", 1)
    run(drain=True)

    record = current.task(task_id).record()
    assert tries == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]
    assert (record.queue, record.retry_count, record.fields["total_attempts"]) == ("p/c", 0, b"4")


def test_a_station_may_delay_an_item_and_a_paused_queue_takes_it(line: Pipeline, run: Run) -> None:
    """KEU-34: a delayed item is scheduled, with its priority; a paused queue stores items and hands none out."""

    @line.station("a", to=("later", "paused"))
    def delay(item: Any) -> To:
        return To(item.payload, delay=timedelta(hours=1) if item.payload == "later" else 0, priority=2)

    line.sink("later")(lambda item: None)
    line.sink("paused")(lambda item: None)
    line.push_many("a", ["later", "paused"])
    line.queue("paused").pause()
    run()

    assert line.queue("later").counts() == states(scheduled=1)
    assert line.queue("paused").counts() == states(waiting=1)
    assert line.queue("later").tasks("scheduled")[0].priority == 2


def test_a_full_queue_makes_the_move_wait_and_the_item_stays_safe(line: Pipeline, current: Client) -> None:
    """KEU-34: it stays pending where it was, its function is not run again, and it goes on when there is room."""
    runs: list[int] = []

    @line.station("a", to="b")
    def work(item: Any) -> int:
        runs.append(item.payload)
        return item.payload

    line.declare("b", max_size=2)
    line.push_many("a", range(20))
    worker = Worker(queues=["p/a"], concurrency=2)
    worker.start()
    a, b = line.queue("a"), line.queue("b")
    try:
        wait_for(lambda: b.counts()["waiting"] == 2 and a.counts()["pending"] >= 1)
        arrived: list[int] = []
        while len(arrived) < 20:
            counted = b.counts()["waiting"]
            assert counted <= 2
            wait_for(lambda: b.counts()["waiting"] > 0)
            arrived += [item.payload for item in b.pop(1)]
    finally:
        worker.stop(grace=5)

    assert sorted(arrived) == list(range(20))
    assert sorted(runs) == list(range(20))
    assert a.counts() == states()


def test_moves_in_a_loop_do_not_wait_for_room_that_they_would_have_to_make(line: Pipeline, run: Run) -> None:
    """KEU-34: two stations that lead to each other, with room for three in each: everything arrives."""

    @line.station("a", to="b", max_size=3)
    def there(item: Any) -> int:
        return item.payload + 1

    @line.station("b", to=("a", "end"), max_size=3)
    def back(item: Any) -> To:
        return To("end" if item.payload >= 10 else "a", item.payload)

    line.declare("end")
    for _ in range(3):
        line.push_many("a", [0, 0, 0])
        run()

    assert payloads(line, "end") == [10] * 9


@pytest.mark.parametrize("value", FALSY, ids=repr)
def test_every_falsy_payload_arrives_as_it_was_given(line: Pipeline, run: Run, value: Any) -> None:
    """KEU-35: pushed, kept by a station that returns nothing, returned, sent with To, and one of a fan-out."""
    line.station("kept", to="end")(lambda item: None)
    line.station("returned", to="end")(lambda item: value if value is not None else To("end", None))
    line.station("sent", to="end")(lambda item: To("end", value))
    line.station("spread", to="end", fan_out=True)(lambda item: [value])
    line.declare("end")
    line.push("kept", value)
    for queue in ("returned", "sent", "spread"):
        line.push(queue, {"old": True})
    run()

    found = payloads(line, "end")
    assert (found, {type(one) for one in found}) == ([value] * 4, {type(value)})


def test_the_result_of_a_sink_is_in_its_history(line: Pipeline, run: Run, current: Client) -> None:
    """KEU-36: together with the payload; without history nothing is left of the item."""
    line.sink("kept", history=60)(lambda item: {"stored": item.payload})
    line.sink("gone")(lambda item: "stored")
    kept, gone = line.push("kept", 0), line.push("gone", 0)
    run()

    (record,) = line.queue("kept").history()
    assert (record.id, record.payload, record.result) == (kept, 0, {"stored": 0})
    assert not current.task(gone).exists()


def test_a_moved_item_is_taken_on_at_once(line: Pipeline, current: Client) -> None:
    """KEU-37: the next station begins within 50 ms, though the lease of the one before had half a minute left. The best
    of many times counts, as the machine may pause."""
    left: dict[int, float] = {}
    taken: dict[int, float] = {}

    @line.station("a", to="b")
    def first(item: Any) -> None:
        left[item.payload] = time.monotonic()

    @line.sink("b")
    def second(item: Any) -> None:
        taken[item.payload] = time.monotonic()

    worker = Worker(queues=["p/a", "p/b"])
    worker.start()
    try:
        for times_left in reversed(range(20)):
            left.clear()
            taken.clear()
            for number in range(30):
                line.push("a", number)
                wait_for(lambda number=number: number in taken)
            lasted_s = statistics.median(taken[number] - left[number] for number in range(30))
            if lasted_s < 0.05:
                break
            assert times_left, f"{lasted_s:.3f} s between two stations"
    finally:
        worker.stop()


def test_id_and_headers_survive_the_whole_way(line: Pipeline, run: Run) -> None:
    """KEU-38: with the time of the push; a station can add headers, or replace them."""
    seen: list[tuple[str, dict[str, str], Any]] = []
    line.station("a", to="b")(lambda item: To("b", headers={"by": "a", "step": "1"}))
    line.station("b", to="c")(lambda item: {"new": True})

    @line.sink("c")
    def last(item: Any) -> None:
        seen.append((item.id, dict(item.headers), item.enqueue_time))

    pushed = line.push("a", 1, headers={"trace": "t", "step": "0"})
    enqueued = line.client.task(pushed).record().enqueue_time
    run()

    assert seen == [(pushed, {"trace": "t", "step": "1", "by": "a"}, enqueued)]


def test_a_dead_item_can_be_put_back_into_the_same_station(line: Pipeline, run: Run) -> None:
    """KEU-33: changed or unchanged; its attempts start again there, and it goes on from there."""
    line.station("a", to="end", max_attempts=1)(lambda item: 100 // item.payload)
    line.declare("end")
    line.push_many("a", [0, 5])
    run()
    (found,) = dead(line, "a")
    assert found.error.startswith("ZeroDivisionError")
    assert payloads(line, "end") == [20]

    assert line.queue("a").requeue_dead([found.id], payload=50) == 1
    run()
    assert payloads(line, "end") == [2]
    assert dead(line, "a") == []


def test_what_a_station_may_not_answer_ends_in_dead_with_the_reason(line: Pipeline, run: Run) -> None:
    """KEU-26: at the first attempt, as a second one would answer the same; nothing else is touched."""

    @line.station("a", to=("home", "abroad"))
    def fork(item: Any) -> Any:
        return To("aboard") if item.payload else item.payload

    line.declare("home")
    line.declare("abroad")
    line.push_many("a", [0, 1])
    run()

    errors = {record.payload: record.error for record in dead(line, "a")}
    assert "did you mean 'abroad'?" in errors[1]
    assert "return To(queue)" in errors[0]
    assert {record.attempts for record in dead(line, "a")} == {1}


def test_stations_run_beside_jobs_and_on_as_many_items_as_their_concurrency(line: Pipeline, current: Client) -> None:
    """KEU-25: one worker serves all that its modules declare; a station's limit holds on all workers together."""
    at_once, most, lock = 0, 0, threading.Lock()

    @job(queue="plain", name="PlainBeside")
    def plain() -> str:
        return "done"

    @line.sink("a", concurrency=2)
    def slow(item: Any) -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.01)
        with lock:
            at_once -= 1

    try:
        line.push_many("a", range(20))
        task = plain.enqueue()
        workers = [Worker(queues=["plain", "p/a"], client=current) for _ in range(2)]
        for worker in workers:
            worker.start()
        assert task.result(timeout=10) == "done"
        wait_for(lambda: line.queue("a").totals().get("succeeded") == 20)
        for worker in workers:
            worker.stop()
    finally:
        forget("PlainBeside")

    assert most <= 2
