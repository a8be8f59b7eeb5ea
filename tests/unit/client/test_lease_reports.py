"""Reports on a batch of leases, for threads and for asyncio alike."""

import pickle
from typing import Any

import pytest
import redis

from jobrunner import Client
from jobrunner.broker.calls import tasks
from jobrunner.client.client import broker_of, keys_of
from jobrunner.clock import from_ms
from jobrunner.errors import (
    InvalidOption,
    JobrunnerError,
    LeaseLost,
    NotReserved,
    ReportsRefused,
    ServerRefused,
    UsageError,
)


@pytest.fixture
def queue(way: Any) -> Any:
    return way.queue("mail")


def test_a_batch_is_reported_in_one_round_trip(queue: Any, trips: list[int]) -> None:
    queue.configure(max_attempts=1)
    queue.push_many(range(40))
    leases = queue.reserve(40)
    del trips[:]

    assert queue.extend_many(leases) == [True] * 40
    assert queue.commit_many(leases[:10]) == [True] * 10
    assert queue.release_many(leases[10:20]) == [True] * 10
    assert queue.rollback_many(leases[20:30], delay=0, error="boom") == [True] * 10
    assert trips == [1, 1, 1, 1]
    assert queue.rollback_many(leases[30:]) == [True] * 10
    assert trips[4:] == [1, 1], "without a delay the backoff is read before"
    found = queue.counts()
    assert (found["waiting"], found["pending"], found["dead"]) == (10, 0, 20)
    assert {record.error for record in queue.tasks()} == {"boom", ""}


def test_the_error_of_a_failure_may_name_a_file_whose_name_is_no_utf8(queue: Any) -> None:
    """`os.fsdecode` makes such names. The report raised UnicodeEncodeError, so the lease ran out."""
    queue.configure(max_attempts=1)
    queue.push_many([1, 2])
    one, two = queue.reserve(2)
    assert one.rollback(error="no file 'a\udcff'")
    assert queue.rollback_many([two], error="no file 'a\udcff'") == [True]
    assert {record.error for record in queue.tasks("dead")} == {"no file 'a\\udcff'"}


def test_what_was_reserved_beside_a_commit_that_the_server_refused_goes_back(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, broker = client.queue("mail"), broker_of(client)
    _, second = queue.push_many(list("ab"))
    held = queue.reserve()
    replies = broker._replies

    def refuse_commit(calls: Any, *meanwhile: Any) -> list[Any]:
        answers = replies(calls, *meanwhile)
        return [redis.ResponseError("commit.lua failed"), *answers[1:]] if len(calls) == 2 else answers

    with monkeypatch.context() as broken:
        broken.setattr(broker, "_replies", refuse_commit)
        with pytest.raises(ServerRefused):
            queue.reserve(committing=held)

    assert queue.ids("waiting") == [second]
    assert [lease.attempts for lease in queue.reserve(2)] == [1]


def test_a_long_batch_is_several_scripts_in_one_round_trip(queue: Any, trips: list[int]) -> None:
    queue.push_many(range(1200))
    leases = queue.reserve(1000)
    leases += queue.reserve(1000)
    del trips[:]
    assert queue.commit_many(leases) == [True] * 1200
    assert trips == [3]


def test_a_batch_with_large_results_is_several_scripts(queue: Any, trips: list[int]) -> None:
    queue.push_many(range(7))
    leases = queue.reserve(7)
    del trips[:]
    assert queue.commit_many(leases, results=["x" * 400_000] * 6 + ["x"]) == [True] * 7
    assert trips == [3]


def test_an_empty_batch_asks_nothing(queue: Any, trips: list[int]) -> None:
    for report in (queue.commit_many, queue.rollback_many, queue.release_many, queue.extend_many):
        assert report([]) == []
    assert trips == []


def test_what_is_gone_is_false(queue: Any) -> None:
    queue.push_many(list("ab"))
    first, second = queue.reserve(2)
    first.commit()
    assert queue.commit_many([first, second, second]) == [False, True, False]


def test_refused_reports_do_not_hide_the_others(queue: Any, clock: Any) -> None:
    clock.set()
    queue.push_many(list("abcd"))
    over, lost = queue.reserve(2, keepalive=1)
    gone, fine = queue.reserve(2)
    gone.commit()
    clock.advance(1000)
    (_,) = queue.reserve(1)  # the item of `over` has a new holder; that of `lost` waits
    held = [over, gone, lost, fine]

    with pytest.raises(ReportsRefused, match="2 of 4 reports were refused") as caught:
        queue.extend_many(held)
    assert [verdict if isinstance(verdict, bool) else type(verdict) for verdict in caught.value.verdicts] == [
        LeaseLost,
        False,
        NotReserved,
        True,
    ]
    assert over.id in str(caught.value.verdicts[0])
    assert fine.deadline == from_ms(clock.ms + 30_000), "the accepted one has its new deadline"
    with pytest.raises(ReportsRefused):
        queue.commit_many(held)
    assert queue.counts()["pending"] == 1
    assert fine.commit() is False, "it was committed with the batch"


def test_refused_reports_are_caught_by_kind_or_together() -> None:
    lost, over = LeaseLost("a is lost"), NotReserved("b is over")
    caught: list[Any] = []
    try:
        raise ReportsRefused([True, lost, False, over])
    except* LeaseLost as group:
        caught += group.exceptions
    except* NotReserved as group:
        caught += group.exceptions
    assert caught == [lost, over]
    with pytest.raises(JobrunnerError):
        raise ReportsRefused([lost])
    copied = pickle.loads(pickle.dumps(ReportsRefused([True, lost])))
    assert str(copied) == str(ReportsRefused([True, lost]))
    assert copied.verdicts[0] is True


def test_results_stand_beside_the_leases(queue: Any, way: Any, client: Any) -> None:
    ids = queue.push_many(list("abc"))
    for task_id in ids:  # someone waits for the results, so they are kept for a while
        broker_of(client).run(tasks.show(keys_of(client), task_id, awaited=True))
    leases = queue.reserve(3)
    with pytest.raises(InvalidOption, match="2 results are given for 3 leases"):
        queue.commit_many(leases, [1, 2])
    assert queue.commit_many(leases, [{"n": 1}, None, 0]) == [True] * 3
    assert [way.task(task_id).result(timeout=0) for task_id in ids] == [{"n": 1}, None, 0]


def test_what_is_no_lease_is_refused_before_anything_is_sent(queue: Any) -> None:
    queue.push("a")
    leases = queue.reserve()
    for report in (queue.commit_many, queue.rollback_many, queue.release_many, queue.extend_many):
        with pytest.raises(UsageError, match="7 is no lease; pass what reserve"):
            report([*leases, 7])
    assert queue.commit_many(leases) == [True]


@pytest.mark.parametrize("wrong", [None, 5, "a lease"])
def test_what_is_no_list_of_leases_is_refused(queue: Any, wrong: Any) -> None:
    queue.push("a")
    leases = queue.reserve()
    for report in (
        queue.commit_many, queue.rollback_many, queue.release_many, queue.extend_many,
        lambda given: queue.move_many(given, "other"), lambda given: queue.reserve(committing=given),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=f"leases={wrong!r}: give a list of leases"):
            report(wrong)
    with pytest.raises(UsageError, match="results=5: give a list of results"):
        queue.commit_many(leases, 5)
    with pytest.raises(UsageError, match="payloads=5: give a list of payloads"):
        queue.move_many(leases, "other", payloads=5)
    assert queue.commit_many(leases) == [True]


def test_a_lease_of_another_queue_is_refused_before_anything_is_sent(queue: Any, way: Any) -> None:
    queue.push("a")
    way.queue("other").push("b")
    leases = queue.reserve() + way.queue("other").reserve()
    for report in (queue.commit_many, queue.rollback_many, queue.release_many, queue.extend_many):
        with pytest.raises(UsageError, match="reserved from queue 'other', not 'mail'"):
            report(leases)
    with pytest.raises(UsageError):
        queue.reserve(committing=leases)
    assert leases[0].commit()


def test_a_batch_is_committed_and_the_next_reserved_in_one_round_trip(queue: Any, trips: list[int]) -> None:
    queue.push_many(range(6))
    leases = queue.reserve(3)
    del trips[:]
    following = queue.reserve(3, committing=leases)

    assert trips == [2]
    assert [lease.payload for lease in following] == [3, 4, 5]
    assert queue.totals()["succeeded"] == 3
    assert queue.reserve(committing=following) == []
    assert queue.counts()["pending"] == 0


def test_a_commit_frees_capacity_for_the_reserve_behind_it_on_a_server_that_forgot_its_scripts(
    queue: Any, raw: redis.Redis
) -> None:
    queue.configure(max_inflight=2)
    queue.push_many(range(6))
    raw.script_flush()
    batch, seen = queue.reserve(2), []
    while batch:
        seen += [lease.payload for lease in batch]
        batch = queue.reserve(2, committing=batch)

    assert seen == list(range(6))


def test_nothing_is_reserved_when_a_commit_with_it_is_refused(queue: Any, clock: Any) -> None:
    clock.set()
    ids = queue.push_many(list("abc"))
    fine, lost = queue.reserve(2, keepalive=1)
    fine.extend()
    clock.advance(500)
    fine.extend()
    clock.advance(500)

    with pytest.raises(ReportsRefused) as caught:
        queue.reserve(5, committing=[fine, lost])
    assert caught.value.verdicts[0] is True
    assert isinstance(caught.value.verdicts[1], NotReserved)
    assert (queue.ids("waiting"), queue.counts()["pending"]) == (ids[1:], 0)
    assert [lease.attempts for lease in queue.reserve(2)] == [2, 1], "a returned item costs no attempt"
