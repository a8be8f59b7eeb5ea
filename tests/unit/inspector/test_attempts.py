"""The worker that holds a task, found on a real server with heartbeats of workers that do not run."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import leases
from jobrunner.client.batches import Batches
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.clock import from_ms
from jobrunner.inspector.attempts import (
    at_work,
    holder_of,
    still_running,
    timeline,
    with_beginnings,
    with_begun_attempt,
    with_begun_attempts,
)
from jobrunner.inspector.live_snapshot import look
from jobrunner.inspector.task_rows import first_lines
from jobrunner.task import Task
from jobrunner.worker.fetch.reserve_plan import LeaseNumbers

ONE, OTHER = "host.11.00c0de", "elsewhere.12.00beef"


def announce(client: Client, worker: str, *, running: Any = (), **known: Any) -> None:
    host, pid, _ = worker.split(".")
    said = {"host": host, "pid": pid, "queues": "mail", "running": msgspec.json.encode(running)} | known
    broker_of(client).run(leader_calls.announce(keys_of(client), worker, said, ttl_ms=60_000))


@pytest.fixture
def held(client: Client) -> Any:
    """held(id, worker): a task of `mail` that the worker holds."""

    def hold(task_id: str, worker: str) -> Any:
        task = client.enqueue(Task(id=task_id, queue="mail", payload=b"{}", type="Send", keepalive_ms=1000))
        (attempt,) = broker_of(client).run(
            leases.reserve(keys_of(client).queue("mail"), 1, token=LeaseNumbers(worker).first_of(1))
        ).attempts
        return task, attempt

    return hold


def test_the_worker_that_holds_a_task_is_found_by_the_number_of_its_lease(client: Client, held: Any) -> None:
    announce(client, ONE)
    announce(client, OTHER, running=[["mail", "b", "Send", 1, 1000.0]])
    (first, _), (second, _) = held("a", ONE), held("b", OTHER)

    not_begun, begun = (holder_of(client, task.record(), client.workers()) for task in (first, second))

    assert (not_begun.worker.id, not_begun.running) == (ONE, None)
    assert (begun.worker.host, begun.worker.pid, begun.running.began_ms) == ("elsewhere", 12, 1000.0)


def test_a_worker_that_is_gone_is_known_by_its_mark_and_a_program_not_at_all(client: Client, held: Any) -> None:
    task, _ = held("a", ONE)
    queue = client.queue("mail")
    queue.push(1, id="b")
    queue.reserve()

    gone = holder_of(client, task.record(), client.workers())
    program = holder_of(client, client.task("b", queue="mail").record(), client.workers())

    assert (gone.mark, gone.worker) == ("00c0de", None)
    assert (program.mark, program.worker) == ("", None)


def test_an_attempt_starts_when_its_worker_began_it_and_not_when_it_was_handed_out(
    client: Client, held: Any, clock: Any
) -> None:
    now_ms = clock.set()
    client.queue("mail").configure(history=timedelta(days=1))
    task, attempt = held("a", ONE)

    def started(record: Any) -> Any:
        holder = holder_of(client, record, client.workers())
        return [one.at for one in timeline(record, holder=holder) if one.kind == "started"]

    assert started(task.record()) == [from_ms(now_ms)], "no more is known without a word of the worker"
    announce(client, ONE)
    assert started(task.record()) == [], "it waits in the worker"
    announce(client, ONE, running=[["mail", "a", "Send", 1, now_ms + 600]])
    assert started(task.record()) == [from_ms(now_ms + 600)]

    clock.advance(900)
    report = (attempt.id, attempt.token, 60_000, "succeeded", b"", b"", "Send")
    broker_of(client).run(leases.commit(keys_of(client).queue("mail"), [report]))
    ended = task.record()
    measured = replace(ended, fields={**ended.fields, "run_ms": b"300"})
    assert (started(ended), started(measured)) == ([from_ms(now_ms)], [from_ms(now_ms + 600)])


def test_nobody_holds_a_task_that_waits(client: Client) -> None:
    task = client.enqueue(Task(id="a", queue="mail", payload=b"{}"))

    assert holder_of(client, task.record(), []) is None


def test_a_failed_attempt_names_its_worker_and_an_expired_one_too_while_that_lives(
    client: Client, held: Any, clock: Any
) -> None:
    clock.set()
    task, attempt = held("a", ONE)
    report = (attempt.id, attempt.token, 0, "retry", "no")
    broker_of(client).run(leases.fail(keys_of(client).queue("mail"), [report], worker=ONE))
    clock.advance(10)
    broker_of(client).run(leases.reserve(keys_of(client).queue("mail"), 1, token=LeaseNumbers(OTHER).first_of(1)))
    clock.advance(1500)
    client.queue("mail").reserve()

    def said() -> Any:
        return [(one.kind, one.worker) for one in timeline(task.record(), client.workers())[1:3]]

    assert said() == [("failed", ONE), ("expired", "00beef")]
    announce(client, OTHER, release="1.4.2")
    announce(client, ONE, release="1.4.1")
    assert said() == [("failed", ONE), ("expired", OTHER)]
    releases = [one.release for one in timeline(task.record(), client.workers())[1:3]]
    assert releases == ["1.4.1", "1.4.2"]


def test_at_work_is_what_workers_say_longest_first_and_then_what_else_is_pending(client: Client, held: Any) -> None:
    announce(client, ONE, running=[["mail", "a", "Send", 1, 2000.0]])
    announce(client, OTHER, running=[["mail", "b", "Send", 2, 1000.0], ["mail", "gone", "Send", 1, 3000.0]])
    for name, worker in (("a", ONE), ("b", OTHER), ("c", OTHER)):
        held(name, worker)

    found = at_work(client.workers(), broker_of(client).run(first_lines(client, "mail", "pending", count=10)))

    assert [(one.id, one.worker and one.worker.id) for one in found] == [
        ("b", OTHER), ("a", ONE), ("gone", OTHER), ("c", None),
    ]  # fmt: skip
    assert [one.lease_ends is None for one in found] == [False, False, True, False]


def test_a_member_of_a_batch_is_held_by_the_worker_that_says_it_has_the_batch(client: Client) -> None:
    queue = client.queue("mail")
    queue.push_many([1, 2])
    lease = Batches(broker_of(client), keys_of(queue)).take(1, lease_s=30)
    (member,) = lease.members(0, 1)
    record = client.task(member, queue="mail").record()

    assert holder_of(client, record, client.workers()).worker is None
    for batch in (lease.id, f"{lease.id}.1.2"):
        announce(client, ONE, running=[["mail", "other", "", 1, 5.0, 3], ["mail", batch, "", 1, 1000.0, 1]])
        found = holder_of(client, record, client.workers())
        assert (found.worker.id, found.running.id, found.running.items) == (ONE, batch, 1)


def test_a_batch_of_a_shard_is_held_by_the_worker_that_names_the_queue(client: Client) -> None:
    queue = client.queue("mail")
    queue.configure(partitions=2)
    for n in range(4):
        queue.push(n)
    lease = Batches(broker_of(client), keys_of(client).queue("mail@1")).take(1, lease_s=30)
    assert lease is not None
    (member,) = lease.members(0, 1)
    announce(client, ONE, running=[["mail", lease.id, "", 1, 1000.0, 1]])

    record = client.task(member, queue="mail").record()
    assert (record.queue, holder_of(client, record, client.workers()).worker.id) == ("mail@1", ONE)


def test_an_attempt_whose_lease_is_over_does_not_run_and_its_neighbours_do(client: Client, held: Any) -> None:
    (_, first), (_, second), (_, third) = held("a", ONE), held("b", ONE), held("c", ONE)
    client.queue("other").push(1, id="a")
    running = [["mail", one.id, "Send", 1, 1000.0, 0, one.token] for one in (first, second, third)]
    running += [["other", "a", "Send", 1, 1.0, 0, first.token], ["mail", "batch", "", 1, 1.0, 7]]
    announce(client, ONE, running=running, executing=4, concurrency=2, fetched=3)
    report = (second.id, second.token, 0, "retry", "no")
    broker_of(client).run(leases.fail(keys_of(client).queue("mail"), [report], worker=ONE))

    seen = look(client)

    assert [one.id for one in seen.workers[0].running] == ["a", "c", "batch"]
    assert (seen.executing, seen.fetched, seen.slots) == (2, 3, 2)


def test_an_attempt_is_over_too_when_its_task_is_held_under_another_lease(client: Client, held: Any) -> None:
    _, attempt = held("a", ONE)
    announce(client, OTHER, running=[["mail", "a", "Send", 1, 1.0, 0, str(int(attempt.token) + 1)]], executing=1)

    assert (look(client).workers[0].running, look(client).executing) == ((), 0)


def test_attempts_of_many_queues_are_checked_in_few_commands(client: Client) -> None:
    for n in range(15):
        client.queue(f"q{n}").push(1)
    running = [[f"q{n}", "gone", "", 1, 1.0, 0, "7"] for n in range(15)]
    announce(client, ONE, running=running, executing=15)

    assert look(client).executing == 5  # those of ten queues are checked; the others count as the worker reported


def test_a_task_that_is_fetched_and_not_begun_has_no_attempt(client: Client, held: Any) -> None:
    held("a", ONE)
    held("b", ONE)
    announce(client, ONE, running=[["mail", "b", "Send", 1, 2000.0]], executing=1, fetched=1)
    rows = broker_of(client).run(first_lines(client, "mail", "pending", count=10))

    found = with_beginnings(rows, client.workers())

    assert [(row.id, row.attempt, row.started is None) for row in found] == [("a", None, True), ("b", 1, False)]
    assert [(one.id, one.is_fetched) for one in at_work(client.workers(), found)] == [("b", False), ("a", True)]
    announce(client, ONE, running=[["mail", "b", "Send", 1, 2000.0]], executing=2)
    assert [row.attempt for row in with_beginnings(rows, client.workers())] == [1, 1]  # it runs more than it lists
    (worker,) = client.workers()
    assert still_running(worker, ()) is worker


def test_records_count_an_attempt_from_its_begin(client: Client, held: Any) -> None:
    for name in ("a", "b"):
        held(name, ONE)
    client.queue("mail").push(1, id="waits")
    announce(client, ONE, running=[["mail", "b", "Send", 1, 2000.0]], executing=1, fetched=1)
    records = [client.task(name, queue="mail").record() for name in ("a", "b", "waits")]
    workers = client.workers()

    assert [one.attempts for one in with_begun_attempts(records, workers)] == [0, 1, 0]
    for record, attempts in zip(records, (0, 1, 0), strict=True):
        assert with_begun_attempt(record, holder_of(client, record, workers)).attempts == attempts
    announce(client, ONE, running=[["mail", "b", "Send", 1, 2000.0]], executing=2)  # it runs more than it lists
    assert [one.attempts for one in with_begun_attempts(records, client.workers())] == [1, 1, 0]


@pytest.mark.parametrize(
    ("running", "executing", "fetched", "shares"),
    [
        ([], 0, 0, (0, 0, 0, 6)),
        ([], 1, 3, (1, 0, 3, 2)),
        ([["mail", "batch", "", 1, 1.0, 4]], 1, 1, (1, 4, 1, 0)),
        ([], 2, 9, (2, 0, 4, 0)),  # some that were fetched have ended since
        ([], 8, 1, (6, 0, 0, 0)),
    ],
)
def test_pending_tasks_are_the_sum_of_what_is_said_of_them(
    running: list[Any], executing: int, fetched: int, shares: tuple[int, ...], client: Client
) -> None:
    client.queue("mail").push_many(range(6))
    client.queue("mail").reserve(6)
    announce(client, ONE, running=running, executing=executing, fetched=fetched)

    seen = look(client)

    assert sum(seen.pending_shares.values()) == seen.total("pending") == 6
    assert tuple(seen.pending_shares[name] for name in ("running", "batched", "fetched", "unreported")) == shares


def test_a_task_that_never_ran_has_no_attempt_and_one_that_failed_once_has_one(client: Client) -> None:
    queue = client.queue("mail")
    queue.push_many([1, 2])
    (lease,) = queue.reserve(1)
    lease.rollback(error="no")

    calls = [first_lines(client, "mail", state, count=10) for state in ("waiting", "scheduled")]
    found = {row.id: row.attempt for rows in broker_of(client).run_many(calls) for row in rows}

    assert found.pop(lease.id) == 1
    assert list(found.values()) == [None]
