"""current_task(): every kind of job sees the task that runs it, in every executor, and nothing else does."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any

import pytest

import jobrunner
from jobrunner import Client, Job, Queue, Retry, Snooze, Worker, chain, current_task, job
from jobrunner.client.client import keys_of
from jobrunner.client.current import within
from jobrunner.errors import TaskFailed, UsageError
from jobrunner.etl import Pipeline
from jobrunner.jobs.registry import forget
from jobrunner.testing import inline
from tests.support.server import Server
from tests.worker import current_jobs as jobs


@pytest.fixture
def declare() -> Iterator[Callable[..., Any]]:
    """declare(name, **options): @job of a job that is forgotten behind the test."""
    names: list[str] = []

    def declared(name: str, **options: Any) -> Any:
        names.append(name)
        return job(name=name, queue="current", result_ttl=60, **options)

    yield declared
    for name in names:
        forget(name)


def about_it() -> dict[str, Any]:
    """The current task in plain data."""
    task = current_task()
    return {"id": task.id, "attempt": task.attempt, "queue": task.queue, "job": task.job, "cancelled": task.cancelled}


def expected(handle: Any, name: str, attempt: int = 1) -> dict[str, Any]:
    return {"id": handle.id, "attempt": attempt, "queue": "current", "job": name, "cancelled": False}


def test_outside_a_job_it_says_where_to_call_it() -> None:
    with pytest.raises(UsageError, match=r"no task runs here; call it in a job.*copy_context"):
        current_task()


def test_a_function_and_a_coroutine_function_see_their_task(current: Client, run: Any, declare: Any) -> None:
    @declare("current.plain")
    def plain() -> Any:
        return about_it()

    @declare("current.awaited")
    async def awaited() -> Any:
        before = about_it()
        await asyncio.sleep(0)
        assert about_it() == before
        return before

    handles = plain.enqueue(), awaited.enqueue()
    run(queues=["current"])
    assert handles[0].result(timeout=30) == expected(handles[0], "current.plain")
    assert handles[1].result(timeout=30) == expected(handles[1], "current.awaited")
    with pytest.raises(UsageError):
        current_task()


def test_a_job_whose_task_has_ended_already_is_given_nothing_and_told_nothing_of_another(
    current: Client, run: Any, declare: Any
) -> None:
    """With `ack="early"`. The id is free by then, and a task that has it is no attempt that took its lease away."""
    seen: list[Any] = []

    def noted() -> None:
        task = current_task()
        task.progress(1, 3)
        seen.append((task.job, task.results, task.outcomes, task.cancelled))

    @declare("current.early", ack="early")
    def early(again: bool) -> None:
        if again:
            early.using(id="mine").enqueue(False)
        noted()

    @declare("current.early_awaited", ack="early")
    async def early_awaited(again: bool) -> None:
        if again:
            await early_awaited.using(id="yours").aenqueue(False)
        noted()

    early.using(id="mine").enqueue(True)
    early_awaited.using(id="yours").enqueue(True)
    run(queues=["current"])
    assert sorted(seen) == [(name, (), (), False) for name in ("current.early", "current.early_awaited") for _ in "12"]


def test_coroutines_and_threads_side_by_side_each_see_their_own(current: Client, run: Any, declare: Any) -> None:
    many = 8
    together, thread_barrier = asyncio.Barrier(many), threading.Barrier(many)

    @declare("current.together")
    async def coroutine() -> str:
        async with together:
            first = current_task().id
        await asyncio.sleep(0)
        assert await asyncio.to_thread(lambda: current_task().id) == first
        assert await asyncio.create_task(read_id()) == first
        return first

    @declare("current.threads")
    def thread() -> str:
        thread_barrier.wait(30)
        return current_task().id

    async def read_id() -> str:
        return current_task().id

    handles = [*(coroutine.enqueue() for _ in range(many)), *(thread.enqueue() for _ in range(many))]
    run(queues=["current"], concurrency=2 * many)
    assert [handle.result(timeout=30) for handle in handles] == [handle.id for handle in handles]


def test_the_client_in_a_job_is_that_of_its_worker_whatever_is_configured(
    server: Server, current: Client, declare: Any
) -> None:
    """`Client()` in a job of `work --url` read the embedded server of the folder."""

    @declare("current.client")
    def of_thread() -> str:
        return keys_of(jobrunner.current_client()).prefix

    @declare("current.client_awaited")
    async def of_coroutine() -> list[str]:
        found = await asyncio.to_thread(jobrunner.current_client)
        return [keys_of(one).prefix for one in (jobrunner.current_client(), found)]

    with Client(server.url, "of-the-worker") as own:
        with within(own):
            handles = of_thread.enqueue(), of_coroutine.enqueue()
        Worker(queues=["current"], client=own).run(burst=True)
        assert [handle.result(timeout=0) for handle in handles] == ["of-the-worker", ["of-the-worker"] * 2]
    assert keys_of(jobrunner.current_client()).prefix == keys_of(current).prefix


def test_the_client_of_a_worker_is_not_closed_by_a_job(current: Client, run: Any, declare: Any) -> None:
    """All later jobs of the worker died where they enqueued: "this client is closed"."""

    @declare("current.closes", max_attempts=1)
    def closes() -> None:
        with jobrunner.current_client():
            pass

    @declare("current.enqueues")
    def enqueues() -> str:
        return closes.using(in_=3600).enqueue().id

    first, second = closes.enqueue(), enqueues.enqueue()
    run(queues=["current"], concurrency=1)
    with pytest.raises(TaskFailed, match=r"with current_client\(\): its end would close the client .* without `with`"):
        first.result(timeout=0)
    assert second.result(timeout=0)


def test_child_processes_see_it_in_functions_coroutines_and_hooks(current: Client, run: Any) -> None:
    handles = jobs.in_child.enqueue(), jobs.in_child_awaited.enqueue()
    run(modules=["tests.worker.current_jobs"], queues=["current"], executor="processes", concurrency=2)
    assert [handle.result(timeout=30) for handle in handles] == [[handle.id, "current", 1] for handle in handles]


def test_hooks_and_attempts_behind_the_first_see_it(current: Client, run: Any, declare: Any) -> None:
    seen: list[tuple[str, int]] = []

    @declare("current.hooks", max_attempts=2)
    class Hooked(Job):
        def before(self) -> None:
            seen.append(("before", current_task().attempt))

        def run(self) -> Any:
            assert current_task().id == self.task.id
            if self.task.attempt == 1:
                raise Retry(in_=0)
            return None

        def after(self) -> None:
            seen.append(("after", current_task().attempt))

        def on_failure(self, error: BaseException) -> None:
            seen.append(("on_failure", current_task().attempt))

    Hooked().enqueue()
    run(queues=["current"], drain=True)
    assert seen == [("before", 1), ("on_failure", 1), ("before", 2), ("after", 2)]


def test_progress_log_headers_and_metadata_are_those_of_class_jobs(
    current: Client, run: Any, declare: Any, raw: Any
) -> None:
    @declare("current.all")
    def everything() -> Any:
        task = current_task()
        task.progress(1, 2, note="half")
        noted = b"half" in raw.hget(keys_of(current).queue("current").task(task.id), "progress")
        logged = task.log._context["task"]
        return [logged, noted, dict(task.headers), task.metadata.increment("runs"), task.max_attempts, task.results]

    handle = everything.enqueue()
    run(queues=["current"])
    assert handle.result(timeout=30) == [handle.id, True, {}, 1, 5, []]


@pytest.mark.parametrize("published", [True, False])
def test_a_job_learns_with_its_progress_that_it_was_cancelled(
    current: Client, run: Any, declare: Any, published: bool
) -> None:
    """Without it, with the next renewal of its lease."""

    @declare("current.stopped", keepalive=3600)
    def stopped() -> Any:
        task = current_task()
        current.task(task.id).cancel()
        if published:
            task.progress(1, 3)
        return task.cancelled

    handle = stopped.enqueue()
    run(queues=["current"])
    assert handle.result(timeout=30) is published


def test_a_coroutine_publishes_its_progress_in_a_thread(current: Client, run: Any, declare: Any, raw: Any) -> None:
    """So that its event loop does not wait for the server."""

    @declare("current.threaded")
    async def threaded() -> Any:
        task = current_task()
        await asyncio.to_thread(task.progress, 1, 2, "half")
        noted = b"half" in raw.hget(keys_of(current).queue("current").task(task.id), "progress")
        return [noted, await asyncio.to_thread(task.metadata.increment, "runs")]

    handle = threaded.enqueue()
    run(queues=["current"])
    assert handle.result(timeout=30) == [True, 1]


def test_the_last_progress_of_a_coroutine_is_there_when_its_task_has_ended(
    current: Client, run: Any, declare: Any, raw: Any
) -> None:
    """Also of one that fails, and of a job on a thread that runs an event loop of its own."""

    async def work(n: int) -> None:
        for done in range(11):
            current_task().progress(done, 10, f"step {done}")
        if n == 0:
            raise ValueError("no")

    noted = declare("current.noted", max_attempts=1)(work)

    @declare("current.noted_by_thread", max_attempts=1)
    def noted_by_thread(n: int) -> None:
        asyncio.run(work(n))

    handles = [one.enqueue(n) for n in range(10) for one in (noted, noted_by_thread)]
    run(queues=["current"])

    tasks = [raw.hget(keys_of(current).queue("current").task(handle.id), "progress") for handle in handles]
    assert [json.loads(found)["note"] for found in tasks] == ["step 10"] * 20


@pytest.mark.parametrize("kind", ["threads", "coroutine"])
def test_progress_does_not_wait_for_a_server_that_is_away(
    start_server: Callable[..., Server], declare: Any, kind: str
) -> None:
    """It waited for `retry_timeout`, and in a coroutine the event loop with all its jobs did."""
    own = start_server()
    begun, is_away, ended = threading.Event(), threading.Event(), threading.Event()

    def go_on() -> None:
        begun.set()
        assert is_away.wait(30)
        for done in range(3):
            current_task().progress(done, 2)
        ended.set()

    async def go_on_async() -> None:
        go_on()

    work = declare("current.away")(go_on if kind == "threads" else go_on_async)
    with Client(own.url, retry_timeout=300) as client:
        client.enqueue(work.bind().task())
        worker = Worker(client=client, queues=["current"])
        worker.start()
        try:
            assert begun.wait(30)
            own.kill()
            is_away.set()
            assert ended.wait(30)
        finally:
            own.start()
            worker.stop(grace=0)


def test_a_cancelled_task_says_so(current: Client, start: Any, declare: Any) -> None:
    begun, ended = threading.Event(), threading.Event()

    @declare("current.cancelled")
    def waits() -> None:
        begun.set()
        while not current_task().cancelled:
            current_task().progress(1, 2)
        ended.set()

    handle = waits.enqueue()
    start(queues=["current"])
    assert begun.wait(30)
    handle.cancel()
    assert ended.wait(30)


def test_a_plain_thread_does_not_inherit_it_and_a_copied_context_does(
    current: Client, run: Any, declare: Any
) -> None:
    found: list[str] = []

    def read() -> None:
        try:
            found.append(current_task().id)
        except UsageError:
            found.append("none")

    @declare("current.started")
    def starts_threads() -> None:
        for target, args in ((read, ()), (copy_context().run, (read,))):
            thread = threading.Thread(target=target, args=args)
            thread.start()
            thread.join()

    handle = starts_threads.enqueue()
    run(queues=["current"])
    assert found == ["none", handle.id]


def test_a_station_and_a_step_of_a_flow_see_it(current: Client, run: Any, declare: Any) -> None:
    seen: list[tuple[str, str]] = []
    line = Pipeline("current", current)

    @line.sink("in")
    def keep(item: Any) -> None:
        seen.append((item.id, current_task().id))

    @declare("current.step")
    def step() -> Any:
        return current_task().results

    item = Queue.push(current.queue("current/in"), {"n": 1})
    flow = chain(step.bind(), step.bind()).enqueue()
    run(queues=["current/in", "current"])
    assert seen == [(item, item)]
    assert flow.result(timeout=30) == [[]]


def test_a_tick_of_a_periodic_job_sees_it(current: Client, declare: Any, travel: Any, jobrunner_worker: Any) -> None:
    seen: list[str] = []

    @declare("current.tick", every=60)
    def tick() -> None:
        seen.append(current_task().job)

    jobrunner_worker.run()
    travel.forward(61)
    jobrunner_worker.run()
    assert seen == ["current.tick"]


def test_a_job_that_runs_within_another_hides_it_until_it_ends(declare: Any) -> None:
    seen: list[str] = []

    @declare("current.inner")
    def inner() -> None:
        seen.append(current_task().job)

    @declare("current.inner-awaited")
    async def inner_awaited() -> Any:
        seen.append(current_task().job)
        return Snooze(in_=1)

    @declare("current.outer")
    def outer() -> None:
        inner.enqueue()
        inner()  # a plain call: the task is that of the caller
        inner_awaited.enqueue()
        seen.append(current_task().job)

    @declare("current.outer-awaited")
    async def outer_awaited() -> None:
        await inner_awaited.aenqueue()
        seen.append(current_task().job)

    async def both() -> None:
        await outer_awaited.aenqueue()
        with pytest.raises(UsageError):
            current_task()

    with inline():
        outer.enqueue()
        asyncio.run(both())
    assert seen == [
        "current.inner", "current.outer", "current.inner-awaited", "current.outer",
        "current.inner-awaited", "current.outer-awaited",
    ]  # fmt: skip
    with pytest.raises(UsageError):
        current_task()


def test_the_hooks_of_an_attempt_whose_process_died_see_it(current: Client, run: Any) -> None:
    jobs.hooked.clear()
    handle = jobs.Dies().enqueue()
    run(modules=["tests.worker.current_jobs"], queues=["current"], executor="processes", concurrency=1)
    assert jobs.hooked == [handle.id]
