"""The records of workers, periodic jobs and counts that a client reads."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from jobrunner.broker.calls import leader as leader_calls
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.clock import utc_now
from jobrunner.periodic import PeriodicDefinition


def publish(client: Client, name: str, schedule: dict[str, Any]) -> PeriodicDefinition:
    definition = PeriodicDefinition(
        name=name,
        queue="beats",
        schedule=schedule,
        payload=b"{}",
        catch_up="last",
        overlap="skip",
        jitter=0.0,
    )
    broker_of(client).run(leader_calls.define_periodics(keys_of(client), {name: msgspec.json.encode(definition)}))
    return definition


@pytest.fixture
def state(client: Client, raw: Any) -> Any:
    """state(last=…, fired=…): writes the stored state of the job `beat`."""

    def remember(**fields: Any) -> None:
        raw.hset(keys_of(client).queue("beats").periodic("beat"), mapping=fields)

    return remember


def test_a_job_that_never_fired_is_due_at_once(client: Client) -> None:
    publish(client, "beat", {"every": 60})

    (beat,) = client.periodics()

    assert (beat.schedule, beat.last, beat.fired, beat.task) == ("every minute", None, 0, None)
    assert abs(beat.next - utc_now()) < timedelta(seconds=30)


def unseen(client: Client, raw: Any) -> None:
    """No worker has named the job `beat` for two minutes."""
    raw.zadd(keys_of(client).periodics_seen, {"beat": (utc_now() - timedelta(minutes=2)).timestamp() * 1000})


def test_the_next_tick_keeps_the_grid_of_the_last(client: Client, state: Any, raw: Any) -> None:
    publish(client, "beat", {"every": 3600})
    unseen(client, raw)
    last = utc_now().replace(microsecond=0) - timedelta(hours=2, minutes=30)
    state(last=round(last.timestamp() * 1000), fired=4, skipped=1, task="t1")

    (beat,) = client.periodics()

    assert (beat.last, beat.next) == (last, last + timedelta(hours=3))
    assert (beat.fired, beat.skipped, beat.task) == (4, 1, "t1")


@pytest.mark.parametrize(("late_s", "overdue"), [(5, False), (60, True), (9000, True)])
def test_a_tick_that_no_leader_fired_is_overdue_while_a_worker_knows_the_job(
    client: Client, state: Any, late_s: int, overdue: bool
) -> None:
    publish(client, "beat", {"every": 3600})
    due = utc_now().replace(microsecond=0) - timedelta(seconds=late_s)
    state(last=round((due - timedelta(hours=1)).timestamp() * 1000), fired=4)

    (beat,) = client.periodics()

    assert (beat.next, beat.overdue) == (due if overdue else due + timedelta(hours=1), overdue)


def test_the_last_ticks_are_read_without_those_that_are_damaged(client: Client, state: Any) -> None:
    publish(client, "beat", {"every": 60})
    odd = ("", "x,fired,t", "5,fired", "9" * 30 + ",fired,t", "-5,fired,t", "\udcff,,")
    said = ("1700000060000,skipped,", *odd, "1700000000000,fired,t1")
    state(recent=";".join(said).encode("utf-8", "surrogateescape"))

    (beat,) = client.periodics()

    assert [(tick.at, tick.outcome, tick.task) for tick in beat.recent] == [
        (datetime(2023, 11, 14, 22, 14, 20, tzinfo=UTC), "skipped", None),
        (datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), "fired", "t1"),
    ]


def test_when_counting_began_is_no_tick(client: Client, state: Any) -> None:
    publish(client, "beat", {"cron": "0 3 1 1 *", "tz": "UTC"})
    state(last=round(utc_now().timestamp() * 1000))

    (beat,) = client.periodics()

    assert beat.last is None
    assert (beat.next.month, beat.next.day, beat.next.hour) == (1, 1, 3)


def test_a_job_that_no_worker_named_for_a_minute_is_not_served(client: Client, raw: Any) -> None:
    publish(client, "beat", {"every": 60})
    assert client.periodics()[0].served

    unseen(client, raw)

    assert not client.periodics()[0].served


def test_a_damaged_definition_is_left_out(client: Client, raw: Any) -> None:
    publish(client, "beat", {"every": 60})
    raw.hset(keys_of(client).periodics, "broken", b"{")

    assert [beat.name for beat in client.periodics()] == ["beat"]


def test_workers_tell_of_themselves_and_silent_ones_are_left_out(client: Client, raw: Any) -> None:
    raw.zadd(keys_of(client).workers, {"silent": 1, "w1": 2})
    raw.hset(
        keys_of(client).worker("w1"),
        mapping={"host": "h", "pid": 7, "started": 1_000, "queues": "a,b", "concurrency": 10, "executor": "threads",
                 "in_hand": 3, "finished": 5, "leads": 1},
    )  # fmt: skip

    (worker,) = client.workers()

    assert (worker.id, worker.host, worker.pid, worker.queues) == ("w1", "h", 7, ("a", "b"))
    assert (worker.concurrency, worker.executor, worker.in_hand, worker.finished) == (10, "threads", 3, 5)
    assert (worker.leads, worker.started) == (True, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))


def test_stats_count_every_queue(client: Client) -> None:
    client.queue("mail").push_many([1, 2])
    client.queue("maths").push(1, in_=60)

    stats = client.stats()

    assert (stats["mail"].waiting, stats["maths"].scheduled) == (2, 1)
    assert stats["mail"].totals["enqueued"] == 2


def test_a_prefix_that_was_never_used_has_nothing(client: Client) -> None:
    assert (client.workers(), client.periodics(), client.stats()) == ([], [], {})
