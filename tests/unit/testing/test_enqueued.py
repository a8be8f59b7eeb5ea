"""The recorder of tasks that would have been enqueued."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

import pytest

from jobrunner import Job, TaskState, job
from jobrunner.client.current import current_client
from jobrunner.errors import (
    InvalidOption,
    NaiveDatetime,
    ParameterError,
    TaskTimeout,
    UnknownJob,
    UnknownOption,
    UsageError,
)
from jobrunner.jobs.registry import forget
from jobrunner.testing import Enqueued, Travel


@job(name="recorded-greet", queue="mail", priority=2)
class Greet(Job):
    address: str
    on: date = date(2026, 1, 1)

    def run(self) -> None: ...


@job(name="recorded-add")
def add(x: int, y: int = 0) -> int:
    return x + y


@pytest.fixture(autouse=True, scope="module")
def forget_jobs() -> Iterator[None]:
    yield
    forget("recorded-greet")
    forget("recorded-add")


@pytest.fixture
def enqueued() -> Iterator[Enqueued]:
    with Enqueued().recording() as recorder:
        yield recorder


def test_a_task_is_recorded_with_all_that_was_said(enqueued: Enqueued) -> None:
    task = Greet(address="ada", on=date(2026, 2, 3)).enqueue(in_=timedelta(minutes=3), queue="vip")
    [recorded] = enqueued
    assert recorded.id == task.id
    assert (recorded.job, recorded.queue, recorded.priority) == ("recorded-greet", "vip", 2)
    assert recorded.params == {"address": "ada", "on": date(2026, 2, 3)}
    assert (recorded.in_, recorded.at, recorded.headers) == (timedelta(minutes=3), None, {})


def test_an_instant_is_recorded(enqueued: Enqueued) -> None:
    when = datetime(2030, 1, 1, tzinfo=UTC)
    Greet(address="ada").enqueue(at=when)
    assert enqueued[0].at == when
    assert enqueued[0].in_ is None


def test_every_way_to_enqueue_is_recorded(enqueued: Enqueued) -> None:
    Greet.enqueue_many([Greet(address=name) for name in "ab"])
    add.using(priority=0).enqueue(1, y=2)
    asyncio.run(add.aenqueue(3))  # type: ignore[arg-type]
    assert [task.params for task in enqueued.of(add)] == [{"x": 1, "y": 2}, {"x": 3, "y": 0}]
    assert [task.params["address"] for task in enqueued.of(Greet)] == ["a", "b"]
    assert len(enqueued) == 4
    assert enqueued.of("recorded-add", x=1)[0].priority == 0


def test_a_handle_tells_that_nothing_runs(enqueued: Enqueued) -> None:
    now, later = add.enqueue(1), add.using(in_=60).enqueue(1)
    assert (now.state, later.state) == (TaskState.WAITING, TaskState.SCHEDULED)
    with pytest.raises(TaskTimeout, match="no worker runs it in this test"):
        now.result(timeout=5)
    assert now.cancel()
    assert now.record().state is TaskState.CANCELLED


def test_one_is_the_only_one_and_an_error_names_the_others(enqueued: Enqueued) -> None:
    add.enqueue(1)
    add.using(in_=60).enqueue(2)
    assert enqueued.one(add, x=2).in_ == timedelta(minutes=1)
    with pytest.raises(AssertionError) as caught:
        enqueued.one(add)
    assert str(caught.value) == (
        "2 tasks of recorded-add(), 1 was expected; "
        "enqueued: recorded-add(x=1, y=0) into 'default'; recorded-add(x=2, y=0) into 'default' in 0:01:00"
    )


def test_none_is_none_of_a_job_or_at_all(enqueued: Enqueued) -> None:
    enqueued.none()
    add.enqueue(1)
    enqueued.none(Greet)
    enqueued.none(add, x=2)
    with pytest.raises(AssertionError, match=r"no task of recorded-add\(x=1\) was expected; enqueued: recorded-add"):
        enqueued.none(add, x=1)
    with pytest.raises(AssertionError, match="no task was expected"):
        enqueued.none()
    enqueued.clear()
    enqueued.none()


def test_a_parameter_may_be_named_job(enqueued: Enqueued) -> None:
    @job(name="recorded-apply")
    def apply(job: str) -> None: ...

    apply.enqueue(job="cook")
    assert enqueued.one(apply, job="cook") is enqueued.of(apply, job="cook")[0]
    enqueued.none(apply, job="baker")
    with pytest.raises(UsageError, match=r"none\(job=…\) names no job; give it first"):
        enqueued.none(job="cook")
    forget("recorded-apply")


def test_the_same_id_again_is_not_recorded_again(enqueued: Enqueued) -> None:
    for x in (1, 2):
        add.using(id="mine").enqueue(x)
    assert enqueued.one(add).params["x"] == 1


def test_a_wrong_parameter_is_an_error_and_not_recorded(enqueued: Enqueued) -> None:
    with pytest.raises(ParameterError):
        add.enqueue("one")  # type: ignore[arg-type]
    enqueued.none()


def test_what_is_no_job_is_refused(enqueued: Enqueued) -> None:
    with pytest.raises(UsageError, match="is no job"):
        enqueued.of(int)
    with pytest.raises(UnknownJob, match="recorded-add"):
        enqueued.of("recorded-ad")


def test_a_bare_queue_is_not_recorded_but_refused(enqueued: Enqueued) -> None:
    with pytest.raises(UsageError, match="the fixture `enqueued` has no server"):
        current_client().queue("orders").push(b"x")


def test_recording_ends_with_its_block(enqueued: Enqueued) -> None:
    with Enqueued().recording() as inner:
        add.enqueue(1)
    add.enqueue(2)
    assert (inner.one(add).params["x"], enqueued.one(add).params["x"]) == (1, 2)


def test_the_clock_is_the_servers_until_it_is_moved() -> None:
    travel = Travel()
    assert travel() == b""
    before = travel.now
    assert timedelta(hours=1) <= travel.forward(timedelta(hours=1)) - before < timedelta(hours=1, minutes=1)
    assert abs(float(travel()) - travel.now_ms) < 60_000


def test_the_clock_does_not_go_back() -> None:
    travel = Travel()
    with pytest.raises(InvalidOption):
        travel.forward(-1)
    with pytest.raises(InvalidOption, match="give a later instant"):
        travel.to(datetime(2020, 1, 1, tzinfo=UTC))
    with pytest.raises(NaiveDatetime, match="has no time zone"):
        travel.to(datetime(2120, 1, 1))
    assert travel() == b""


def test_who_looks_before_a_move_sees_the_present() -> None:
    travel, seen = Travel(), list[datetime]()
    travel.before.append(lambda: seen.append(travel.now))
    after = travel.forward(3600)
    assert after - seen[0] >= timedelta(hours=1)


def test_a_name_that_is_no_parameter_is_refused_as_no_task_could_have_it(enqueued: Enqueued) -> None:
    """`none` would never fail."""
    add.enqueue(1, 2)
    for asked in (enqueued.none, enqueued.one, enqueued.of):
        with pytest.raises(UnknownOption, match=r"unknown parameter 'yy' of job '.*add'; did you mean 'y'\?"):
            asked(add, yy=2)
