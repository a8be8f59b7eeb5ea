"""Two versions of jobrunner on one prefix: the older leaves additions of the newer alone, and ends at its changes.

The newer version is simulated by its writes: fields, states and keys that this version does not know.
"""

from typing import Any

import msgspec
import pytest
import redis

from jobrunner import Client, Retry, Worker, job
from jobrunner.broker.calls.server import FORMAT
from jobrunner.broker.keys import Keys
from jobrunner.client.client import keys_of
from jobrunner.errors import NewerFormat
from jobrunner.etl import Pipeline
from tests.support.waiting import wait_for
from tests.worker.conftest import Start

runs: list[int] = []


@job(name="versions.flaky", queue="ver", max_attempts=2)
def flaky(fails: int = 1) -> str:
    """Fails that often."""
    runs.append(1)
    if len(runs) <= fails:
        raise Retry("again", in_=0.01)
    return "done"


@pytest.fixture(autouse=True)
def _no_runs() -> None:
    runs.clear()


def test_a_worker_does_not_start_below_a_newer_format(current: Client, raw: redis.Redis) -> None:
    raw.set(keys_of(current).format, FORMAT + 1)

    with pytest.raises(NewerFormat, match=f"format {FORMAT + 1}"):
        Worker(client=current, queues=["ver"]).run(burst=True)

    assert raw.keys() == [keys_of(current).format]


def test_a_worker_leaves_when_a_newer_version_takes_the_prefix_over(
    start: Start, current: Client, raw: redis.Redis
) -> None:
    worker = start(queues=["ver"], heartbeat=0.05)
    assert raw.get(keys_of(current).format) == b"%d" % FORMAT

    raw.set(keys_of(current).format, FORMAT + 1)

    assert isinstance(wait_for(lambda: worker.failure), NewerFormat)
    assert worker.health()[0] is False


def test_a_worker_that_runs_in_the_foreground_ends_with_the_reason(current: Client, raw: redis.Redis) -> None:
    raw.set(keys_of(current).format, FORMAT)
    worker = Worker(client=current, queues=["ver"], heartbeat=0.05)
    worker.start()
    raw.set(keys_of(current).format, FORMAT + 1)
    wait_for(lambda: worker.failure)

    with pytest.raises(NewerFormat):
        Worker(client=current, queues=["ver"]).run()
    worker.stop(grace=0)


def test_fields_of_a_newer_version_survive_retry_death_and_requeue(
    current: Client, raw: redis.Redis, run: Any
) -> None:
    task = flaky.enqueue(fails=2)
    key = keys_of(current).queue("ver").task(task.id)
    raw.hset(key, mapping={"shade": b"\xffblue", "sla_ms": "12"})

    run(queues=["ver"], drain=True)
    assert task.state == "dead"
    assert task.record().fields["shade"] == b"\xffblue"
    assert task.requeue()
    run(queues=["ver"])

    assert task.result(timeout=0) == "done"
    assert raw.hmget(key, "shade", "sla_ms") == [b"\xffblue", b"12"]


def test_fields_of_a_newer_version_survive_release_expiry_and_move(
    current: Client, raw: redis.Redis, clock: Any
) -> None:
    line = Pipeline("ver", client=current)
    clock.set()
    first, second = current.queue("ver/first"), current.queue("ver/second")
    pushed = first.push({"a": 1})
    key = keys_of(first).task(pushed)
    raw.hset(key, "shade", "blue")

    first.reserve()[0].release()
    first.reserve(keepalive=1)
    clock.advance(1001)
    first.reserve()[0].move("second", payload={"a": 2})
    (lease,) = second.reserve()

    assert (lease.payload, raw.hget(key, "shade"), line.name) == ({"a": 2}, b"blue", "ver")


def test_a_worker_runs_beside_a_newer_one_that_says_more_everywhere(
    current: Client, raw: redis.Redis, keys: Keys, start: Start
) -> None:
    queue = keys.queue("ver")
    raw.xadd(keys.events, {"kind": "moon_rose", "shade": "blue", "queue": "ver"})
    raw.hset(queue.settings, mapping={"moon_phase": "full", "keepalive_ms": "30000"})
    raw.zadd(keys.workers, {"newer.1.abc": 4e12})
    raw.hset(keys.worker("newer.1.abc"), mapping={"id": "newer.1.abc", "moods": "[1]", "running": "?", "started": "x"})
    raw.sadd(keys.queues, "ver")
    definition = {
        "name": "newer.job", "queue": "ver", "schedule": {"moon": "full"}, "payload": "", "catch_up": "none",
        "overlap": "skip", "jitter": 0.0,
    }  # fmt: skip
    raw.hset(keys.periodics, "newer.job", msgspec.json.encode(definition))
    raw.zadd(keys.periodics_seen, {"newer.job": 4e12})
    raw.set(keys.prefix + ":lunar", "1")

    worker = start(queues=["ver"], heartbeat=0.05)
    raw.hset(keys.commands(worker.id), "howl", "1")
    task = flaky.enqueue(fails=0)

    assert task.result(timeout=10) == "done"
    assert [one.kind for one in current.events() if one.details.get("shade")] == ["moon_rose"]
    assert "newer.1.abc" in [one.id for one in current.workers()]
    assert current.queue("ver").settings().keepalive == 30
    assert current.stats()["ver"].totals["succeeded"] == 1
    assert worker.health()[0], worker.health()


def test_what_a_newer_version_noted_of_a_task_is_kept_and_what_nobody_can_read_is_left_out(
    current: Client, raw: redis.Redis
) -> None:
    queue = current.queue("ver")
    queue.configure(history=60)
    pushed = queue.push("b")
    raw.hset(keys_of(queue).task(pushed), mapping={"shade": "blue", "failures": "no\tsuch\tform"})

    queue.reserve()[0].commit()

    (shown,) = queue.history()
    assert (shown.id, shown.fields["shade"], shown.failures) == (pushed, b"blue", [])
