"""Flows and unique jobs without a server: inline() runs them by the rules of the server, enqueued records them."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from jobrunner import Cancel, Fail, Job, RateLimit, Unique, async_client, chain, current_task, group, job
from jobrunner.client.current import current_client
from jobrunner.errors import (
    DuplicateTask,
    InvalidOption,
    QueueFull,
    TaskCancelled,
    TaskFailed,
    TaskGone,
    TaskTimeout,
    UsageError,
)
from jobrunner.jobs.registry import forget
from jobrunner.testing import Enqueued, inline

seen: list[Any] = []


@job(name="memory.add", queue="maths")
def add(x: int, y: int = 0) -> int:
    return x + y


@job(name="memory.plus", queue="maths")
async def plus(y: int = 0) -> int:
    return sum(current_task().results[0:1], y)


@job(name="memory.total", queue="sums")
class Total(Job):
    label: str = ""

    def run(self) -> int:
        seen.append((self.label, self.task.results, self.task.outcomes))
        return sum(one for one in self.task.results if isinstance(one, int))


@job(name="memory.bad", queue="maths", max_attempts=1)
def bad() -> None:
    raise Fail("no use", retry=False)


@job(name="memory.flaky", queue="maths", max_attempts=3)
def flaky() -> None:
    raise ValueError("later")


@job(name="memory.stopped", queue="maths")
def stopped() -> None:
    raise Cancel("not needed")


@job(name="memory.single", queue="maths", unique=Unique(by=["x"]))
def single(x: int, y: int = 0) -> int:
    seen.append((x, y))
    if y:
        single.enqueue(x)  # while this task holds the lock
    return x


@job(name="memory.strict", queue="maths", unique=Unique(by=["x"], until="expired", on_clash="raise"))
def strict(x: int) -> int:
    return x


@job(name="memory.latest", queue="maths", unique=Unique(by=["x"], on_clash="replace"))
def latest(x: int, y: int = 0) -> int:
    return x


@pytest.fixture(autouse=True, scope="module")
def forget_jobs() -> Iterator[None]:
    yield
    for name in ("add", "plus", "total", "bad", "flaky", "stopped", "single", "strict", "latest"):
        forget(f"memory.{name}")


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


def test_a_chain_passes_results_on() -> None:
    with inline():
        flow = chain(add.bind(1, 2), plus.bind(4), Total("end")).enqueue()
    assert flow.result() == 7
    assert seen == [("end", (7,), ("succeeded",))]
    progress = flow.progress()
    assert (progress.total, progress.succeeded, progress.pending) == (3, 3, 0)
    assert [task.result() for task in flow.tasks] == [3]


def test_groups_chains_and_empty_groups_nest() -> None:
    with inline():
        nested = chain(add.bind(1), group(add.bind(2), chain(add.bind(3), plus.bind(10))), Total("sum")).enqueue()
        empty = chain(group(), Total("none")).enqueue()
        plain = group(add.bind(1), add.bind(2)).enqueue()
        passed = chain(group(add.bind(1), add.bind(2)), group(Total("a"), Total("b"))).enqueue()
    assert (nested.result(), empty.result(), plain.result(), passed.result()) == (15, 0, [1, 2], [3, 3])
    assert ("sum", (2, 13), ("succeeded", "succeeded")) in seen


def test_callbacks_come_by_how_the_steps_ended() -> None:
    steps: Any = {"on_complete": Total("complete"), "on_success": Total("success"), "on_dead": Total("dead")}
    with inline(propagate=False):
        group(add.bind(1), add.bind(2), **steps).enqueue()
        assert [label for label, _, _ in seen] == ["complete", "success"]
        seen.clear()
        flow = group(add.bind(1), bad.bind(), add.bind(3), **steps).enqueue()
    assert seen == [
        ("dead", (1, None, None), ("succeeded", "dead", "pending")),
        ("complete", (1, None, 3), ("succeeded", "dead", "succeeded")),
    ]
    with pytest.raises(TaskFailed, match=r"\(memory\.bad\) is dead: Fail: no use; requeued it takes the flow on"):
        flow.result()


def test_what_a_step_raises_goes_on_to_who_sent_the_flow() -> None:
    with inline(), pytest.raises(Fail, match="no use"):
        group(bad.bind(), on_dead=Total("dead")).enqueue()
    assert [label for label, _, _ in seen] == ["dead"]


def test_a_chain_may_have_thousands_of_steps() -> None:
    async def send() -> Any:
        return await (await chain(*[plus.bind(1) for _ in range(1200)]).aenqueue()).result()

    with inline():
        assert chain(Total(), *[plus.bind(1) for _ in range(1200)]).enqueue().result() == 1200
        assert asyncio.run(send()) == 1200


def test_steps_behind_one_that_did_not_succeed_do_not_begin() -> None:
    with inline(propagate=False):
        dead = chain(bad.bind(), Total("after")).enqueue()
        cancelled = chain(stopped.bind(), Total("after")).enqueue()
        waiting = chain(flaky.bind(), Total("after")).enqueue()
    assert seen == []
    assert (dead.progress().dead, cancelled.progress().cancelled, waiting.progress().pending) == (2, 2, 2)
    with pytest.raises(TaskCancelled):
        cancelled.result()
    with pytest.raises(TaskTimeout, match="no worker runs it in this test"):
        waiting.result()
    assert (waiting.cancel(), waiting.progress().cancelled, waiting.cancel()) == (True, 2, False)


def test_flows_of_coroutines_are_the_same() -> None:
    async def send() -> Any:
        flow = await chain(add.bind(1), group(plus.bind(1), plus.bind(2)), Total("async")).aenqueue()
        return await flow.result(), (await flow.progress()).succeeded

    with inline():
        assert asyncio.run(send()) == (5, 4)


def test_enqueued_records_the_steps_of_a_flow() -> None:
    with Enqueued().recording() as enqueued:
        flow = chain(
            add.using(queue="fast").bind(1), group(add.bind(2), add.bind(3), on_dead=Total("dead")), Total("end")
        ).enqueue()
        chain(group(), Total("alone")).enqueue()
    assert [(task.job, task.starts) for task in enqueued] == [
        ("memory.add", ""), ("memory.add", "after"), ("memory.add", "after"), ("memory.total", "after"),
        ("memory.total", "on_dead"), ("memory.total", ""),
    ]  # fmt: skip
    assert enqueued.one(add, x=1).queue == "fast"
    assert enqueued.one(Total, label="end").starts == "after"
    assert flow.progress().pending == 4
    with pytest.raises(TaskTimeout, match="no worker"):
        flow.result()


def test_enqueued_records_a_callback_that_begins_by_a_cancellation_once() -> None:
    with Enqueued().recording() as enqueued:
        flow = group(add.bind(1), add.bind(2), on_complete=Total("all")).enqueue()
        assert flow.cancel()
        assert enqueued.one(Total, label="all").starts == "on_complete"
        assert len(enqueued) == 3

        flow = group(add.bind(1), add.bind(2), on_complete=Total("each")).enqueue()
        enqueued.clear()
        assert [step.cancel() for step in flow.tasks] == [True, True]
        enqueued.none()


def test_enqueued_records_a_flow_of_a_coroutine() -> None:
    with Enqueued().recording() as enqueued:
        asyncio.run(chain(add.bind(1), Total("end")).aenqueue())  # type: ignore[arg-type]
    assert [(task.job, task.starts) for task in enqueued] == [("memory.add", ""), ("memory.total", "after")]


def test_a_unique_job_is_recorded_once() -> None:
    with Enqueued().recording() as enqueued:
        first, second, other = single.enqueue(1), single.enqueue(1, 5), single.enqueue(2)
    assert (second.id, first.is_new, second.is_new, other.is_new) == (first.id, True, False, True)
    assert [task.params["x"] for task in enqueued] == [1, 2]


def test_the_latest_of_a_unique_job_takes_its_place() -> None:
    with Enqueued().recording() as enqueued:
        first = latest.using(in_=60).enqueue(1, 1)
        second = latest.using(priority=2).enqueue(1, 2)
    assert (second.id, second.is_new) == (first.id, False)
    assert (enqueued.one(latest).params["y"], enqueued.one(latest).priority, enqueued.one(latest).in_) == (2, 2, None)


def test_a_recorded_task_that_expired_is_not_taken_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 1e12
    monkeypatch.setattr("jobrunner.testing.memory.unix_ms", lambda: now_ms)
    with Enqueued().recording() as enqueued:
        first = latest.using(expires_in=5).enqueue(1, 1)
        now_ms += 4000
        assert latest.using(expires_in=5).enqueue(1, 2).id == first.id
        now_ms += 5000
        assert latest.enqueue(1, 3).is_new
    assert [task.params["y"] for task in enqueued] == [2, 3]


def test_a_unique_job_runs_again_when_it_has_ended() -> None:
    with inline():
        assert [single.enqueue(1).is_new for _ in range(2)] == [True, True]
        single.enqueue(3, 1)
        assert strict.enqueue(1).result() == 1
        with pytest.raises(DuplicateTask, match="a task like this one"):
            strict.enqueue(1)
    assert seen == [(1, 0), (1, 0), (3, 1)]


def test_settings_of_a_queue_are_checked_and_kept() -> None:
    from jobrunner.client.current import current_client

    with Enqueued().recording() as enqueued:
        queue = current_client().queue("maths")
        queue.configure(max_size=2, rate=RateLimit(5, per=60))
        assert (queue.settings().max_size, queue.settings().rate) == (2, RateLimit(5, per=60))
        with pytest.raises(InvalidOption, match="max_size"):
            queue.configure(max_size=-1)
        add.enqueue(1)
        add.using(in_=5).enqueue(2)
        with pytest.raises(QueueFull, match=r"queue 'maths' has no room for 1 more: it may hold 2 \(its max_size\)"):
            add.enqueue(3)
        queue.configure(max_size=None)
        add.enqueue(3)
        with pytest.raises(UsageError, match="has no server"):
            queue.push(1)
    assert [task.params["x"] for task in enqueued] == [1, 2, 3]


def test_a_paused_queue_keeps_its_tasks_waiting() -> None:
    from jobrunner.client.current import current_client

    with inline():
        current_client().queue("maths").pause()
        waiting = add.enqueue(1)
        assert (waiting.state, Total("runs").enqueue().state) == ("waiting", "succeeded")
        current_client().queue("maths").resume()
        assert add.enqueue(2).result() == 2


def test_settings_of_a_queue_are_there_in_asyncio_and_all_else_is_refused() -> None:
    async def pause() -> tuple[int, str, str]:
        async with async_client() as client:
            queue = client.queue("maths")
            await queue.configure(max_size=7)
            await queue.pause()
            assert await queue.is_paused()
            held = (await (await add.aenqueue(1)).record()).state
            await queue.resume()
            ran = (await (await add.aenqueue(2)).record()).state
            for refused in (queue.push(1), queue.counts(), client.workers()):
                with pytest.raises(UsageError, match=r"inline\(\) has no server for"):
                    await refused
            return (await queue.settings()).max_size or 0, held, ran

    with inline():
        assert asyncio.run(pause()) == (7, "waiting", "succeeded")


def test_a_rate_that_is_used_up_keeps_tasks_waiting_until_tokens_flow_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from jobrunner.client.current import current_client

    now_ms = 1_000_000.0
    monkeypatch.setattr("jobrunner.testing.memory_queue.unix_ms", lambda: now_ms)
    with inline():
        current_client().queue("maths").configure(rate=RateLimit(2, per=3600))
        states = [add.enqueue(n).state for n in range(4)]
        now_ms += 1_800_000
        states += [add.enqueue(n).state for n in range(2)]
        now_ms += 7_200_000
        states += [add.enqueue(n).state for n in range(3)]
    assert states == [*("succeeded", "succeeded", "waiting", "waiting"), *("succeeded", "waiting"),
                      *("succeeded", "succeeded", "waiting")]  # fmt: skip


def test_limits_of_a_partition_hold_its_tasks_alone() -> None:
    from jobrunner.client.current import current_client

    @job(queue="tenants", partition_by="tenant", name="per_tenant")
    def run(tenant: str, again: int = 0) -> list[str]:
        return [run.enqueue(other, 0).state for other in ("a", "b")] if again else []

    with inline():
        queue = current_client().queue("tenants")
        queue.configure(rate_per_partition=RateLimit(2, per=3600))
        assert [run.enqueue(one).state for one in "aaab"] == ["succeeded", "succeeded", "waiting", "succeeded"]
        queue.configure(rate_per_partition=None, max_inflight_per_partition=1)
        assert run.enqueue("a", 1).result() == ["waiting", "succeeded"], "the first runs while its own tasks come"
        queue.configure(max_inflight_per_partition=None, max_inflight=1)
        assert run.enqueue("a", 1).result() == ["waiting", "waiting"]
        assert run.enqueue("a").state == "succeeded"
    forget("per_tenant")


def test_a_step_that_is_cancelled_takes_its_flow_on() -> None:
    with inline(propagate=False):
        flow = group(flaky.bind(), add.bind(1), on_complete=Total("complete")).enqueue()
        assert (seen, flow.tasks[0].state) == ([], "scheduled")
        assert [flow.tasks[0].cancel() for _ in range(2)] == [True, False]
        assert seen == [("complete", (None, 1), ("cancelled", "succeeded"))]
        with pytest.raises(TaskCancelled):
            flow.result()


def test_a_step_that_is_cancelled_takes_its_flow_on_in_asyncio() -> None:
    async def cancel() -> bool:
        flow = await group(flaky.bind(), on_complete=Total("complete")).aenqueue()
        return await flow.tasks[0].cancel()

    with inline(propagate=False):
        assert asyncio.run(cancel())
    assert seen == [("complete", (None,), ("cancelled",))]


def test_the_progress_of_a_flow_by_its_id() -> None:
    """What an endpoint reads that did not send the flow."""
    with inline(propagate=False):
        flow = group(add.bind(1), bad.bind()).enqueue()
        assert current_client().flow_progress(flow.id) == flow.progress()
        assert (flow.progress().total, flow.progress().dead) == (2, 1)
        assert asyncio.run(_progress(flow.id)) == flow.progress()
        with pytest.raises(TaskGone):
            current_client().flow_progress("nope")


async def _progress(flow_id: str) -> object:
    async with async_client() as client:
        return await client.flow_progress(flow_id)
