"""Clients and handles on a real server."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from jobrunner.client.async_client import AsyncClient
from jobrunner.client.client import Client, broker_of, endpoint_of, keys_of
from jobrunner.client.operations import task as task_operations
from jobrunner.client.operations.operation import Operation, run_operation
from jobrunner.client.operations.task import TaskRef
from jobrunner.errors import (
    ClientClosed,
    InvalidName,
    PayloadTooLarge,
    TaskCancelled,
    TaskGone,
    TaskTimeout,
    UsageError,
)
from jobrunner.jobs.decorator import job
from jobrunner.jobs.registry import forget
from jobrunner.task import Task, TaskState, new_id
from jobrunner.task_record import TaskRecord


@job(name="client-test-add", queue="sums")
def add(x: int, y: int = 0) -> int:
    return x + y


@pytest.fixture(autouse=True, scope="module")
def forget_job() -> Iterator[None]:
    yield
    forget("client-test-add")


def test_the_driver_the_keys_and_the_address_are_private(client: Client) -> None:
    twin = AsyncClient(client.settings.url, client.settings.prefix)
    for owner in (client, twin, client.queue("q"), twin.queue("q")):
        assert not {"broker", "keys", "endpoint"} & set(dir(owner))
        assert broker_of(owner) is owner._broker
    assert (keys_of(client).prefix, keys_of(client.queue("q"))) == (client.settings.prefix, keys_of(client).queue("q"))
    assert endpoint_of(client).url == client.settings.url


def test_fields_of_a_handle_are_those_of_its_last_read(current: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    task, broker = add.using(in_=60).enqueue(1), broker_of(current)
    trips, run_many = [], broker.run_many
    monkeypatch.setattr(broker, "run_many", lambda calls: trips.append(1) or run_many(calls))

    assert (task.state, task.attempts, task.retry_count, task.error) == ("scheduled", 0, 0, "")
    assert len(trips) == 1
    assert current.queue("sums").run_now(task.id)
    assert task.state == "scheduled", "it was not read since"
    assert (task.record().state, task.state) == ("waiting", "waiting")
    assert task.cancel()
    assert task.state == "cancelled", "its own change has it read again"


def test_a_handle_forgets_what_it_read_of_a_task_that_is_gone(current: Client) -> None:
    task = add.enqueue(1)
    assert task.state == "waiting"
    current.queue("sums").purge("waiting")

    with pytest.raises(TaskGone):
        task.record()
    with pytest.raises(TaskGone):
        task.state  # noqa: B018
    assert not task.exists()
    assert not task.cancel(), "the handle knows its queue"
    assert not task.requeue()
    for change in (current.task(task.id).cancel, current.task(task.id).requeue):
        with pytest.raises(TaskGone):
            change()


def test_fields_of_an_asyncio_handle_want_a_read_first(current: Client) -> None:
    async def story() -> None:
        async with AsyncClient(current.settings.url, current.settings.prefix) as client:
            task = client.task(add.enqueue(1).id)
            with pytest.raises(UsageError, match=rf"task {task.id} is not read yet: await its record\(\)"):
                task.state  # noqa: B018
            assert (await task.record()).state == task.state == "waiting"
            assert await task.cancel()
            with pytest.raises(UsageError, match="is not read yet"):
                task.error  # noqa: B018

    asyncio.run(story())


def test_a_handle_tells_state_and_times_and_changes_its_fate(current: Client) -> None:
    task = add.enqueue(1)
    assert (task.state, task.attempts, task.retry_count, task.error) == (TaskState.WAITING, 0, 0, "")
    assert task.record().enqueue_time.tzinfo is not None
    later = add.using(in_=60).enqueue(1)
    assert later.state is TaskState.SCHEDULED
    assert later.cancel()
    assert later.record().state is TaskState.CANCELLED
    assert not later.cancel()
    with pytest.raises(TaskCancelled):
        later.result(timeout=0)


@pytest.mark.parametrize("moves", [1, 3])
def test_an_item_that_moves_while_it_is_cancelled_is_cancelled_in_its_next_queue(client: Client, moves: int) -> None:
    stations = [client.queue(f"line/{name}") for name in "abcd"]
    task_id = stations[0].push(1)
    on_its_way = iter(range(moves))

    def moving() -> Operation[bool]:
        """The cancellation, with a move behind each time that it reads the task."""
        steps = task_operations.cancel(TaskRef(keys_of(client), None, task_id, "line/a"))
        step = next(steps)
        while True:
            answer = yield step
            at = next(on_its_way, None) if isinstance(answer[0], TaskRecord) else None
            if at is not None:
                stations[at].reserve()[0].move("bcd"[at])
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return bool(end.value)

    assert run_operation(broker_of(client), moving())
    assert [station.counts()["waiting"] for station in stations] == [0] * 4
    assert client.task(task_id).state is TaskState.CANCELLED


def test_the_same_id_again_leaves_the_first_task_untouched(current: Client) -> None:
    first = add.using(id="order-1").enqueue(1)
    assert add.using(id="order-1").enqueue(2).id == first.id
    assert current.queue("sums").counts()["waiting"] == 1
    assert b'"x":1' in current.task("order-1", queue="sums").record().payload


def test_an_id_of_the_users_own_needs_its_queue(current: Client) -> None:
    with pytest.raises(InvalidName, match="queue=…"):
        current.task("order-1")
    with pytest.raises(TaskGone):
        current.task("order-1", queue="sums").record()


def test_enqueue_many_keeps_the_order_across_batches(current: Client) -> None:
    handles = add.enqueue_many([add.bind(n) for n in range(2500)])
    queue = current.queue("sums")
    in_line = [one for start in range(0, 2500, 1000) for one in queue.ids("waiting", limit=1000, start=start)]
    assert in_line == [handle.id for handle in handles]
    assert current.queues() == ["sums"]


def test_a_payload_above_the_limit_is_refused_and_nothing_is_sent(client: Client) -> None:
    limit = client.settings.payload_limit
    exact = Task(id=new_id("big"), queue="big", payload=b"x" * limit)
    client.enqueue(exact)
    with pytest.raises(PayloadTooLarge, match=str(limit + 1)):
        client.enqueue_many([
            Task(id=new_id("big"), queue="big", payload=b"small"),
            Task(id=new_id("big"), queue="big", payload=b"x" * (limit + 1)),
        ])  # fmt: skip
    assert client.queue("big").counts()["waiting"] == 1


def test_result_waits_for_the_commit_of_another(current: Client) -> None:
    task = add.enqueue(1)
    lease = current.queue("sums").reserve()[0]
    threading.Timer(0.05, lambda: lease.commit({"sum": 3})).start()
    assert task.result(timeout=10) == {"sum": 3}


def test_result_gives_up_after_its_timeout_and_the_task_goes_on(current: Client) -> None:
    task = add.enqueue(1)
    with pytest.raises(TaskTimeout, match=r"still waiting .* no worker has taken it from queue 'sums'"):
        task.result(timeout=0.01)
    assert task.state is TaskState.WAITING


def test_the_error_of_a_wait_says_what_a_scheduled_task_waits_for(current: Client) -> None:
    """A first job that raises looked like a hang: "it goes on"."""
    task = add.enqueue(1)
    current.queue("sums").reserve()[0].rollback(delay=3600, error="ValueError: no number\n  File 'sums.py'")
    failed = r"scheduled after 0 s; attempt 1 failed with ValueError: no number, and the next is due at 20\d\d-.* UTC;"
    with pytest.raises(TaskTimeout, match=failed):
        task.result(timeout=0)

    later = add.using(in_=3600).enqueue(2)
    with pytest.raises(TaskTimeout, match=r"scheduled after 0 s; it is due at 20\d\d-\d\d-\d\d .* UTC; ask again"):
        later.result(timeout=0)


def test_a_closed_client_refuses_further_use(client: Client) -> None:
    client.queues()
    client.close()
    with pytest.raises(ClientClosed):
        client.queues()


def test_the_asyncio_client_does_the_same(client: Client) -> None:
    async def story() -> Any:
        async with AsyncClient(client.settings.url, client.settings.prefix) as twin:
            task = await twin.enqueue(Task(id=new_id("aio"), queue="aio", payload=b"{}", type="x"))
            assert (await task.record()).state is TaskState.WAITING
            waiting = asyncio.create_task(task.result(timeout=10))
            lease = (await asyncio.to_thread(client.queue("aio").reserve))[0]
            await asyncio.to_thread(lease.commit, [1, 2])
            result = await waiting
            again = await twin.enqueue(Task(id=new_id("aio"), queue="aio", payload=b"{}", type="x"))
            assert await again.cancel()
            assert not await again.requeue()
            assert await twin.queues() == ["aio"]
            return result

    assert asyncio.run(story()) == [1, 2]


def test_aenqueue_uses_the_settings_of_the_current_client(current: Client) -> None:
    async def send() -> str:
        return (await add.aenqueue(1, y=2)).id

    sent = asyncio.run(send())
    assert current.queue("sums").ids("waiting") == [sent]
