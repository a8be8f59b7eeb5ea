"""inline(): jobs run where they are enqueued, through the worker's runner, without a server."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobrunner import (
    Backoff,
    Cancel,
    Fail,
    Job,
    RateLimit,
    Retry,
    Snooze,
    TaskState,
    Unique,
    chain,
    current_task,
    group,
    job,
    queue,
)
from jobrunner.client.client import Client
from jobrunner.client.current import current_client, use
from jobrunner.client.current import forget as forget_client
from jobrunner.errors import (
    DuplicateTask,
    InvalidName,
    InvalidOption,
    ParameterError,
    PayloadTooLarge,
    QueueFull,
    ServerRefused,
    TaskCancelled,
    TaskFailed,
    TaskGone,
    TaskTimeout,
    UsageError,
)
from jobrunner.jobs.declared_queues import forget_queue
from jobrunner.jobs.registry import forget
from jobrunner.testing import Enqueued, inline

ran: list[Any] = []


@job(name="inline-note", queue="notes", max_attempts=2)
class Note(Job):
    what: str
    on: datetime | None = None

    def before(self) -> None:
        ran.append("before")

    def run(self) -> dict[str, Any]:
        ran.append(threading.current_thread().name)
        self.progress(1, 2)
        seen = {"id": self.task.id, "attempt": self.task.attempt, "on": self.on, "cancelled": self.cancelled}
        return seen | {"runs": self.metadata.increment("runs"), "all": self.metadata.all()}

    def after(self) -> None:
        ran.append("after")


@job(name="inline-alone", queue="notes", unique=True, result_ttl=0)
class Alone(Job):
    what: str

    def run(self) -> None:
        ran.append(self.what)


@job(name="inline-throttled", unique=Unique(until="expired", on_clash="raise"))
class Throttled(Job):
    what: str

    def run(self) -> None:
        ran.append(self.what)


@job(name="inline-end", max_attempts=2)
class End(Job):
    how: str

    def run(self) -> Any:
        steps = {
            "error": ValueError("wrong"), "fail": Fail("no", retry=False), "retry": Retry(in_=60), "cancel": Cancel(),
            "snooze": Snooze(in_=60), "exit": KeyboardInterrupt(), "odd": object(),
        }  # fmt: skip
        if isinstance(steps[self.how], BaseException):
            raise steps[self.how]  # type: ignore[misc]
        return steps[self.how]

    def on_failure(self, error: BaseException) -> None:
        ran.append(("on_failure", type(error).__name__))


@job(name="inline-give", max_attempts=1)
class Give(Job):
    def run(self) -> Fail:
        return Fail("given")


@job(name="inline-slow")
async def slow(x: int) -> int:
    await asyncio.sleep(0)
    if x < 0:
        raise ValueError("below zero")
    return x + 1


@job(name="inline-early", ack="early")
def early() -> None:
    ran.append("early")


@job(name="inline-early-once", ack="early", unique=Unique(by=[], on_clash="raise"))
def early_once(n: int) -> None:
    ran.append(n)
    if n:
        early_once.enqueue(n - 1)


@job(name="inline-early-async", ack="early", unique=Unique(by=[], on_clash="raise"))
async def early_async(n: int) -> None:
    ran.append(n)
    if n:
        await early_async.aenqueue(n - 1)


@job(name="inline-parent")
def parent(x: int) -> Any:
    return slow.enqueue(x).result() * 10


@pytest.fixture(autouse=True)
def clear() -> None:
    ran.clear()


@pytest.fixture(autouse=True, scope="module")
def forget_jobs() -> Iterator[None]:
    yield
    for name in ("note", "end", "give", "slow", "early", "parent", "tenant", "async-tenant", "cancels-itself", "waits"):
        forget(f"inline-{name}")
    for name in ("early-once", "early-async", "defaults", "unkept", "in-a-group", "throttled"):
        forget(f"inline-{name}")


def test_the_job_runs_in_the_calling_thread_with_its_hooks() -> None:
    on = datetime(2026, 1, 2, tzinfo=UTC)
    with inline():
        task = Note(what="x", on=on).enqueue()
        assert ran == ["before", threading.current_thread().name, "after"]
        assert (task.state, task.attempts, task.retry_count) == (TaskState.SUCCEEDED, 1, 0)
    seen = task.result(timeout=30)
    assert seen["id"] == task.id
    assert seen["attempt"] == 1
    assert not seen["cancelled"]
    assert seen["on"] == "2026-01-02T00:00:00Z", "the parameter went through JSON and came back as a datetime"


def test_metadata_lasts_as_long_as_the_block() -> None:
    with inline():
        runs = [Note(what="x").enqueue().result() for _ in range(2)]
    with inline():
        again = Note(what="x").enqueue().result()
    assert [seen["runs"] for seen in [*runs, again]] == [1, 2, 1]
    assert runs[1]["all"] == {"runs": 2}


def test_a_wrong_parameter_is_an_error_at_enqueueing() -> None:
    with inline(), pytest.raises(ParameterError, match="what"):
        Note(what=3).enqueue()  # type: ignore[arg-type]
    assert ran == []


def test_what_a_job_raises_goes_on_to_who_enqueued() -> None:
    with inline():
        with pytest.raises(ValueError, match="wrong"):
            End(how="error").enqueue()
        with pytest.raises(Fail, match="no"):
            End(how="fail").enqueue()
        with pytest.raises(Fail, match="given"):
            Give().enqueue()
        with pytest.raises(TaskFailed, match="no JSON form"):
            End(how="odd").enqueue()
    assert ran == [("on_failure", "ValueError"), ("on_failure", "Fail"), ("on_failure", "Fail")]


def test_without_propagation_the_handle_tells() -> None:
    with inline(propagate=False):
        failed, dead = End(how="error").enqueue(), End(how="fail").enqueue()
        assert (failed.state, failed.retry_count) == (TaskState.SCHEDULED, 1)
        assert failed.record().error.startswith("ValueError: wrong\nTraceback")
        with pytest.raises(TaskTimeout, match="is scheduled, and no worker runs it"):
            failed.result()
        assert dead.state is TaskState.DEAD
        with pytest.raises(TaskFailed, match="Fail: no"):
            dead.result()


def test_steering_that_is_no_failure_raises_nothing() -> None:
    with inline():
        retried, snoozed, cancelled = (End(how=how).enqueue() for how in ("retry", "snooze", "cancel"))
    assert (retried.state, retried.retry_count) == (TaskState.SCHEDULED, 1)
    assert (snoozed.state, snoozed.attempts, snoozed.retry_count) == (TaskState.SCHEDULED, 0, 0)
    due = snoozed.record().when
    assert due is not None
    assert timedelta(seconds=50) < due - snoozed.record().enqueue_time < timedelta(seconds=70)
    with pytest.raises(TaskCancelled):
        cancelled.result()


@pytest.mark.parametrize("propagate", [True, False])
def test_an_interruption_is_never_swallowed(propagate: bool) -> None:
    with inline(propagate=propagate), pytest.raises(KeyboardInterrupt):
        End(how="exit").enqueue()


@job(name="inline-leave")
class Leave(Job):
    how: str

    def run(self) -> None:
        self.progress(1, 3, "a third")
        raise {
            "exit": SystemExit(3), "generator": GeneratorExit(), "cancelled": asyncio.CancelledError(),
            "group": BaseExceptionGroup("of tasks", [SystemExit(3), ValueError("beside")]),
        }[self.how]  # fmt: skip


@job(name="inline-leave-async", max_attempts=1)
async def leave() -> None:
    raise SystemExit("leaves")


@pytest.mark.parametrize("how", ["exit", "generator", "cancelled", "group"])
def test_an_error_that_would_end_a_program_fails_the_attempt_as_in_a_worker(how: str) -> None:
    with inline(propagate=False):
        task = Leave(how=how).enqueue(max_attempts=1)
        group(leave.bind(), on_dead=Note(what="dead")).enqueue()
        assert leave.enqueue().state is TaskState.DEAD
    assert (task.state, task.attempts, task.retry_count) == (TaskState.DEAD, 1, 1)
    assert ran.count("before") == 1, "the callback"
    with inline(), pytest.raises((SystemExit, GeneratorExit, asyncio.CancelledError, BaseExceptionGroup)):
        Leave(how=how).enqueue()


def test_the_end_of_a_test_within_a_job_is_never_swallowed() -> None:
    @job(name="inline-ends-test")
    def ends_test() -> None:
        pytest.fail("of the test")

    with inline(propagate=False), pytest.raises(pytest.fail.Exception):
        ends_test.enqueue()
    forget("inline-ends-test")


@pytest.mark.parametrize("how", ["interrupt", "test"])
def test_nor_is_one_among_the_errors_of_a_group(how: str) -> None:
    @job(name="inline-ends-group")
    def ends_group() -> None:
        ends: BaseException = KeyboardInterrupt() if how == "interrupt" else pytest.fail.Exception("of the test")
        raise BaseExceptionGroup("of tasks", [ValueError("beside"), BaseExceptionGroup("inner", [ends])])

    with inline(propagate=False), pytest.raises(BaseExceptionGroup):
        ends_group.enqueue()
    forget("inline-ends-group")


def test_the_metadata_of_a_job_refuses_what_a_server_refuses() -> None:
    """It raised the ValueError of `int`, and summed to numbers that a server does not hold."""

    @job(name="inline-counts")
    def counts() -> None:
        metadata = current_task().metadata
        metadata.set("word", {"a": 1})
        with pytest.raises(UsageError, match=r"increment\('word'\): the field has a value that is no whole number"):
            metadata.increment("word")
        metadata.set("large", 2**63 - 1)
        with pytest.raises(ServerRefused, match="overflow"):
            metadata.increment("large")
        assert metadata.get("large") == 2**63 - 1

    with inline():
        counts.enqueue().result()
    forget("inline-counts")


def test_a_running_task_that_is_cancelled_ends_as_its_job_does() -> None:
    """It was cancelled at once; on a server it is asked to stop."""

    @job(name="inline-cancels-its-task")
    def cancels_its_task() -> list[Any]:
        handle = current_client().task(current_task().id)
        cancelled, record = handle.cancel(), handle.record()
        return [cancelled, record.state, record.when == current_task().deadline]

    with inline():
        task = cancels_its_task.enqueue()
    assert task.result() == [True, "pending", True]
    assert (task.state, task.cancel()) == (TaskState.SUCCEEDED, False)
    forget("inline-cancels-its-task")


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_a_coroutine_that_a_function_returns_is_named_in_the_error() -> None:
    @job(name="inline-forgets-to-await")
    def forgets_to_await() -> Any:
        return asyncio.sleep(0)

    with inline(propagate=False):
        assert "coroutine object sleep" in forgets_to_await.enqueue().error
    forget("inline-forgets-to-await")


def test_a_record_has_progress_and_failures_as_on_a_server() -> None:
    with inline(propagate=False):
        record = Leave(how="exit").enqueue().record()
    assert json.loads(record.fields["progress"]) == {"done": 1, "total": 3, "note": "a third"}
    (failure,) = record.failures
    assert (failure.attempt, failure.what, failure.error) == (1, "failed", "SystemExit: 3")


def test_a_task_for_later_runs_now() -> None:
    with inline():
        assert Note(what="x").enqueue(in_=3600).state is TaskState.SUCCEEDED


def test_the_same_id_again_runs_nothing() -> None:
    with inline():
        Note(what="x").enqueue(id="mine")
        again = Note(what="y").enqueue(id="mine")
        assert again.state is TaskState.SUCCEEDED
        assert current_client().task("mine", queue="notes").result() == again.result()
    assert ran.count("before") == 1


def test_an_id_is_that_of_a_queue_or_pipeline_as_on_a_server() -> None:
    with inline():
        first = Note(what="x").enqueue(id="mine")
        other = Note(what="x").enqueue(id="mine", queue="letters")
        assert [first.is_new, other.is_new, ran.count("before")] == [True, True, 2]
        assert [current_client().task("mine", queue=name).record().queue for name in ("notes", "letters")] == [
            "notes", "letters",
        ]  # fmt: skip
        with pytest.raises(InvalidName, match="give its queue too"):
            current_client().task("mine")
        with pytest.raises(TaskGone):
            current_client().task("mine", queue="elsewhere")


def test_an_id_is_free_again_when_its_task_is_not_kept() -> None:
    with inline():
        tasks = [Note(what="x").enqueue(id="mine", result_ttl=0) for _ in range(2)]
    assert [task.is_new for task in tasks] == [True, True]
    assert ran.count("before") == 2


@pytest.mark.parametrize("wait", [-1, "soon"])
def test_a_wait_that_a_server_would_refuse_is_refused(wait: Any) -> None:
    with inline(), pytest.raises(InvalidOption, match="wait"):
        Note(what="x").enqueue(wait=wait)
    assert ran == []


def test_a_coroutine_job_runs_with_and_without_a_running_loop() -> None:
    async def both() -> tuple[int, int, int]:
        sent = await slow.aenqueue(1)
        assert (await sent.record()).state is TaskState.SUCCEEDED
        return slow.enqueue(2).result(), await sent.result(), await (await parent.aenqueue(4)).result()

    with inline():
        assert slow.enqueue(1).result() == 2
        assert asyncio.run(both()) == (3, 2, 50)
        with pytest.raises(ValueError, match="below zero"):
            slow.enqueue(-1)
        assert slow.enqueue_many([slow.bind(1), slow.bind(2)])[1].result() == 3


def test_a_job_that_enqueues_runs_the_other_one_within() -> None:
    with inline():
        assert parent.enqueue(1).result() == 20


def test_an_early_acknowledgement_leaves_nothing_to_read() -> None:
    with inline():
        task = early.enqueue()
        assert ran == ["early"]
        assert not task.exists()
        with pytest.raises(TaskGone):
            task.result()


@pytest.mark.parametrize("enqueue", [early_once.enqueue, early_async.enqueue])
def test_a_unique_job_that_is_acknowledged_early_holds_its_lock_until_it_runs(enqueue: Any) -> None:
    with inline():
        assert [enqueue(n).is_new for n in (2, 0)] == [True, True]
        assert ran == [2, 1, 0, 0]
        assert not enqueue(0).cancel()


def test_it_decorates_functions_and_coroutine_functions() -> None:
    @inline()
    def plain(x: int) -> int:
        return slow.enqueue(x).result()

    @inline(propagate=False)
    async def coroutine(x: int) -> TaskState:
        return (await (await slow.aenqueue(x)).record()).state

    assert plain(1) == 2
    assert asyncio.run(coroutine(-1)) is TaskState.SCHEDULED
    assert asyncio.run(coroutine(1)) is TaskState.SUCCEEDED


def _generator() -> Iterator[int]:
    yield 1


async def _async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("decorated", "what"),
    [(Counter, "class Counter"), (_generator, "generator _gen"), (_async_generator, "generator _async_gen")],
)
def test_what_it_would_leave_before_it_runs_is_refused(decorated: Any, what: str) -> None:
    """Tests of a class were not collected, and a fixture enqueued on the server of the environment."""
    with pytest.raises(UsageError, match=f"@inline\\(\\) on {what}"):
        inline()(decorated)


def test_without_parentheses_it_says_how_to_write_it() -> None:
    with pytest.raises(UsageError, match=r"`with inline:` has no parentheses; write `with inline\(\):`"), inline:
        pytest.fail("it was entered")
    with pytest.raises(UsageError, match=r"^inline\(<function .*>\): decorate with @inline\(\)"):

        @inline
        def no_test() -> None: ...


def test_other_threads_enqueue_inline_too() -> None:
    with inline():
        thread = threading.Thread(target=lambda: Note(what="x").enqueue(), name="elsewhere")
        thread.start()
        thread.join()
    assert ran == ["before", "elsewhere", "after"]


def test_what_needs_a_server_says_so() -> None:
    with inline(), pytest.raises(UsageError, match=r"inline\(\) has no server for .*; use the fixture"):
        current_client().queue("bare").push(b"x")
    with inline(), pytest.raises(UsageError, match="no server for 'queue_counts'"):
        current_client().queue("bare").counts()


def test_dead_ones_are_requeued_and_cancelled_as_ever() -> None:
    with inline(propagate=False):
        dead, done = End(how="fail").enqueue(), Note(what="x").enqueue()
        assert not done.requeue()
        assert not done.cancel()
        assert dead.requeue()
        assert dead.state is TaskState.WAITING
        assert dead.cancel()
        assert not dead.cancel()


tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


@job(name="inline-tenant")
def set_tenant() -> str:
    before = tenant.get()
    tenant.set("ada")
    return before


@job(name="inline-async-tenant")
async def set_tenant_async() -> str:
    return set_tenant()


def test_what_a_job_sets_in_its_context_reaches_neither_the_test_nor_the_next_job() -> None:
    async def story() -> None:
        for _ in range(2):
            assert await (await set_tenant_async.aenqueue()).result() == "nobody"
            assert await (await set_tenant.aenqueue()).result() == "nobody"
        assert tenant.get() == "nobody"

    with inline():
        assert [set_tenant.enqueue().result() for _ in range(2)] == ["nobody", "nobody"]
        asyncio.run(story())
    assert tenant.get() == "nobody"


@job(name="inline-cancels-itself", max_attempts=1)
async def cancel_itself() -> None:
    own = asyncio.current_task()
    assert own is not None
    own.cancel()
    await asyncio.sleep(60)


@job(name="inline-waits")
async def wait_long() -> None:
    ran.append("waits")
    await asyncio.sleep(60)


def test_a_job_that_cancels_itself_has_failed_and_one_whose_caller_is_cancelled_ends_with_it() -> None:
    async def story() -> str:
        assert "AttemptCancelled" in (await (await cancel_itself.aenqueue()).record()).error
        waiting = asyncio.create_task(wait_long.aenqueue())
        while "waits" not in ran:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        return "cancelled" if waiting.cancelled() else "went on"

    with inline(propagate=False):
        assert "AttemptCancelled" in cancel_itself.enqueue().error
        assert asyncio.run(story()) == "cancelled"


@job(name="inline-defaults", queue="inline-strict")
def fail_there() -> None:
    ran.append(current_task().max_attempts)
    raise ValueError("no")


@pytest.fixture
def strict() -> Iterator[str]:
    queue("inline-strict", max_attempts=1)
    yield "inline-strict"
    forget_queue("inline-strict")


def test_what_a_queue_declares_or_the_test_configures_holds_for_its_tasks(strict: str) -> None:
    with inline(propagate=False):
        assert fail_there.enqueue().state is TaskState.DEAD
        current_client().queue(strict).configure(max_attempts=4, backoff=Backoff(base=600, jitter=0))
        task = fail_there.enqueue()
    assert ran == [1, 4]
    when = task.record().when
    assert task.state is TaskState.SCHEDULED
    assert when is not None
    assert 590 < (when - datetime.now(UTC)).total_seconds() < 610


@pytest.fixture
def limited() -> Iterator[str]:
    queue("inline-limited", max_inflight=1, max_size=1, rate=RateLimit(1, per=3600))
    yield "inline-limited"
    forget_queue("inline-limited")


def test_limits_that_a_queue_declares_hold_up_nothing_and_those_that_the_test_sets_do(limited: str) -> None:
    with inline():
        tasks = Note.using(queue=limited).enqueue_many([Note("1"), Note("2")])
        assert [task.state for task in tasks] == [TaskState.SUCCEEDED] * 2
        current_client().queue(limited).configure(rate=RateLimit(1, per=3600))
        states = [Note(what).using(queue=limited).enqueue().state for what in ("3", "4")]
    assert states == [TaskState.SUCCEEDED, TaskState.WAITING]


@job(name="inline-unkept", result_ttl=0)
def unkept(how: str) -> int:
    if how == "cancel":
        raise Cancel("enough")
    return 1


def test_a_task_that_is_deleted_as_it_ends_is_gone_and_a_flow_of_such_steps_has_its_result() -> None:
    with inline():
        for how in ("return", "cancel"):
            with pytest.raises(TaskGone):
                unkept.enqueue(how).result()
        assert chain(unkept.bind("return"), unkept.bind("return")).enqueue().result() == 1


def test_a_cancelled_task_has_no_error_as_on_a_server() -> None:
    with inline():
        assert unkept.using(result_ttl=60).enqueue("cancel").record().error == ""


@job(name="inline-in-a-group")
async def snooze_in_a_group() -> None:
    async def later() -> None:
        raise Snooze(in_=60)

    async with asyncio.TaskGroup() as group:
        group.create_task(later())


def test_steering_from_a_task_of_a_task_group_raises_nothing_either() -> None:
    with inline():
        assert snooze_in_a_group.enqueue().state is TaskState.SCHEDULED


@pytest.fixture
def configured() -> Iterator[None]:
    use(Client("unix:///no-server", payload_limit=3 << 20, result_limit=64))
    yield
    forget_client()


def test_the_limits_that_the_application_configured_hold(configured: None) -> None:
    with inline(propagate=False):
        sent = Note(what="x" * (2 << 20)).enqueue()
        assert (sent.state, "64" in sent.error) == (TaskState.DEAD, True)
        with pytest.raises(PayloadTooLarge):
            Note(what="x" * (4 << 20)).enqueue()
    with Enqueued().recording() as enqueued:
        Note(what="x" * (2 << 20)).enqueue()
        assert len(enqueued) == 1


def test_the_client_on_a_private_server_has_them_too(configured: None, jobrunner_client: Client) -> None:
    assert (jobrunner_client.settings.payload_limit, jobrunner_client.settings.result_limit) == (3 << 20, 64)


async def add_all(notes: list[Any], way: str) -> Any:
    return await Note.aenqueue_many(notes) if way == "asyncio" else Note.enqueue_many(notes)


@pytest.mark.parametrize("way", ["threads", "asyncio"])
def test_all_tasks_of_an_enqueue_many_are_checked_before_the_first_runs(way: str) -> None:
    large = Note("x" * 1_100_000)
    with inline():
        current_client().queue("notes").configure(max_size=2)
        for notes, error in (([Note("1"), large], PayloadTooLarge), ([Note("1"), Note("2"), Note("3")], QueueFull)):
            with pytest.raises(error):
                asyncio.run(add_all(notes, way))
        with pytest.raises(QueueFull, match="no room for 3 more"):
            group(Note("1"), Note("2"), Note("3")).enqueue()
        assert ran == []

        assert len(asyncio.run(add_all([Note("1"), Note("2")], way))) == 2
    assert ran.count("before") == 2


def test_a_later_task_of_the_same_id_does_not_hold_the_lock_of_the_earlier_one() -> None:
    with inline():
        Alone("a").using(id="mine").enqueue()
        assert Note("b").using(id="mine", in_=60).enqueue().is_new
        assert Alone("a").enqueue().is_new
    assert [what for what in ran if what == "a"] == ["a", "a"]


def test_a_unique_task_that_is_there_is_raised_behind_the_others_of_its_call() -> None:
    with inline(), pytest.raises(DuplicateTask):
        Throttled.enqueue_many([Throttled("a"), Throttled("a"), Throttled("b")])
    assert ran == ["a", "b"]
