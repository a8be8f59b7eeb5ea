"""The worker of a test never hangs: pauses and limits that hold all that waits are named, or travelled through."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobrunner import Backoff, Client, RateLimit, current_task, job
from jobrunner.clock import monotonic
from jobrunner.errors import InvalidOption, TaskTimeout, UsageError
from jobrunner.jobs.registry import forget
from jobrunner.loop import Signal
from jobrunner.testing import JobrunnerWorker, Travel
from jobrunner.testing import worker as module

HOURLY = RateLimit(2, per=timedelta(hours=1))
LIMITS = pytest.mark.parametrize(
    ("limits", "why"), [({"rate": HOURLY}, "rate="), ({"rate_per_partition": HOURLY}, "rate_per_partition=")]
)
released = Signal()


@job(name="holds.note", queue="holds", partition_by="tenant")
def note(tenant: str = "ada") -> str:
    return tenant


@job(name="holds.flaky", queue="holds", max_attempts=2, backoff=Backoff(base=3600))
def flaky() -> None:
    if current_task().attempt == 1:
        raise ValueError("once")


@job(name="holds.hang", queue="holds", max_attempts=1)
def hang() -> None:
    released.wait(60)


@job(name="holds.fail", queue="holds", max_attempts=1, partition_by="tenant")
def fail(tenant: str) -> None:
    raise ValueError(tenant)


@pytest.fixture(autouse=True, scope="module")
def forget_jobs() -> Iterator[None]:
    yield
    released.set()
    for name in ("holds.note", "holds.flaky", "holds.hang", "holds.fail"):
        forget(name)


@pytest.fixture
def travel() -> Travel:
    return Travel()


@pytest.fixture
def worker(server: Any, keys: Any, travel: Travel) -> Iterator[JobrunnerWorker]:
    from jobrunner.client.current import pinned

    with Client(server.url, keys.prefix, now_ms=travel) as client, pinned(client):
        yield JobrunnerWorker(client, travel)


def queue_of(worker: JobrunnerWorker) -> Any:
    return worker._client.queue("holds")


@LIMITS
def test_a_limit_that_holds_everything_ends_a_run_and_is_named(
    worker: JobrunnerWorker, limits: dict[str, Any], why: str
) -> None:
    queue_of(worker).configure(**limits)
    note.enqueue_many([note.bind() for _ in range(5)])

    summary = worker.run(queues=["holds"])

    assert summary.finished == 2
    (held,) = summary.held
    assert (held.queue, held.waiting) == ("holds", 3)
    assert why in str(held)
    assert worker.run(queues=["holds"]).finished == 0


@LIMITS
def test_a_drain_travels_to_each_refill(
    worker: JobrunnerWorker, travel: Travel, limits: dict[str, Any], why: str
) -> None:
    queue_of(worker).configure(**limits)
    note.enqueue_many([note.bind() for _ in range(5)])
    began = travel.now

    summary = worker.run(queues=["holds"], drain=True)

    assert (summary.finished, summary.held) == (5, ())
    assert timedelta(minutes=85) < travel.now - began < timedelta(hours=2)


def test_a_drain_travels_to_any_number_of_due_times(
    worker: JobrunnerWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that end one by one, and those that each fail first, are no job that reschedules itself."""
    monkeypatch.setattr(module, "_MOST_JOURNEYS", 5)
    note.enqueue_many([note.bind().using(in_=60 * n) for n in range(1, 11)])
    flaky.enqueue_many([flaky.bind().using(in_=36_000 + 60 * n) for n in range(1, 11)])

    assert worker.run(queues=["holds"], drain=True).finished == 30


def test_what_is_not_held_runs_before_a_run_ends(worker: JobrunnerWorker) -> None:
    queue_of(worker).configure(rate_per_partition=RateLimit(1, per=timedelta(hours=1)))
    note.enqueue_many([note.bind(tenant) for tenant in ("ada", "bob", "cy") for _ in range(3)])

    summary = worker.run(queues=["holds"])

    assert (summary.finished, [held.waiting for held in summary.held]) == (3, [6])


def test_a_task_in_any_partition_runs(worker: JobrunnerWorker) -> None:
    queue_of(worker).configure(partitions=4)
    tenants = [f"tenant{n}" for n in range(8)]
    assert len({note.enqueue(tenant).id.partition("@")[2] for tenant in tenants}) > 1
    for tenant in tenants:
        worker.run(queues=["holds"])
        note.enqueue(tenant)
    worker.run(queues=["holds"])
    assert queue_of(worker).totals()["succeeded"] == 16
    for tenant in tenants:
        note.using(in_=86_400).enqueue(tenant)
    worker.run(queues=["holds"], drain=True)
    assert queue_of(worker).totals()["succeeded"] == 24
    queue_of(worker).pause()
    late = note.enqueue(tenants[0])
    assert [hold.why for hold in worker.run(queues=["holds"]).held] == ["a pause"]
    assert late.state == "waiting"


def test_a_drain_waits_for_a_rate_to_move_between_shards_and_travels_to_no_other_event(
    worker: JobrunnerWorker, travel: Travel
) -> None:
    """It travelled to the day on which dead tasks are deleted, or ended with tasks that waited."""
    queue = queue_of(worker)
    queue.configure(partitions=2)
    tenants = [f"tenant{n}" for n in range(8)]
    dead = [fail.enqueue(tenant) for tenant in tenants]
    assert len({task.id.partition("@")[2] for task in dead}) == 2
    worker.run(queues=["holds"])
    queue.configure(rate=RateLimit(1, per=timedelta(minutes=1)))
    note.enqueue_many([note.bind(tenant) for tenant in tenants])
    began = travel.now

    summary = worker.run(queues=["holds"], drain=True)

    assert (summary.finished, summary.held) == (8, ())
    assert [task.state for task in dead] == ["dead"] * 8
    assert travel.now - began < timedelta(hours=1)


@pytest.mark.parametrize("drain", [False, True])
def test_a_paused_queue_is_named(worker: JobrunnerWorker, drain: bool) -> None:
    queue_of(worker).pause()
    note.enqueue()

    summary = worker.run(queues=["holds"], drain=drain)

    assert summary.finished == 0
    assert [str(held) for held in summary.held] == ["queue 'holds' has 1 waiting, held by a pause"]


def test_a_job_that_does_not_end_ends_the_run_at_its_limit(worker: JobrunnerWorker) -> None:
    hang.enqueue()
    began = monotonic()

    with pytest.raises(TaskTimeout, match=r"was stopped after timeout=0\.5 s: queue 'holds': 1 (pending|waiting)"):
        worker.run(queues=["holds"], timeout=0.5)

    assert monotonic() - began < 30


def test_a_task_that_another_holds_ends_the_run_at_its_limit(worker: JobrunnerWorker) -> None:
    queue_of(worker).configure(max_inflight=1)
    note.enqueue_many([note.bind(), note.bind()])
    assert queue_of(worker).reserve()

    with pytest.raises(TaskTimeout, match="queue 'holds': 1 pending, 1 waiting"):
        worker.run(queues=["holds"], timeout=0.5)


@pytest.mark.parametrize("queues", [["holds:3"], {"holds": 3}, ["holds"], []])
def test_queues_are_named_as_for_a_worker(worker: JobrunnerWorker, queues: Any) -> None:
    """Of `NAME:WEIGHT` nothing ran, and a test that nothing happens passed."""
    note.enqueue()
    assert worker.run(queues=queues).finished >= 1
    assert not worker._client.queue("holds").counts()["waiting"]


@pytest.mark.parametrize("at", [datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), datetime(2400, 1, 1, tzinfo=UTC)])
def test_a_drain_ends_when_the_clock_cannot_travel_to_a_due_time(worker: JobrunnerWorker, at: datetime) -> None:
    """It hung, also beyond its timeout: the thread that ends a run had died."""
    soon, never = note.using(in_=60).enqueue(), note.using(at=at).enqueue()
    with pytest.raises(UsageError, match=r"the next task of queue 'holds' is [\d,]+ years ahead, and the clock cannot"):
        worker.run(drain=True, queues=["holds"])
    assert (soon.state, never.state) == ("succeeded", "scheduled")


def test_an_error_of_the_thread_that_travels_ends_a_run(
    worker: JobrunnerWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    note.using(in_=60).enqueue()
    monkeypatch.setattr(module, "find_holds", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        worker.run(drain=True, queues=["holds"])


def test_one_name_where_a_list_is_meant_is_refused(jobrunner_worker: JobrunnerWorker) -> None:
    with pytest.raises(InvalidOption, match=r"queues='mail': give a list, \['mail'\]"):
        jobrunner_worker.run(queues="mail")
