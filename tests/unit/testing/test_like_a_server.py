"""What `enqueued` and `inline()` answer is what a server answers: the same calls with each of them."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobrunner import AsyncClient, Client, Fail, Retry, Snooze, Unique, chain, current_task, group, job, queue
from jobrunner.broker.keys import Keys
from jobrunner.client.current import current_client, pinned
from jobrunner.client.loop_clients import current_async_client
from jobrunner.errors import DuplicateTask, InvalidOption, JobrunnerError, TaskFailed, TaskTimeout, UsageError
from jobrunner.jobs.declared_queues import forget_queue
from jobrunner.jobs.registry import forget
from jobrunner.outcome import Cancel
from jobrunner.testing import Enqueued, JobrunnerWorker, Travel, inline
from tests.support.examples import examples
from tests.support.server import Server

PAST, FUTURE = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


@job(name="like.plain", queue="like")
def plain(x: int = 0) -> None: ...


@job(name="like.single", queue="like", unique=True)
def single(x: int = 0) -> None: ...


@job(name="like.only", queue="like", unique=Unique(on_clash="raise"))
def only(x: int = 0) -> None: ...


@job(name="like.latest", queue="other", unique=Unique(by=["x"], on_clash="replace"))
def latest(x: int = 0, y: int = 0) -> None: ...


@job(name="like.moved", queue="other", unique=Unique(by=["x"], until="started", on_clash="reschedule"))
def moved(x: int = 0, y: int = 0) -> None: ...


JOBS = [plain, single, only, latest, moved]


@pytest.fixture(autouse=True, scope="module")
def forget_jobs() -> Iterator[None]:
    yield
    for one in JOBS:
        forget(one.definition.name)


@pytest.fixture(params=["memory", "server"])
def where(request: pytest.FixtureRequest, server: Server, keys: Keys) -> Iterator[str]:
    with ExitStack() as ends:
        if request.param == "memory":
            ends.enter_context(Enqueued().recording())
        else:
            ends.enter_context(pinned(ends.enter_context(Client(server.url, keys.prefix))))
        yield request.param


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize(("queue", "named"), [("like", "queue 'like'"), ("line/b", "pipeline 'line'")])
def test_the_error_for_a_task_like_another_names_the_pipeline_as_its_task_may_be_at_another_station(
    queue: str, named: str
) -> None:
    first = only.using(queue=f"{queue[:5]}a" if "/" in queue else queue).enqueue(1)

    with pytest.raises(DuplicateTask, match=f"^a task like this one, {first.id}, is in {named} already$") as refused:
        only.using(queue=queue).enqueue(1)

    assert refused.value.task_id == first.id


@pytest.mark.usefixtures("where")
def test_a_record_says_when_a_task_is_due_and_when_it_was_cancelled() -> None:
    past, future, soon = plain.using(at=PAST).enqueue(), plain.using(at=FUTURE).enqueue(), plain.using(in_=60).enqueue()
    assert [(one.state, one.record().when) for one in (past, future)] == [("waiting", None), ("scheduled", FUTURE)]
    due = soon.record().when
    assert due is not None
    assert abs(due - datetime.now(UTC) - timedelta(seconds=60)) < timedelta(seconds=30)
    assert soon.cancel()
    ended = soon.record().when
    assert ended is not None
    assert abs(ended - datetime.now(UTC)) < timedelta(seconds=30)


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("unique", [single, only])
def test_a_task_of_the_same_id_goes_before_a_unique_task_that_is_there(unique: Any) -> None:
    plain.using(id="mine").enqueue()
    unique.enqueue()
    again = unique.using(id="mine").enqueue()
    assert (again.id, again.is_new) == ("mine", False)


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("unique", [latest, moved])
def test_a_task_whose_id_exists_changes_no_unique_task_that_is_there(unique: Any) -> None:
    plain.using(id="mine", queue="other").enqueue()
    holder = unique.using(in_=60).enqueue()
    before = holder.record()
    again = unique.using(id="mine", in_=90).enqueue()
    assert (again.id, again.is_new) == ("mine", False)
    assert holder.record() == before


@pytest.mark.usefixtures("where")
def test_the_fields_of_a_handle_are_those_of_its_last_read() -> None:
    """A test that polls `state` without `record()` would pass, and the program wait for ever."""
    task = plain.enqueue()
    other = current_client().task(task.id)
    before = task.state
    other.cancel()
    assert (before, task.state, other.state, task.record().state) == ("waiting", "waiting", "cancelled", "cancelled")


@pytest.mark.usefixtures("where")
def test_a_handle_in_asyncio_is_read_anew_after_it_changed_its_task() -> None:
    async def seen() -> None:
        task = await plain.aenqueue()
        assert (await task.record()).state == task.state == "waiting"
        await task.cancel()
        with pytest.raises(UsageError, match="is not read yet"):
            assert task.state

    asyncio.run(seen())


@pytest.mark.usefixtures("where")
@pytest.mark.parametrize("length", [0, "soon"])
def test_a_pause_of_no_length_is_refused(length: Any) -> None:
    with pytest.raises(InvalidOption, match="for_"):
        current_client().queue("like").pause(length)


def test_a_pause_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 1e12
    monkeypatch.setattr("jobrunner.testing.memory_queue.unix_ms", lambda: now_ms)
    with inline():
        current_client().queue("like").pause(60)
        held = plain.enqueue().state
        now_ms += 60_000
        assert (held, plain.enqueue().state) == ("waiting", "succeeded")


def test_a_record_has_no_result_of_none_and_failures_are_a_line_without_control_characters() -> None:
    @job(name="like.odd", queue="like")
    def odd() -> None:
        raise ValueError("\x1b[31m\tred")

    with inline(propagate=False):
        assert plain.enqueue().record().result is None
        assert [failure.error for failure in odd.enqueue().record().failures] == ["ValueError:  [31m red"]
    forget("like.odd")


def test_a_flow_waits_for_its_last_step_while_a_step_before_it_may_succeed() -> None:
    """As on a server: whether the group ends well is known when all of it have ended."""

    @job(name="like.flaky", queue="like")
    def flaky() -> None:
        raise ValueError("later")

    @job(name="like.stopped", queue="like")
    def stopped() -> None:
        raise Cancel

    with inline(propagate=False):
        flow = chain(group(stopped.bind(), flaky.bind()), plain.bind()).enqueue()
        with pytest.raises(TaskTimeout, match=r"like\.plain"):
            flow.result()
    forget("like.flaky")
    forget("like.stopped")


@pytest.fixture
def ended(server: Server, keys: Keys) -> Callable[[Callable[[], Any]], list[Any]]:
    """ended(sent): what `sent` makes of a task, with inline() and with a worker, whose clock goes on by a minute."""

    def with_each(sent: Callable[[], Any]) -> list[Any]:
        with inline(propagate=False):
            inlined = sent()
        with Client(server.url, keys.prefix, now_ms=(travel := Travel())) as client, pinned(client):
            worker, worked = JobrunnerWorker(client, travel), sent()
            travel.forward(60)
            worker.run(queues=["like"])
            return [_end_of(inlined), _end_of(worked)]

    return with_each


def _end_of(task: Any) -> Any:
    record = task.record()
    return record.state, record.attempts, record.retry_count, record.error.partition("\n")[0], len(record.failures)


@pytest.mark.parametrize("how", ["error", "retry", "snooze", "fail"])
def test_a_task_that_is_cancelled_while_it_runs_is_not_tried_again(how: str, ended: Callable[..., list[Any]]) -> None:
    """It was scheduled again, and no callback of its flow came."""
    told: list[str] = []

    @job(name="like.stopped", queue="like")
    def stopped() -> None:
        current_client().task(current_task().id).cancel()
        ends = {"error": ValueError(), "retry": Retry(in_=300), "snooze": Snooze(in_=300), "fail": Fail(retry=False)}
        raise ends[how]

    @job(name="like.told", queue="like")
    def tell() -> None:
        told.append("complete")

    inlined, worked = ended(stopped.enqueue)
    assert inlined == worked
    assert inlined[0] == ("dead" if how == "fail" else "cancelled")
    with inline(propagate=False):
        group(stopped.bind(), on_complete=tell.bind()).enqueue()
    assert told == ["complete"]
    forget("like.stopped")
    forget("like.told")


@pytest.mark.parametrize(
    ("options", "queue_option", "state"),
    [
        ({"in_": 30, "expires_in": 20}, None, "dead"),
        ({"in_": 30, "expires_in": 30}, None, "dead"),
        ({"in_": 30}, 20, "dead"),
        ({"in_": 30, "expires_in": 3600}, 20, "succeeded"),
        ({"in_": 30, "expires_in": 3600}, None, "succeeded"),
    ],
)
def test_a_task_that_expires_before_it_is_due_is_dead(
    options: dict[str, Any], queue_option: float | None, state: str, ended: Callable[..., list[Any]]
) -> None:
    """It ran inline, and never on a server."""

    def sent() -> Any:
        current_client().queue("like").configure(expires_in=queue_option)
        return plain.using(**options).enqueue()

    inlined, worked = ended(sent)
    assert inlined == worked
    assert inlined[0] == state


@pytest.mark.parametrize("run", [plain.using(in_=30, expires_in=20).enqueue, lambda: asyncio.run(_sent_late())])
def test_a_task_that_expires_before_it_is_due_raises_its_death(run: Callable[[], Any]) -> None:
    with inline(), pytest.raises(TaskFailed, match="expired before it started"):
        run()


async def _sent_late() -> Any:
    return await plain.using(in_=30, expires_in=20).aenqueue()


def test_what_a_queue_declares_decides_whether_a_task_expires() -> None:
    queue("like-late", expires_in=20)
    with inline(propagate=False):
        assert plain.using(queue="like-late", in_=30).enqueue().state == "dead"
    forget_queue("like-late")


Call = tuple[str, Any]
options = st.fixed_dictionaries(
    {},
    optional={
        "in_": st.sampled_from([-1, 0, 3600]), "priority": st.integers(0, 2), "id": st.sampled_from("ab"),
        "queue": st.sampled_from(["like", "third"]), "headers": st.just({"a": "b"}), "expires_in": st.just(600),
    },
)  # fmt: skip
sent = st.tuples(st.sampled_from(JOBS), st.integers(0, 1), options)
many = st.lists(sent, max_size=3).filter(lambda some: len({one is plain for one, _, _ in some}) < 2)
"""Unique tasks and others not together: a server is sent them in calls of their own, and may refuse one kind alone."""
calls = st.one_of(
    st.tuples(st.just("enqueue"), sent),
    st.tuples(st.just("enqueue_many"), many),
    st.tuples(st.just("max_size"), st.sampled_from([None, 2])),
    st.tuples(st.sampled_from(["cancel", "run_now", "requeue", "exists", "result"]), st.integers(0, 9)),
)


class Conversation:
    """Makes calls through the current client, and keeps what a caller sees of each. Ids that jobrunner makes are
    numbered, as no two are alike."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._ids: dict[str, int] = {}

    async def seen(self, call: Call) -> tuple[Any, list[Any]]:
        """What came of the call, and all tasks after it."""
        try:
            found = await self._made(*call)
        except JobrunnerError as error:
            found = type(error).__name__
        return found, [await self._shown(handle) for handle in self._handles]

    async def _made(self, what: str, given: Any) -> Any:
        if what == "enqueue":
            one, x, chosen = given
            return self._noted([await one.using(**chosen).aenqueue(x)])
        if what == "enqueue_many":
            bound: list[Any] = [one.using(**chosen).bind(x) for one, x, chosen in given]
            return self._noted(await plain.aenqueue_many(bound))
        if what == "max_size":
            return await current_async_client().queue("like").configure(max_size=given)
        if not self._handles:
            return None
        handle = self._handles[given % len(self._handles)]
        return await (handle.result(timeout=0) if what == "result" else getattr(handle, what)())

    def _noted(self, handles: list[Any]) -> list[Any]:
        self._handles += handles
        return [(self._number(one), one.is_new) for one in handles]

    async def _shown(self, handle: Any) -> Any:
        record = await handle.record()
        return (
            self._number(handle), record.type, record.queue, record.state, record.payload, record.priority,
            record.attempts, None if record.when is None else record.when > datetime.now(UTC),
        )  # fmt: skip

    def _number(self, handle: Any) -> Any:
        return handle.id if len(handle.id) == 1 else self._ids.setdefault(handle.id, len(self._ids))


async def conversation(made: list[Call]) -> list[Any]:
    talk = Conversation()
    return [await talk.seen(one) for one in made]


prefixes = iter(range(10**6))


@settings(max_examples=examples(40))
@given(made=st.lists(calls, max_size=12))
def test_any_calls_are_answered_as_by_a_server(server: Server, made: list[Call]) -> None:
    async def with_server() -> list[Any]:
        prefix = f"like-{next(prefixes)}"
        async with AsyncClient(server.url, prefix) as twin:
            with Client(server.url, prefix) as client, pinned(client, twin):
                return await conversation(made)

    expected = asyncio.run(with_server())
    with Enqueued().recording():
        assert asyncio.run(conversation(made)) == expected
