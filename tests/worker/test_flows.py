"""Flows as they run: one worker serves all the tests of this file, queues of several tags."""

import asyncio
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from jobrunner import AsyncClient, Backoff, Cancel, Client, Fail, FlowHandle, Job, Retry, Worker, chain, group, job
from jobrunner.broker.async_broker import AsyncBroker
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call, command
from jobrunner.broker.calls.leader import ScanReply
from jobrunner.broker.calls.server import server_time
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.current import forget, use, within
from jobrunner.coordinator.recovery import FlowRecovery
from jobrunner.errors import InvalidName, OutcomeUnknown, TaskCancelled, TaskFailed, TaskGone, TaskTimeout, UsageError
from jobrunner.jobs.flow import Chain, Group, Step
from jobrunner.jobs.running_task import NOT_KEPT
from jobrunner.task import TaskState
from tests.support.server import Server
from tests.support.waiting import wait_for

pytestmark = pytest.mark.xdist_group("flows")
AT_ONCE = Backoff(base=0.01, factor=1, jitter=0)
QUEUES = ["flows", "flows2", "works/raw", "works/clean"]
seen: dict[str, list[Any]] = {}
gates: set[str] = set()


@job(name="flows.add", queue="flows")
def add(x: int, y: int = 1) -> int:
    return x + y


@job(name="flows.double", queue="flows2")
class Double(Job):
    """Twice the result of the step before."""

    def run(self) -> int:
        return int(self.task.results[0]) * 2


@job(name="flows.total", queue="works/raw")
class Total(Job):
    """The sum of all results."""

    def run(self) -> int:
        return sum(self.task.results)


@job(name="flows.note", queue="works/clean")
class Note(Job):
    """Notes what it was given."""

    name: str

    def run(self) -> list[Any]:
        given = (self.task.results, self.task.outcomes)
        seen.setdefault(self.name, []).append(given)
        return list(self.task.results)


@job(name="flows.fail", queue="flows", max_attempts=1)
class Broken(Job):
    """Dies, unless its gate is open."""

    gate: str = ""

    def run(self) -> str:
        if self.gate in gates:
            return "repaired"
        raise Fail("broken")


@job(name="flows.quit", queue="flows")
def stop_itself() -> None:
    raise Cancel("not wanted")


@job(name="flows.retry", queue="flows", max_attempts=3, backoff=AT_ONCE)
class Retried(Job):
    """Succeeds at the third attempt."""

    def run(self) -> list[Any]:
        if self.task.attempt < 3:
            raise Retry(in_=0.01)
        return [self.task.attempt, *self.task.results]


@job(name="flows.nothing", queue="flows")
def nothing() -> None: ...


@job(name="flows.async", queue="flows2")
class Later(Job):
    """A coroutine."""

    async def run(self) -> list[Any]:
        await asyncio.sleep(0)
        return list(self.task.results)


@job(name="flows.trace", queue="flows")
class Trace(Job):
    """Brings its number and what it was given."""

    n: int

    def run(self) -> list[Any]:
        return [self.n, *self.task.results]


@job(name="flows.unserved", queue="unserved")
def unserved() -> int:
    return 1


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    """One client and one worker for the file; no test here empties the server."""
    with Client(server.url, "flows") as made:
        use(made)
        worker = Worker(queues=QUEUES, client=made, sweep=600)  # the worker passes outcomes on itself, at once
        worker.start()
        yield made
        worker.stop(grace=0)
        forget()
        with server.connect() as raw:
            raw.flushall()


@pytest.fixture(autouse=True)
def _current(client: Client) -> None:
    """Every test has the worker."""


def new_name() -> str:
    return uuid.uuid4().hex


def ended(flow: FlowHandle) -> Callable[[], bool]:
    return lambda: flow.progress().pending == 0


def test_a_step_of_a_chain_finds_the_result_of_the_one_before() -> None:
    flow = chain(add.bind(1, 2), Double(), Double()).enqueue()
    assert flow.result(timeout=20) == 12
    assert len(flow.tasks) == 1
    assert flow.tasks[0].result(timeout=30) == 3


def test_a_chain_across_queues_and_pipelines() -> None:
    flow = chain(
        add.bind(1), Double(), Total(), Note(name=new_name()), add.using(queue="works/clean").bind(5), Double()
    ).enqueue()
    assert flow.result(timeout=20) == 12


def test_results_of_a_group_come_in_the_order_of_its_members() -> None:
    assert group(*(add.bind(n) for n in range(20))).enqueue().result(timeout=20) == list(range(1, 21))


def test_a_step_behind_a_group_finds_all_results() -> None:
    assert chain(group(add.bind(1), add.bind(2), Retried()), Note(name=new_name())).enqueue().result(timeout=20) == [
        2, 3, [3],
    ]  # fmt: skip


def test_a_group_behind_a_step_and_a_group_behind_a_group() -> None:
    flow = chain(add.bind(4), group(Double(), Double()), group(Total(), Total(), Double()), Total()).enqueue()
    assert flow.result(timeout=20) == 20 + 20 + 20


def test_a_job_that_returns_nothing_brings_none() -> None:
    name = new_name()
    assert chain(nothing.bind(), Note(name=name)).enqueue().result(timeout=20) == [None]
    assert seen[name] == [((None,), ("succeeded",))]


def test_callbacks_come_once_and_only_those_that_are_due() -> None:
    good, all_, dead = new_name(), new_name(), new_name()
    flow = group(
        add.bind(1), add.bind(2), on_success=Note(name=good), on_complete=Note(name=all_), on_dead=Note(name=dead)
    ).enqueue()
    assert flow.result(timeout=20) == [2, 3]
    wait_for(lambda: good in seen and all_ in seen)
    assert seen[good] == [((2, 3), ("succeeded", "succeeded"))]
    assert seen[all_] == [((2, 3), ("succeeded", "succeeded"))]
    assert dead not in seen


def test_a_dead_member_fires_on_dead_and_on_complete_and_not_on_success() -> None:
    good, all_, dead = new_name(), new_name(), new_name()
    flow = group(
        add.bind(1), Broken(), on_success=Note(name=good), on_complete=Note(name=all_), on_dead=Note(name=dead)
    ).enqueue()
    wait_for(lambda: dead in seen and all_ in seen)
    assert seen[all_] == [((2, None), ("succeeded", "dead"))]
    assert len(seen[dead]) == 1
    assert seen[dead][0][1][1] == "dead"
    assert (flow.progress().succeeded, flow.progress().dead) == (1, 1)
    with pytest.raises(TaskFailed, match=r"flows\.fail"):
        flow.result(timeout=20)
    assert good not in seen


def test_a_member_that_cancels_itself_completes_the_group() -> None:
    good, all_ = new_name(), new_name()
    flow = group(add.bind(1), stop_itself.bind(), on_success=Note(name=good), on_complete=Note(name=all_)).enqueue()
    wait_for(lambda: all_ in seen)
    assert seen[all_] == [((2, None), ("succeeded", "cancelled"))]
    with pytest.raises(TaskCancelled):
        flow.result(timeout=20)
    assert good not in seen


def test_steps_behind_a_dead_one_do_not_begin_and_the_flow_says_so() -> None:
    name = new_name()
    flow = chain(add.bind(1), Broken(), Note(name=name), Double()).enqueue()
    wait_for(ended(flow))
    progress = flow.progress()
    assert (progress.total, progress.succeeded, progress.dead, progress.cancelled) == (4, 1, 3, 0)
    with pytest.raises(TaskFailed, match=r"\(flows\.fail\) is dead: Fail: .*; requeued it takes the flow on"):
        flow.result(timeout=30)
    assert name not in seen


def test_a_program_that_did_not_send_a_flow_reads_its_progress_by_the_id(client: Client) -> None:
    """As a web application whose next request is served by another process."""
    flow = chain(group(add.bind(1), add.bind(2)), Broken(), Double()).enqueue()
    wait_for(ended(flow))

    async def ask() -> object:
        async with AsyncClient(client.settings.url, client.settings.prefix) as another:
            return await another.flow_progress(flow.id)

    with Client(client.settings.url, client.settings.prefix) as another:
        assert another.flow_progress(flow.id) == flow.progress()
        with pytest.raises(TaskGone, match="no flow "):
            another.flow_progress(flow.tasks[0].id)
        with pytest.raises(InvalidName, match="'report-7' is not the id of a flow"):
            another.flow_progress("report-7")
    assert asyncio.run(ask()) == flow.progress()


def test_a_dead_step_that_is_put_back_takes_the_chain_on() -> None:
    gate, name = new_name(), new_name()
    flow = chain(Broken(gate=gate), Note(name=name), group(Note(name=name), Note(name=name))).enqueue()
    wait_for(ended(flow))
    gates.add(gate)
    assert flow.tasks[0].requeue()
    wait_for(lambda: flow.progress().succeeded == 4)
    assert flow.result(timeout=30) == [[["repaired"]], [["repaired"]]]


def test_a_step_that_is_requeued_and_succeeds_while_its_end_is_read_brings_its_result() -> None:
    gate = new_name()
    flow = group(Broken(gate=gate), add.bind(1)).enqueue()
    wait_for(ended(flow))
    broker = flow._broker

    def run_many(calls: list[Any]) -> list[Any]:
        found = broker.run_many(calls)
        if gate not in gates:  # behind the first read, which finds the step dead
            gates.add(gate)
            assert flow.tasks[0].requeue()
            wait_for(lambda: flow.progress().succeeded == 2)
        return found

    flow._broker = SimpleNamespace(run_many=run_many)  # type: ignore[assignment]
    assert flow.result(timeout=20) == ["repaired", 2]


def test_callbacks_that_fail_are_retried_and_fire_no_second_one(client: Client) -> None:
    before, failed = (client.queue("flows").totals().get(name, 0) for name in ("enqueued", "failed"))
    group(add.bind(1), add.bind(2), on_success=Retried()).enqueue().result(timeout=20)
    flows = client.queue("flows")
    wait_for(lambda: flows.totals()["enqueued"] == before + 3 and flows.totals().get("failed", 0) >= failed + 2)
    wait_for(lambda: not {"waiting", "scheduled", "pending"} & {state for state, n in flows.counts().items() if n})
    assert flows.totals()["enqueued"] == before + 3


def test_groups_and_chains_in_each_other() -> None:
    name = new_name()
    flow = group(
        chain(add.bind(1), Double()),
        group(add.bind(1), chain(group(add.bind(2), add.bind(3)), Total())),
        group(),
        add.bind(9),
        on_success=chain(Note(name=name), Note(name=name)),
    ).enqueue()
    assert flow.result(timeout=20) == [4, [2, 7], [], 10]
    wait_for(lambda: len(seen.get(name, [])) == 2)
    assert seen[name] == [((4, [2, 7], [], 10), ("succeeded",) * 4), (([4, [2, 7], [], 10],), ("succeeded",))]


def test_a_dead_task_deep_inside_completes_every_group_around_it() -> None:
    inner, outer = new_name(), new_name()
    group(
        group(chain(Broken(), add.bind(1)), add.bind(2), on_complete=Note(name=inner)),
        add.bind(3),
        on_complete=Note(name=outer),
    ).enqueue()
    wait_for(lambda: inner in seen and outer in seen)
    assert seen[inner] == [((None, 3), ("dead", "succeeded"))]
    assert seen[outer] == [((None, 4), ("dead", "succeeded"))]


def test_a_group_within_a_flow_is_dead_when_all_of_its_steps_have_ended() -> None:
    dead = new_name()
    flow = chain(group(Broken(), unserved.bind()), Note(name=new_name())).enqueue()
    outer = group(group(Broken(), unserved.bind()), add.bind(1), on_dead=Note(name=dead)).enqueue()
    wait_for(lambda: flow.progress().dead == 1 and outer.progress().dead == 1)
    with pytest.raises(TaskTimeout):
        flow.result(timeout=0)
    assert dead not in seen

    for sent in (flow, outer):
        sent.tasks[1].cancel()
    with pytest.raises(TaskFailed, match=r"flows\.fail"):
        flow.result(timeout=20)
    wait_for(lambda: dead in seen)
    assert seen[dead][0][1][0] == "dead"


def test_an_empty_group_fires_its_callbacks_at_once() -> None:
    good, all_, dead = new_name(), new_name(), new_name()
    flow = group(on_success=Note(name=good), on_complete=Note(name=all_), on_dead=Note(name=dead)).enqueue()
    wait_for(lambda: good in seen and all_ in seen)
    assert seen[good] == [((), ("succeeded",))]
    assert dead not in seen
    assert flow.result(timeout=0) == []
    assert flow.progress().total == 0
    assert group().enqueue().result(timeout=0) == []


def test_an_empty_group_in_a_chain_lets_the_next_step_begin_without_results() -> None:
    assert chain(group(), Note(name=new_name())).enqueue().result(timeout=20) == []
    assert chain(add.bind(1), group(), Total()).enqueue().result(timeout=20) == 0
    assert chain(add.bind(1), group(group(), add.bind(2)), Note(name=new_name())).enqueue().result(timeout=20) == [
        [],
        3,
    ]


def grow(rng: random.Random, depth: int, broken: float = 0.0) -> Step:
    """A random flow of Trace jobs, and of some that die."""
    kind = rng.choice(("leaf", "leaf", "chain", "group")) if depth else "leaf"
    if kind == "chain":
        return chain(*(grow(rng, depth - 1, broken) for _ in range(rng.randint(1, 3))))
    if kind == "group":
        return group(*(grow(rng, depth - 1, broken) for _ in range(rng.randint(0, 3))))
    return Broken() if rng.random() < broken else Trace(n=rng.randrange(1000))


def expected(step: Step, given: list[Any]) -> Any:
    """The result of a flow by its description: that of the last step of a chain, the list of all of a group."""
    if isinstance(step, Group):
        return [expected(one, given) for one in step.steps]
    if isinstance(step, Chain):
        for one in step.steps:
            result = expected(one, given)
            given = result if isinstance(last_of(one), Group) else [result]
        return result
    assert isinstance(step, Trace)
    return [step.n, *given]


def last_of(step: Step) -> Step:
    """The last step of a chain, which may be one itself."""
    return last_of(step.steps[-1]) if isinstance(step, Chain) else step


@pytest.mark.parametrize("seed", range(4))
def test_flows_of_any_shape_do_what_their_description_says(seed: int) -> None:
    rng = random.Random(seed)
    shapes = [chain(grow(rng, 3), grow(rng, 3)) for _ in range(25)] + [group(grow(rng, 3), grow(rng, 3))]
    flows = [shape.enqueue() for shape in shapes]
    for shape, flow in zip(shapes, flows, strict=True):
        assert flow.result(timeout=20) == expected(shape, []), shape
        assert flow.progress().pending == 0


@pytest.mark.parametrize("seed", range(3))
def test_flows_of_any_shape_complete_whoever_dies(seed: int) -> None:
    rng = random.Random(seed)
    names = [new_name() for _ in range(25)]
    flows = [
        group(grow(rng, 3, 0.15), grow(rng, 3, 0.15), on_complete=Note(name=name), on_dead=Note(name=f"dead {name}"))
        .enqueue()
        for name in names
    ]  # fmt: skip
    wait_for(lambda: all(name in seen for name in names))
    for name, flow in zip(names, flows, strict=True):
        progress = flow.progress()
        assert progress.pending == 0
        ((_, outcomes),) = seen[name]
        assert (progress.dead > 0) == ("dead" in outcomes)
        if progress.dead:
            wait_for(lambda name=name: len(seen.get(f"dead {name}", [])) == 1)
            with pytest.raises(TaskFailed):
                flow.result(timeout=30)
        else:
            flow.result(timeout=30)


def test_a_thousand_members() -> None:
    name = new_name()
    flow = group(*(add.bind(n) for n in range(1000)), on_success=Note(name=name)).enqueue()
    assert flow.result(timeout=60) == list(range(1, 1001))
    wait_for(lambda: name in seen)
    assert seen[name] == [(tuple(range(1, 1001)), ("succeeded",) * 1000)]


def test_a_coroutine_job_is_a_step_like_any_other() -> None:
    assert chain(add.bind(1), Later(), Later()).enqueue().result(timeout=20) == [[2]]


def test_a_delayed_step_waits_for_its_time() -> None:
    flow = chain(add.bind(1), add.using(in_=0.2).bind(5)).enqueue()
    assert flow.result(timeout=20) == 6


def test_cancel_begins_no_further_step_and_completes_the_group(client: Client) -> None:
    name, step = new_name(), new_name()
    flow = group(
        chain(unserved.bind(), Note(name=step)), chain(unserved.bind(), Note(name=step)), on_complete=Note(name=name)
    ).enqueue()
    assert flow.cancel()
    progress = flow.progress()
    assert (progress.cancelled, progress.pending) == (4, 0)
    wait_for(lambda: name in seen)
    assert seen[name] == [((None, None), ("cancelled", "cancelled"))]
    with pytest.raises(TaskCancelled):
        flow.result(timeout=30)
    assert not flow.cancel()
    assert step not in seen


def test_cancel_leaves_dead_steps_as_they_are() -> None:
    name = new_name()
    flow = group(Broken(), unserved.bind(), on_complete=Note(name=name)).enqueue()
    wait_for(lambda: flow.progress().dead == 1)
    assert flow.cancel()
    assert (flow.progress().dead, flow.progress().cancelled) == (1, 1)
    record = flow.tasks[0].record()
    assert (record.state, record.error) == (TaskState.DEAD, "Fail: broken")
    wait_for(lambda: name in seen)
    assert seen[name] == [((None, None), ("dead", "cancelled"))]
    assert not flow.cancel()


def test_cancel_comes_between_a_step_that_ended_and_the_next() -> None:
    name = new_name()
    flow = chain(add.bind(1), unserved.bind(), Note(name=name)).enqueue()
    wait_for(lambda: flow.progress().succeeded == 1)
    assert flow.cancel()
    assert (flow.progress().succeeded, flow.progress().cancelled) == (1, 2)


def test_purged_members_complete_the_group(client: Client) -> None:
    name = new_name()
    group(unserved.bind(), unserved.bind(), add.bind(1), on_complete=Note(name=name)).enqueue()
    assert client.queue("unserved").purge("waiting") >= 2
    wait_for(lambda: name in seen)
    assert seen[name] == [((None, None, 2), ("cancelled", "cancelled", "succeeded"))]


def test_a_member_that_expires_in_line_is_told_of_by_the_leader(client: Client) -> None:
    @job(name="flows.expiring", queue="unserved2", expires_in=0.05)
    def expiring() -> None: ...

    name = new_name()
    group(expiring.bind(), on_dead=Note(name=name)).enqueue()
    late = broker_of(client).run(server_time()) + 50
    wait_for(lambda: broker_of(client).run(server_time()) > late)
    assert client.queue("unserved2").reserve(1) == []
    assert name not in seen
    outboxes = FlowRecovery(broker_of(client), keys_of(client))
    outboxes.take(ScanReply(posted=["unserved2"]))
    outboxes.step()
    wait_for(lambda: name in seen)


def test_a_group_of_more_steps_than_are_put_together_at_once() -> None:
    name = new_name()
    steps = group(*(add.bind(n) for n in range(1200)))
    flow = chain(steps, Note(name=name)).enqueue()
    assert flow.result(timeout=60) == [n + 1 for n in range(1200)]
    assert seen[name] == [(tuple(n + 1 for n in range(1200)), ("succeeded",) * 1200)]


def test_a_wait_that_is_too_short_says_so() -> None:
    flow = chain(unserved.bind(), unserved.bind()).enqueue()
    with pytest.raises(TaskTimeout, match="1 results"):
        flow.result(timeout=0.01)
    flow.cancel()


def test_a_flow_that_was_forgotten_says_so() -> None:
    flow = chain(unserved.bind()).enqueue(ttl=0.001)
    wait_for(lambda: _is_gone(flow))
    with pytest.raises(TaskGone):
        flow.result(timeout=30)


def _is_gone(flow: FlowHandle) -> bool:
    try:
        flow.progress()
    except TaskGone:
        return True
    return False


def test_outside_of_a_flow_there_are_no_results() -> None:
    name = new_name()
    assert Note(name=name).enqueue().result(timeout=20) == []
    assert seen[name] == [((), ())]
    with pytest.raises(UsageError):
        _ = Note(name="x").task


def test_a_task_whose_results_were_too_large_to_be_kept_is_dead_at_once_when_it_is_requeued(client: Client) -> None:
    task = Total().using(in_=3600).enqueue()
    key = keys_of(client).queue("works/raw").task(task.id)
    broker_of(client).run(command("HSET", key, "results", NOT_KEPT, read=int))
    assert task.run_now()

    with pytest.raises(TaskFailed, match="the results of the steps before it are more than 16 MiB together"):
        task.result(timeout=20)

    assert task.attempts == 1


def test_asyncio() -> None:
    async def go() -> None:
        flow = await chain(add.bind(1), group(Double(), Double()), Total()).aenqueue()
        assert await flow.result(timeout=20) == 8
        assert (await flow.progress()).succeeded == 4
        assert len(flow.tasks) == 1
        stopped = await group(unserved.bind(), on_complete=Note(name=new_name())).aenqueue()
        with pytest.raises(TaskTimeout):
            await stopped.result(timeout=0.01)
        assert await stopped.cancel()
        with pytest.raises(TaskCancelled):
            await stopped.result(timeout=30)
        alone = await group(unserved.bind()).aenqueue()
        assert await alone.tasks[0].cancel()
        assert (await alone.progress()).cancelled == 1

    asyncio.run(go())


@pytest.mark.parametrize(
    ("at", "enqueued"),
    [
        pytest.param(0, 0, id="before its steps"),
        pytest.param(2, 1000, id="with the first thousand steps"),
        pytest.param(3, 1500, id="with the last steps"),
    ],
)
def test_a_flow_whose_aenqueue_is_cancelled_is_taken_back(
    client: Client, monkeypatch: pytest.MonkeyPatch, at: int, enqueued: int
) -> None:
    """The first thousands of its steps ran, and the callback never came."""
    write, made, queue = AsyncBroker.write, iter(range(9)), client.queue("unserved")
    waiting, before = queue.counts()["waiting"], queue.totals().get("enqueued", 0)

    async def go() -> None:
        caller = asyncio.current_task()
        assert caller is not None

        async def write_and_cancel(self: AsyncBroker, calls: Sequence[Call[Any]]) -> list[Any]:
            if next(made) == at:
                caller.cancel()
                await asyncio.sleep(0)  # the cancellation arrives while this round trip is under way
            return await write(self, calls)

        monkeypatch.setattr(AsyncBroker, "write", write_and_cancel)
        await group(*(unserved.bind() for _ in range(1500)), on_complete=unserved.bind()).aenqueue()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(go())
    assert queue.counts()["waiting"] == waiting
    assert queue.totals().get("enqueued", 0) - before == enqueued


@pytest.mark.parametrize(
    ("confirmed", "told"),
    [
        pytest.param(0, "is lost now; no step of the flow was sent and none will run: enqueue it again", id="joins"),
        pytest.param(1, "may run, and enqueued again they run twice: look at the flow first", id="steps"),
    ],
)
def test_a_flow_that_is_not_confirmed_says_whether_its_steps_may_run(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch, confirmed: int, told: str
) -> None:
    """A flow has no id with which the same could be sent again."""
    write, plain, made = Broker.write, broker_of(client), iter(range(9))

    def write_so(self: Broker, calls: Iterable[Call[Any]]) -> list[Any]:
        return write(plain if next(made) < confirmed else self, calls)

    monkeypatch.setattr(Broker, "write", write_so)
    before = client.queue("unserved").totals().get("enqueued", 0)
    with (
        Client(server.url, "flows", durability="replicated", durability_timeout=0.01) as careful,
        within(careful),
        pytest.raises(OutcomeUnknown) as unknown,
    ):
        group(unserved.bind(), unserved.bind(), on_complete=unserved.bind()).enqueue()
    assert client.queue("unserved").totals().get("enqueued", 0) - before == 2 * confirmed
    assert told in str(unknown.value)
    assert "same id" not in str(unknown.value)
