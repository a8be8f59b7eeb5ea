"""Wrong values are refused with a typed error before anything is sent."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from jobrunner import Client, Item, RateLimit, Unique
from jobrunner.errors import InvalidName, InvalidOption, UnknownJob, UsageError
from jobrunner.settings import check_whole, client_settings
from jobrunner.task import due
from jobrunner.worker.settings import WorkerSettings

HUGE = 10**5000
ODD: list[Callable[[Client], Any]] = [
    lambda client: client.queue({}).counts(),  # type: ignore[arg-type]
    lambda client: client.task("a", queue=["b"]).state,  # type: ignore[arg-type]
    lambda client: client.task(1, queue="mail").state,  # type: ignore[arg-type]
    lambda client: client.queue("mail").ids("waiting", start="1"),  # type: ignore[arg-type]
    lambda client: client.queue("mail").ids("waiting", start=1e300),  # type: ignore[arg-type]
    lambda client: client.queue("mail").push(1, headers=b""),
    lambda client: client.queue("mail").push(1, headers={"file": "caf\udce9.txt"}),
    lambda client: client.queue("mail").push(1, in_=-HUGE, at=HUGE),
    lambda client: client.queue("mail").push(1, at=HUGE),
    lambda client: client.queue("mail").push(1, at=1e300),
    lambda client: client.queue("mail").push(1, priority=HUGE),
    lambda client: client.queue("mail").push(1, max_attempts=HUGE),
    lambda client: client.queue("mail").requeue_dead(2),  # type: ignore[arg-type]
    lambda client: client.queue("mail").requeue_dead(payload=1),
    lambda client: client.queue("mail").push_many("abc"),
    lambda client: client.queue("mail").push_many({"to": "ada"}),
    lambda client: client.queue("mail").push_many(Item(1)),  # type: ignore[arg-type]
    lambda client: client.queue("mail").push_all({"to": "ada"}),
    lambda client: client.queue("mail").push_all(7),  # type: ignore[arg-type]
    lambda client: client.queue("mail").configure(max_attempts=HUGE),
    lambda client: client.queue("mail").configure(max_inflight=2**53 + 1),
    lambda client: list(client.events(after=5)),  # type: ignore[arg-type]
    lambda client: list(client.events(after="１２")),
    lambda client: list(client.events(after="9" * 40)),
    lambda _: RateLimit(max_tokens=1, interval_unit=[]),  # type: ignore[arg-type]
    lambda _: Unique(by=5),  # type: ignore[arg-type]
    lambda _: client_settings(payload_keys=7),
    lambda _: WorkerSettings(heartbeat="10"),  # type: ignore[arg-type]
    lambda _: WorkerSettings(poll=0),
    lambda _: WorkerSettings(batch_max=0),
]


@pytest.mark.parametrize("asked", ODD)
def test_odd_values_are_refused_before_anything_is_sent(
    client: Client, raw: redis.Redis, asked: Callable[[Client], Any]
) -> None:
    with pytest.raises(UsageError) as caught:
        asked(client)

    assert len(str(caught.value)) < 600
    assert raw.dbsize() == 0


def test_odd_values_of_reports_are_refused_and_the_lease_stays(client: Client) -> None:
    queue = client.queue("shop/raw")
    queue.push(1)
    (lease,) = queue.reserve()

    with pytest.raises(InvalidOption, match="error"):
        lease.rollback(0, error=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="error"):
        queue.rollback_many([lease], 0, error=None)  # type: ignore[arg-type]
    with pytest.raises(InvalidName, match="queue name"):
        lease.move(7)  # type: ignore[arg-type]
    for odd in (None, True, "1", "x", -1, 1.5, HUGE):
        with pytest.raises(InvalidOption, match="max_hops"):
            lease.move("next", max_hops=odd)
    for odd in ("x", 0, ["a"], {"a": 1}):
        with pytest.raises(InvalidOption, match="header"):
            queue.move_many([lease], "next", headers=odd)  # type: ignore[arg-type]

    assert lease.commit()


@pytest.mark.parametrize("name", [0, {}, HUGE, "no such job"], ids=["number", "dict", "huge", "text"])
def test_a_periodic_job_that_cannot_be_is_unknown(client: Client, name: Any) -> None:
    with pytest.raises(UnknownJob):
        client.disable_periodic(name)


def test_what_is_long_past_is_due_now_and_the_last_second_of_a_datetime_is_an_instant() -> None:
    assert due(-HUGE, None) == (0.0, None)
    assert due(None, datetime.max.replace(tzinfo=UTC, microsecond=0)) == due(None, 253_402_300_799)


def test_whole_numbers_end_where_the_scripts_of_the_server_count_exactly() -> None:
    assert check_whole(2**53, "n", minimum=0) == 2**53
    with pytest.raises(InvalidOption, match=f"from 0 to {2**53}"):
        check_whole(2**53 + 1, "n", minimum=0)


def test_lengths_of_a_worker_are_seconds_or_timedeltas() -> None:
    assert WorkerSettings(grace=timedelta(seconds=3)).grace == 3.0  # type: ignore[arg-type]
