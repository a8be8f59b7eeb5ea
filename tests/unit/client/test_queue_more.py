"""Limits, history and the dead as a user of a queue meets them, for threads and for asyncio alike."""

from datetime import timedelta
from typing import Any

import pytest
import redis

from jobrunner import Backoff, Item, RateLimit
from jobrunner.broker.keys import QueueKeys
from jobrunner.errors import InvalidName, InvalidOption, QueueFull, TaskGone, UnknownOption


@pytest.fixture
def queue(way: Any) -> Any:
    return way.queue("mail")


def kill(queue: Any, *payloads: Any) -> list[str]:
    """Pushes items and lets them die."""
    queue.push_many([Item(payload, max_attempts=1) for payload in payloads])
    held = queue.reserve(len(payloads))
    for lease in held:
        lease.rollback(error=f"ValueError: {lease.payload}")
    return [lease.id for lease in held]


def test_settings_are_read_back_as_they_were_given(queue: Any) -> None:
    rate = RateLimit(max_tokens=15, interval=1, interval_unit="HOURS")
    queue.configure(
        max_inflight=7, rate=rate, keepalive=timedelta(seconds=9), max_attempts=3, backoff=Backoff(base=1),
        history=timedelta(days=1), history_max=100, dead_ttl=60, dead_max=5, max_size=10, expires_in=30,
    )  # fmt: skip
    found = queue.settings()
    assert (found.max_inflight, found.rate, found.keepalive, found.max_attempts) == (7, rate, 9.0, 3)
    assert (found.backoff, found.history, found.history_max) == (Backoff(base=1), 86_400.0, 100)
    assert (found.dead_ttl, found.dead_max, found.max_size, found.expires_in) == (60.0, 5, 10, 30.0)
    assert rate.seconds == 3600

    queue.configure(rate=None, max_inflight=0, history=None, history_max=None, max_size=None, dead_ttl=0)
    found = queue.settings()
    assert (found.max_inflight, found.rate, found.history, found.max_size) == (0, None, None, None)
    assert (found.dead_ttl, found.keepalive) == (0.0, 9.0)


def test_a_number_as_backoff_is_answered_with_what_to_write(queue: Any) -> None:
    with pytest.raises(InvalidOption, match=r"backoff=0\.2: say Backoff\(0\.2\)"):
        queue.configure(backoff=0.2)
    with pytest.raises(InvalidOption, match=r"backoff='1s': say Backoff\(base, factor, cap\)"):
        queue.configure(backoff="1s")


@pytest.mark.parametrize(
    "options",
    [
        {"max_inflight": -1}, {"max_inflight": "3"}, {"max_inflight": 1.5}, {"rate": 3}, {"rate": "1/s"},
        {"max_size": 0}, {"history": 0}, {"history_max": 0}, {"expires_in": -1}, {"dead_ttl": -1}, {"backoff": 3},
        {"dead_letter_queue": "elsewhere"}, {"dead_letter_queue": "mail"},
    ],
    ids=str,
)  # fmt: skip
def test_a_setting_outside_its_range_is_refused_and_changes_nothing(queue: Any, options: dict[str, Any]) -> None:
    queue.configure(max_inflight=3)
    with pytest.raises(InvalidOption):
        queue.configure(**options)
    assert queue.settings().max_inflight == 3


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 0}, {"max_tokens": 1.5}, {"max_tokens": 1, "interval": 0}, {"max_tokens": 1, "interval": 0.5},
        {"max_tokens": 1, "interval_unit": "DAYS"}, {"max_tokens": 1, "interval_unit": "seconds"},
    ],
    ids=str,
)  # fmt: skip
def test_a_rate_outside_its_range_is_refused(options: dict[str, Any]) -> None:
    """MDQ-15"""
    with pytest.raises(InvalidOption):
        RateLimit(**options)


def test_an_unknown_setting_names_the_nearest(queue: Any) -> None:
    with pytest.raises(UnknownOption, match="did you mean 'max_inflight'"):
        queue.configure(max_inflights=3)


def test_a_pause_may_end_by_itself(queue: Any, clock: Any) -> None:
    clock.set()
    queue.push("a")
    queue.pause(for_=timedelta(minutes=5))
    assert queue.is_paused()
    assert queue.reserve() == []
    clock.advance(300_000)
    assert not queue.is_paused()
    assert len(queue.reserve()) == 1
    with pytest.raises(InvalidOption, match="for_"):
        queue.pause(for_=0)


def test_a_full_queue_refuses_more(queue: Any) -> None:
    queue.configure(max_size=2)
    queue.push("a")
    with pytest.raises(QueueFull, match="no room for 2 more"):
        queue.push_many(["b", "c"])
    assert queue.counts()["waiting"] == 1


def test_history_is_read_last_first_and_replayed(queue: Any, clock: Any) -> None:
    """KEU-19, KEU-20, KEU-36"""
    clock.set()
    queue.configure(history=60)
    for name in ("a", "b"):
        queue.push({"name": name}, headers={"trace": name}, priority=2)
        (lease,) = queue.reserve()
        clock.advance(10)
        lease.commit(result={"did": name})
    newest, oldest = queue.history()
    assert (newest.state, newest.result, newest.payload) == ("succeeded", {"did": "b"}, {"name": "b"})
    assert (newest.raw_result, newest.raw_payload) == (b'{"did":"b"}', b'{"name":"b"}')
    assert newest.when.timestamp() * 1000 == clock.ms
    assert queue.counts() == {"waiting": 0, "scheduled": 0, "pending": 0, "dead": 0, "done": 2}
    assert [record.id for record in queue.history(limit=1)] == [newest.id]

    again = queue.replay(oldest.id)
    assert again != oldest.id
    (lease,) = queue.reserve()
    assert (lease.id, lease.payload) == (again, {"name": "a"})
    assert lease.headers == {"trace": "a", "replayed_from": oldest.id}
    assert len(queue.history()) == 2
    lease.commit()
    third = queue.replay(again)
    assert queue.reserve()[0].headers["replayed_from"] == oldest.id, "it is the first one that counts"
    assert third != again
    assert queue.purge("done") == 3


def test_only_what_is_history_can_be_replayed(queue: Any) -> None:
    waiting = queue.push("a")
    for task_id in (waiting, "no-such-id"):
        with pytest.raises(TaskGone, match="history of queue 'mail'"):
            queue.replay(task_id)
    assert queue.counts()["waiting"] == 1


def test_a_new_task_with_the_id_of_an_entry_of_history_is_no_history(
    queue: Any, raw: redis.Redis, mail: QueueKeys
) -> None:
    """The entry outlives its task when history was shorter as it ended."""
    queue.configure(history=60)
    for name in ("mine", "other"):
        queue.push("old", id=name)
        queue.reserve()[0].commit()
    raw.delete(mail.task("mine"))  # it expired
    queue.push("new", id="mine")

    assert [record.id for record in queue.history()] == ["other"]
    assert [record.id for record in queue.tasks("done")] == ["other"]
    with pytest.raises(TaskGone, match="no task mine in the history of queue 'mail'"):
        queue.replay("mine")
    assert [record.payload for record in queue.tasks("waiting")] == ["new"]
    queue.reserve()[0].commit()
    assert [record.payload for record in queue.history()] == ["new", "old"]


def test_the_dead_come_back_at_a_rate(queue: Any, clock: Any) -> None:
    clock.set()
    ids = kill(queue, *range(5))
    assert queue.requeue_dead(rate=2) == 5
    assert queue.counts()["scheduled"] == 4, "the first is due at once"
    clock.advance(1000)
    assert [lease.id for lease in queue.reserve(9)] == ids[:3]


def test_a_dead_item_comes_back_mended(queue: Any) -> None:
    (one,) = kill(queue, {"to": "ghost"})
    assert queue.requeue_dead([one], payload={"to": "ada"}) == 1
    (lease,) = queue.reserve()
    assert (lease.id, lease.payload, lease.attempts) == (one, {"to": "ada"}, 1)


def test_what_is_no_id_among_the_dead_keeps_no_other_from_coming_back(queue: Any, raw: Any, mail: QueueKeys) -> None:
    died_at = raw.zscore(mail.dead, kill(queue, 1, 2)[0])
    raw.zadd(mail.dead, {"no id": died_at - 1, b"\xff": died_at})
    assert queue.requeue_dead() == 2
    assert queue.counts()["waiting"] == 2
    with pytest.raises(InvalidName):
        queue.requeue_dead(["no id"])


@pytest.mark.parametrize("options", [{"rate": 0}, {"rate": True}, {"rate": "fast"}, {"ids": "abc"}], ids=str)
def test_a_wrong_way_to_requeue_is_refused(queue: Any, options: dict[str, Any]) -> None:
    kill(queue, 1)
    with pytest.raises(InvalidOption):
        queue.requeue_dead(**options)
    assert queue.counts()["dead"] == 1


def test_an_item_may_expire_before_it_is_begun(queue: Any, clock: Any) -> None:
    """MOABX-05"""
    clock.set()
    queue.push_many([Item("soon stale", expires_in=1), Item("stays"), Item("late", in_=2, expires_in=1)])
    clock.advance(2000)
    assert [lease.payload for lease in queue.reserve(9)] == ["stays"]
    assert [record.error for record in queue.tasks("dead")] == ["expired before it started"] * 2
    with pytest.raises(InvalidOption, match="expires_in"):
        queue.push(1, expires_in=0)


def test_an_item_may_survive_fewer_crashes_than_failures(queue: Any, clock: Any) -> None:
    """D-04"""
    clock.set()
    queue.push("x", max_stalled=2, max_attempts=9, keepalive=1)
    for _ in range(2):
        assert len(queue.reserve()) == 1
        clock.advance(1000)
    assert queue.reserve() == []
    assert queue.counts()["dead"] == 1
