"""Moves, fan-outs and full queues in turns of the fetch loop, one `step()` at a time, on a real server."""

from typing import Any

import pytest
import redis
from structlog.testing import capture_logs

from jobrunner import Client
from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leases
from jobrunner.broker.keys import Keys, tag_of_id
from jobrunner.client.client import broker_of
from jobrunner.client.item import Item
from jobrunner.errors import ServerError
from jobrunner.outcome import Dropped, Failed, FannedOut, Moved, Outcome, Succeeded
from jobrunner.task import TaskState
from jobrunner.worker.fetch import waiting_reports
from jobrunner.worker.fetch.reserve_plan import QueueRotation, ReservePlan
from jobrunner.worker.report.report_calls import child_id
from tests.support.waiting import wait_for
from tests.unit.worker.test_fetcher import Bench, Unreachable

RAW, CLEAN, OTHER = "p/raw", "p/clean", "p/other"
ON = Moved(queue=CLEAN)


@pytest.fixture
def bench(broker: Broker, keys: Keys) -> Bench:
    return Bench(broker, keys, slots=10, queues=(RAW, OTHER))


def begun(bench: Bench, client: Client, count: int, **options: Any) -> list[Attempt]:
    client.queue(RAW).push_many(Item(number, **options) for number in range(count))
    attempts = bench.begun(2)
    assert len(attempts) == count
    return attempts


def end(bench: Bench, attempts: list[Attempt], outcome: Outcome) -> None:
    for attempt in attempts:
        bench.finished.add(attempt, outcome)
    bench.step()


def counts(client: Client, queue: str) -> dict[str, int]:
    return client.queue(queue).counts()


def until_empty(bench: Bench) -> None:
    wait_for(lambda: bench.step() is not None and not bench.fetcher.in_hand)


def test_moves_into_one_queue_are_one_call(broker: Broker, keys: Keys, client: Client) -> None:
    class Counting(Unreachable):
        sent: list[str]

        def run_each(self, calls: Any, meanwhile: Any) -> list[Any]:
            self.sent = [call.script.name for call in calls]
            return self._broker.run_each(calls, meanwhile)

    way = Counting(broker)
    bench = Bench(way, keys, slots=10, queues=(RAW,))
    attempts = begun(bench, client, 6)

    for attempt in attempts[:3]:
        bench.finished.add(attempt, ON)
    bench.finished.add(attempts[3], Moved(queue=OTHER, payload=b"null", headers=b'{"a":"b"}', priority=2, delay_s=60))
    bench.finished.add(attempts[4], Succeeded())
    bench.finished.add(attempts[5], Dropped())
    bench.step()

    assert way.sent == ["move", "move", "commit"]
    assert client.queue(CLEAN).ids("waiting") == [attempt.id for attempt in attempts[:3]]
    (other,) = client.queue(OTHER).tasks("scheduled")
    assert (other.raw_payload, other.priority, other.fields["headers"]) == (b"null", 2, b'{"a":"b"}')
    assert client.task(attempts[5].id, queue=RAW).record().state is TaskState.CANCELLED
    totals = client.queue(RAW).totals()
    assert (totals["moved_out"], totals["dropped"], totals["succeeded"]) == (4, 1, 1)
    assert (bench.fetcher.in_hand, bench.held.tokens) == (0, {})


def test_a_fan_out_makes_children_with_ids_derived_from_the_parent(bench: Bench, client: Client) -> None:
    (parent,) = begun(bench, client, 1, headers={"trace": "1"})

    end(bench, [parent], FannedOut(children=(Moved(queue=CLEAN, payload=b"[1]"), Moved(queue=OTHER), ON)))

    ids = [child_id(parent, ordinal, "p") for ordinal in range(3)]
    assert client.queue(CLEAN).ids("waiting") == [ids[0], ids[2]]
    assert client.queue(OTHER).ids("pending") == [ids[1]] or client.queue(OTHER).ids("waiting") == [ids[1]]
    assert tag_of_id(ids[0]) == "p"
    records = [client.task(one).record() for one in ids]
    assert [record.payload for record in records] == [b"[1]", b"0", b"0"]
    assert {record.fields["headers"] for record in records} == {b'{"trace":"1"}'}
    assert {record.fields["encoding"] for record in records} == {b"json"}
    assert client.task(parent.id).state is TaskState.SUCCEEDED


def test_an_item_whose_id_is_used_again_has_children_of_its_own(
    bench: Bench, client: Client, keys: Keys, raw: redis.Redis
) -> None:
    """Those of the first item that were still there swallowed them."""
    for number in range(2):
        bench.fetcher.fetch_now()
        (parent,) = begun(bench, client, 1, id="mine")
        end(bench, [parent], FannedOut(children=(ON, ON)))
        raw.delete(keys.queue(RAW).task("mine"))  # its time to be read is over
        assert counts(client, CLEAN)["waiting"] == 2 * (number + 1)


def test_a_damaged_encoding_does_not_stop_the_reports(bench: Bench, client: Client) -> None:
    (parent,) = begun(bench, client, 1)
    parent.encoding = b"\xff"

    end(bench, [parent], FannedOut(children=(ON,)))

    assert client.task(parent.id).state is TaskState.SUCCEEDED
    assert client.queue(CLEAN).counts()["waiting"] == 1


def test_a_fan_out_of_nothing_is_a_success(bench: Bench, client: Client) -> None:
    (parent,) = begun(bench, client, 1)

    end(bench, [parent], FannedOut(children=()))

    assert client.task(parent.id).state is TaskState.SUCCEEDED


@pytest.mark.parametrize(
    "again", [Moved(queue=RAW, max_hops=3), FannedOut(children=(Moved(queue=RAW, max_hops=3),))], ids=["move", "spread"]
)
def test_an_item_that_moved_too_often_is_dead_and_says_why(bench: Bench, client: Client, again: Outcome) -> None:
    """KEU-26"""
    (attempt,) = begun(bench, client, 1)
    runs = 0
    while attempt is not None:
        runs += 1
        bench.finished.add(attempt, again)
        bench.step()
        (attempt, *_) = [*bench.begun(2), None]  # type: ignore[assignment]

    assert runs == 4
    (dead,) = client.queue(RAW).tasks("dead")
    assert "moved 3 times" in dead.error
    assert bench.held.tokens == {}


def test_what_a_full_queue_does_not_take_is_kept_and_nothing_more_reserved(bench: Bench, client: Client) -> None:
    """KEU-34"""
    client.queue(CLEAN).configure(max_size=2)
    attempts = begun(bench, client, 5)
    client.queue(RAW).push_many(range(10))

    end(bench, attempts, ON)

    assert counts(client, CLEAN)["waiting"] == 2
    assert set(bench.held.tokens) == {attempt.token for attempt in attempts[2:]}
    bench.shelf.begin()
    in_hand = bench.fetcher.in_hand
    for _ in range(5):
        bench.step()
    assert bench.shelf.waiting == []
    assert bench.fetcher.in_hand <= in_hand, "the queue they are in rests"  # one not begun may have gone back

    client.queue(OTHER).push("x")
    bench.turns.wake(OTHER)
    assert [one.queue for one in bench.begun(2)] == [OTHER], "others do not"


def test_a_queue_that_waits_for_capacity_is_in_the_log_once_a_minute(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small queue filled up to 19 times a second, and each time was a line."""
    clean = client.queue(CLEAN)
    clean.configure(max_size=1)

    def filled() -> int:
        with capture_logs() as logs:
            bench.fetcher.fetch_now()
            end(bench, begun(bench, client, 2), ON)
            assert bench.fetcher.in_hand == 1
            clean.purge("waiting")
            until_empty(bench)
            clean.purge("waiting")
        return sum(line["event"] == "a queue waits for capacity in others" for line in logs)

    assert [filled(), filled()] == [1, 0]
    monkeypatch.setattr(waiting_reports, "_TOLD_EVERY_S", 0.0)
    assert filled() == 1


def test_they_go_on_when_there_is_room_in_the_order_they_came(bench: Bench, client: Client) -> None:
    clean = client.queue(CLEAN)
    clean.configure(max_size=2)
    attempts = begun(bench, client, 5)
    end(bench, attempts, ON)
    client.queue(RAW).push("next")

    taken: list[str] = []
    while len(taken) < 5:
        wait_for(lambda: bench.step() is not None and clean.counts()["waiting"])
        taken += [one.id for one in clean.reserve(2)]

    assert taken == [attempt.id for attempt in attempts]
    assert bench.held.tokens.keys() == {one.token for one in bench.begun(2)}
    assert counts(client, RAW)["pending"] == 1, "then the queue is reserved from again"


def test_a_fan_out_waits_for_room_too(bench: Bench, client: Client) -> None:
    clean = client.queue(CLEAN)
    clean.configure(max_size=3)
    clean.push_many(list("ab"))
    (parent,) = begun(bench, client, 1)

    end(bench, [parent], FannedOut(children=(ON, ON)))
    assert bench.fetcher.in_hand, "the parent waits; a busy machine may have a step after its report left, too"
    assert counts(client, RAW)["pending"] == 1
    clean.pop()
    until_empty(bench)

    assert counts(client, CLEAN)["waiting"] == 3
    assert counts(client, RAW)["pending"] == 0


def test_a_move_that_does_not_wait_goes_into_a_full_queue(bench: Bench, client: Client) -> None:
    client.queue(RAW).configure(max_size=1)
    (attempt,) = begun(bench, client, 1)
    client.queue(RAW).push("there")

    end(bench, [attempt], Moved(queue=RAW, waits=False))

    assert counts(client, RAW)["waiting"] + counts(client, RAW)["pending"] == 2
    assert attempt.token not in bench.held.tokens


@pytest.mark.parametrize("why", ["reserving", "resting"])
def test_one_that_stops_or_rests_keeps_what_waits_until_there_is_room(bench: Bench, client: Client, why: str) -> None:
    """Its function has run: handed back, it would run again."""
    clean = client.queue(CLEAN)
    clean.configure(max_size=1)
    attempts = begun(bench, client, 4)
    client.queue(RAW).push("behind")
    end(bench, attempts, ON)
    bench.shelf.begin()

    setattr(bench.fetcher, why, why == "resting")
    for _ in range(3):
        bench.step()
    assert bench.fetcher.quiet
    assert bench.held.tokens.keys() == {attempt.token for attempt in attempts[1:]}
    assert bench.fetcher.reporting.tokens.isdisjoint(bench.held.tokens), "a worker that ends hands these back"
    assert bench.step() <= waiting_reports._LONGEST_PAUSE_S, "it tries again"

    taken: list[str] = []

    def goes_on() -> bool:
        taken.extend(one.id for one in clean.pop(1))
        bench.step()
        return not bench.fetcher.in_hand

    wait_for(goes_on)
    assert [*taken, *clean.ids("waiting")] == [attempt.id for attempt in attempts]
    assert (len(client.queue(RAW).ids("waiting")), counts(client, RAW)["pending"]) == (1, 0)


def test_a_lease_that_was_lost_meanwhile_ends_the_wait(bench: Bench, client: Client, keys: Keys) -> None:
    client.queue(CLEAN).configure(max_size=1)
    client.queue(CLEAN).push("there")
    attempts = begun(bench, client, 2)
    end(bench, attempts, ON)
    assert bench.fetcher.in_hand >= 2
    ended = [(attempt.id, attempt.token, 0, "succeeded", b"") for attempt in attempts]
    broker_of(client).run(leases.commit(keys.queue(RAW), ended))

    until_empty(bench)

    assert bench.held.tokens == {}
    assert counts(client, CLEAN)["waiting"] == 1


def test_a_connection_that_breaks_meanwhile_loses_no_report(broker: Broker, keys: Keys, client: Client) -> None:
    way = Unreachable(broker)
    bench = Bench(way, keys, slots=10, queues=(RAW,))
    clean = client.queue(CLEAN)
    clean.configure(max_size=1)
    end(bench, begun(bench, client, 3), ON)
    client.queue(RAW).push("behind")

    way.losing = True
    clean.pop()
    with pytest.raises(ServerError):
        wait_for(lambda: bench.step() is None)
    assert bench.fetcher.in_hand >= 2
    assert len(bench.held.tokens) == 2
    way.losing = False

    def goes_on() -> bool:
        clean.pop()
        bench.step()
        return bool(bench.shelf.waiting)

    wait_for(goes_on)
    assert client.queue(RAW).totals()["moved_out"] == 3


def test_what_waits_is_not_held_against_the_limit_of_tasks(broker: Broker, keys: Keys, client: Client) -> None:
    bench = Bench(broker, keys, slots=3, queues=(RAW, OTHER), max_tasks=5)
    client.queue(CLEAN).configure(max_size=1)
    client.queue(CLEAN).push("there")
    attempts = begun(bench, client, 3)
    end(bench, attempts, ON)
    client.queue(OTHER).push_many(range(9))
    bench.turns.wake(OTHER)

    assert len(bench.begun(3)) == 2


def test_a_blocked_queue_has_no_turn_whatever_wakes_it() -> None:
    turns = QueueRotation({"a": 1, "b": 1}, 15.0)
    turns.block("a")
    turns.block("not served here")

    for wake in (lambda: turns.wake("a"), turns.wake_all, lambda: turns.sleep("a", 0.0, 1.0)):
        wake()
        assert [turns.plan(1) for _ in range(3)] == [ReservePlan({"b": 1})] * 3
    turns.sleep("b", None, 1.0)
    assert turns.plan(1) == ReservePlan()
    turns.unblock("a")
    turns.unblock("not served here")
    assert turns.plan(1) == ReservePlan({"a": 1})


def test_a_failed_move_is_no_failure_of_the_item(bench: Bench, client: Client) -> None:
    client.queue(CLEAN).configure(max_size=1)
    attempts = begun(bench, client, 2)

    end(bench, attempts, ON)

    assert "failed" not in client.queue(RAW).totals()
    end(bench, [], Failed("never used"))
