"""`tasks` and `history` give payloads and results as values, as leases do; the bytes are there too."""

from typing import Any

import pytest
import redis

from jobrunner import Job, job
from jobrunner.client.client import Client, keys_of
from jobrunner.jobs.registry import forget


@pytest.mark.parametrize("payload", [{"a": 1}, b'{"a":1}', "text", 0, None, [], b"", b"\xff"])
def test_a_listed_payload_is_what_was_pushed(way: Any, payload: Any) -> None:
    queue = way.queue("q")
    queue.configure(history=60)
    queue.push(payload)

    (waiting,) = queue.tasks("waiting")
    (lease,) = queue.reserve()
    lease.commit({"did": payload if not isinstance(payload, bytes) else "bytes"})
    (done,) = queue.history()
    for record in (waiting, done):
        assert record.payload == lease.payload == payload
        assert type(record.payload) is type(payload)
        assert isinstance(record.raw_payload, bytes)
    assert (waiting.result, waiting.raw_result) == (None, None)
    assert done.result["did"] == ("bytes" if isinstance(payload, bytes) else payload)
    assert done.raw_result.startswith(b'{"did":')


DAMAGED = pytest.mark.parametrize("broken", [b"{broken", b'{"n":"\xff"}', b"[" * 100_000], ids=["cut", "bytes", "deep"])
"""What a producer in another language may have written."""


@DAMAGED
def test_what_is_damaged_is_listed_as_it_is_stored_beside_the_others(
    way: Any, raw: redis.Redis, broken: bytes
) -> None:
    queue = way.queue("q")
    ids = queue.push_many([{"n": n} for n in range(3)])
    raw.hset(keys_of(way).queue("q").task(ids[1]), "payload", broken)

    first, damaged, last = queue.tasks("waiting")
    assert (first.payload, first.unread, last.payload) == ({"n": 0}, None, {"n": 2})
    assert (damaged.payload, damaged.raw_payload) == (broken, broken)
    assert isinstance(damaged.unread, ValueError)


@DAMAGED
def test_what_is_damaged_is_popped_beside_the_others(way: Any, raw: redis.Redis, broken: bytes) -> None:
    """All that were popped with it were lost: the server had deleted them when it raised."""
    queue = way.queue("q")
    ids = queue.push_many([{"n": n} for n in range(3)])
    raw.hset(keys_of(way).queue("q").task(ids[1]), "payload", broken)

    first, damaged, last = queue.pop(3)
    assert (first.payload, last.payload) == ({"n": 0}, {"n": 2})
    assert damaged.stored == broken
    with pytest.raises(ValueError, match=r"malformed|truncated|codec|UTF-8|nested too deeply"):
        _ = damaged.payload


@DAMAGED
@pytest.mark.parametrize("take", ["reserve", "pop"])
def test_headers_that_are_damaged_keep_no_other_item_back(
    way: Any, raw: redis.Redis, broken: bytes, take: str
) -> None:
    """A reserve raised, and left the leases of all others behind."""
    queue = way.queue("q")
    ids = queue.push_many([1, 2, 3])
    raw.hset(keys_of(way).queue("q").task(ids[1]), mapping={"headers": broken, "more": 1})

    taken = getattr(queue, take)(3)
    assert [(one.payload, one.headers) for one in taken] == [(1, {}), (2, {}), (3, {})]


def test_a_task_of_a_job_has_the_json_of_its_parameters_as_a_lease_has(current: Client) -> None:
    @job(queue="q", name="Listed")
    class Listed(Job):
        n: int

        def run(self) -> None: ...

    try:
        task = Listed(n=1).enqueue()
        (record,) = current.queue("q").tasks("waiting")
        (lease,) = current.queue("q").reserve()
        assert record.payload == lease.payload == b'{"n":1}' == task.record().payload
    finally:
        forget("Listed")


def test_pop_says_how_often_an_item_was_handed_out_before(way: Any, clock: Any, raw: redis.Redis) -> None:
    clock.set()
    queue = way.queue("q")
    queue.push_many(["failed", "expired", "released", "fresh", "damaged"])
    failed, expired, released, fresh, damaged = queue.reserve(5, keepalive=1)
    failed.rollback(delay=0)
    released.release()
    fresh.release()
    damaged.release()
    raw.hset(keys_of(way).queue("q").task(damaged.id), "retry_count", b"many")
    clock.advance(2000)

    told = {one.payload: (one.attempts, one.retry_count) for one in queue.pop(9)}
    assert expired.attempts == 1
    assert told == {"failed": (2, 1), "expired": (2, 1), "released": (1, 0), "fresh": (1, 0), "damaged": (1, 0)}


@pytest.mark.parametrize(
    ("stored", "found"),
    [
        (b'{"done":2,"total":3,"note":"rows"}', {"done": 2, "total": 3, "note": "rows"}),
        (b'{"done":0.5,"total":1,"note":""}', {"done": 0.5, "total": 1, "note": ""}),
        (None, None),
        (b"{broken", None),
        (b"[1]", None),
        (b'{"done":2}', None),
        (b'{"done":"2","total":3,"note":""}', None),
        (b'{"done":1e999,"total":3,"note":""}', None),
    ],
)
def test_a_record_has_the_progress_that_its_job_published(
    way: Any, raw: redis.Redis, stored: bytes | None, found: dict[str, Any] | None
) -> None:
    """A program had to read and decode a field of the hash."""
    task_id = way.queue("q").push(1)
    if stored is not None:
        raw.hset(keys_of(way).queue("q").task(task_id), "progress", stored)
    assert way.task(task_id).record().progress == found
    assert way.queue("q").tasks("waiting")[0].progress == found
