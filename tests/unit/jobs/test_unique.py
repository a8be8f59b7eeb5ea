"""Unique tasks as a user enqueues them."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from jobrunner import Client, Unique, job
from jobrunner.client.current import forget, use
from jobrunner.errors import DuplicateTask, InvalidOption, ParameterError
from jobrunner.jobs.enqueue_options import NOW


@pytest.fixture(autouse=True)
def current(client: Client) -> Iterator[Client]:
    yield use(client)
    forget()


@job(name="unique.plain", queue="u", unique=True)
def plain(x: int, y: list[int] | None = None) -> None: ...


@job(name="unique.by", queue="u", unique=Unique(by=["x"], on_clash="replace"))
def by_x(x: int, note: str = "") -> None: ...


@job(name="unique.raising", queue="u", unique=Unique(on_clash="raise", ttl=60))
def raising(x: int) -> None: ...


@job(name="unique.free", queue="u")
def free(x: int) -> None: ...


@job(name="unique.amount", queue="u", unique=True, partition_by="amount")
def amount(amount: float, tags: set[int] = set(), note: Any = None) -> None: ...  # noqa: B006  (a job copies it)


@pytest.mark.parametrize("same", [((1,), (1.0,)), ((2, {3, 4}), (2.0, [4, 3, 4]))])
def test_tasks_whose_jobs_read_the_same_are_alike(current: Client, same: Any) -> None:
    """Each was sent under another lock, and under another key, as it was written otherwise."""
    first, second = (amount.bind(*values).task(NOW) for values in same)
    assert first.lock == second.lock
    assert first.key == second.key == f"{same[0][0]}.0"
    assert amount.enqueue(*same[0]).id == amount.enqueue(*same[1]).id


@pytest.mark.parametrize("unique", [plain, by_x, raising])
def test_a_later_task_of_the_same_id_does_not_hold_the_lock_of_the_earlier_one(current: Client, unique: Any) -> None:
    """The enqueue added nothing, or gave its parameters to a task of another job."""
    unique.using(id="mine").enqueue(1)
    current.queue("u").pop()
    later = free.using(id="mine").enqueue(2)

    assert unique.enqueue(1).is_new
    assert later.record().type == "unique.free"


@job(name="unique.at", queue="u", unique=True, partition_by="at")
def at_instant(at: datetime, days: dict[str, set[datetime]] | None = None, note: Any = None) -> None: ...


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Kolkata", "Atlantic/Reykjavik"])
def test_an_instant_is_alike_in_every_time_zone(current: Client, zone: str) -> None:
    """A web process and a worker in two zones had a task each, and two partitions."""
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    there = noon.astimezone(ZoneInfo(zone))
    first, second = (at_instant.bind(one, {"free": {one}}).task(NOW) for one in (noon, there))
    assert first.lock == second.lock
    assert first.key == second.key == '"2026-07-01T12:00:00Z"'
    assert at_instant.enqueue(noon).id == at_instant.enqueue(there).id


@pytest.mark.parametrize(
    "other",
    [
        datetime(2026, 7, 1, 12),
        datetime(2026, 7, 1, 14, tzinfo=UTC),
        datetime.max.replace(tzinfo=ZoneInfo("America/New_York")),
    ],
)
def test_other_instants_are_not_alike(current: Client, other: datetime) -> None:
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert at_instant.bind(noon).task(NOW).lock != at_instant.bind(other).task(NOW).lock
    assert at_instant.bind(noon, note="2026-07-01T12:00:00Z").task(NOW).lock != (
        at_instant.bind(noon, note="2026-07-01T14:00:00+02:00").task(NOW).lock
    )


@pytest.mark.parametrize("wrong", [object(), "\ud800", float("nan")])
def test_a_wrong_parameter_of_a_unique_job_is_told_as_of_any_other(current: Client, wrong: Any) -> None:
    with pytest.raises(ParameterError, match=r"parameter note of job 'unique\.amount' (is|cannot) "):
        amount.enqueue(1, note=wrong)


def test_a_clash_is_answered_with_the_task_that_is_there(current: Client) -> None:
    first = plain.enqueue(1, y=[2])
    assert plain.enqueue(1, y=[2]).id == first.id
    assert plain.enqueue(1, y=[3]).id != first.id
    assert current.queue("u").counts()["waiting"] == 2
    first.cancel()
    assert plain.enqueue(1, y=[2]).id != first.id


def test_only_the_parameters_named_count(current: Client) -> None:
    first = by_x.enqueue(1, note="old")
    assert by_x.enqueue(1, note="new").id == first.id
    assert first.record().payload == b'{"x":1,"note":"new"}'


def test_a_clash_may_be_an_error_that_names_the_task(current: Client) -> None:
    first = raising.enqueue(1)
    with pytest.raises(DuplicateTask, match=first.id) as caught:
        raising.enqueue(1)
    assert caught.value.task_id == first.id


def test_unique_and_other_tasks_go_in_one_batch(current: Client) -> None:
    calls: list[Any] = [plain.bind(1), free.bind(1), plain.bind(1), free.bind(2), plain.bind(2)]
    handles = current.enqueue_many([call.task(NOW) for call in calls])
    ids = [handle.id for handle in handles]
    assert ids[0] == ids[2]
    assert len(set(ids)) == 4
    assert current.queue("u").counts()["waiting"] == 4


def test_a_batch_with_a_clash_that_should_raise_sends_the_rest(current: Client) -> None:
    with pytest.raises(DuplicateTask):
        raising.enqueue_many([raising.bind(1), raising.bind(1), raising.bind(2)])
    assert current.queue("u").counts()["waiting"] == 2


def test_it_is_the_same_for_asyncio(current: Client) -> None:
    async def main() -> None:
        first = await plain.aenqueue(7)
        assert (await plain.aenqueue(7)).id == first.id

    asyncio.run(main())


@pytest.mark.parametrize(
    "options", [{"until": "never"}, {"on_clash": "explode"}, {"ttl": -1}, {"by": "x"}, {"by": [1]}], ids=str
)
def test_a_wrong_choice_is_an_error_that_names_it(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=f"^{next(iter(options))}"):
        Unique(**options)


def test_a_dead_task_with_other_parameters_keeps_its_partition_and_its_lock(current: Client) -> None:
    """As docs/dead-and-history.md says."""
    task = amount.using(max_attempts=1).enqueue(1)
    queue = current.queue("u")
    (lease,) = queue.reserve()
    lease.rollback()
    assert queue.requeue_dead([task.id], payload={"amount": 2}) == 1
    assert [amount.enqueue(1).is_new, amount.enqueue(2).is_new] == [False, True]
    assert task.record().fields["key"] == b"1.0"
