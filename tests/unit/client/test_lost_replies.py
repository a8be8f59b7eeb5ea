"""The reply to an enqueue is lost, and consumers are done before it is sent again: each task is handed out once."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jobrunner import Job, Queue, job
from jobrunner.broker import call_stream, reconnect
from jobrunner.broker.calls import flows
from jobrunner.broker.connect import Endpoint
from jobrunner.client import outgoing
from jobrunner.client.async_client import AsyncClient
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.current import pinned
from jobrunner.client.item import Item
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.operations.task import delete_all, requeue_all
from jobrunner.clock import since_boot
from jobrunner.errors import (
    DuplicateTask,
    InvalidOption,
    LeaseError,
    NotReserved,
    OutcomeUnknown,
    QueueFull,
    ReportsRefused,
    ReportUnknown,
    ServerUnavailable,
)
from jobrunner.jobs.options import Unique
from jobrunner.jobs.registry import forget
from jobrunner.join import Arrival, Join, write_onward
from jobrunner.task import Task, new_id
from tests.reliability.proxy import Proxy
from tests.support.server import topology_name
from tests.support.waiting import wait_for
from tests.unit.client.conftest import Awaited

pytestmark = pytest.mark.skipif(topology_name() == "cluster", reason="a proxy leads to one server")


class Consumer:
    """Takes all that is in a queue, in the moment in which a reply is lost, in the way that is chosen."""

    def __init__(self, client: Client, proxy: Proxy, queue: str) -> None:
        self.queue = client.queue(queue)
        self.taken: list[str] = []
        self.way = "commit"
        self.proxy = proxy
        proxy.before_loss = self.take_all

    def lose(self, script: str = "enqueue", *, times: int = 1) -> None:
        """The next replies to a script are lost."""
        self.proxy.lose_replies(script, times=self.proxy.lost[script] + times)

    def take_all(self) -> None:
        if self.way == "pop":
            while popped := self.queue.pop(100):
                self.taken += [one.id for one in popped]
        while held := self.queue.reserve(100):
            self.taken += [lease.id for lease in held]
            if self.way == "commit":
                self.queue.commit_many(held)
            elif self.way == "delete":
                for lease in held:
                    self.queue.delete(lease.id)
            elif self.way == "die":
                self.queue.rollback_many(held, delay=0)
            else:
                for lease in held:
                    lease.move("next")


@contextmanager
def buffering(consumer: Consumer, proxy: Proxy, client: Client, clock: Any, *, buffer_tasks: int) -> Iterator[Client]:
    """A client with a buffer that has sent before, and gives up at the first lost reply."""
    with Client(
        proxy.url, client.settings.prefix, now_ms=clock, retry_timeout=0, buffer_tasks=buffer_tasks
    ) as made:  # fmt: skip
        made.queue("line/q").push("warm")
        consumer.take_all()
        consumer.taken.clear()
        yield made


@pytest.fixture
def producer(proxy: Proxy, client: Client, clock: Any) -> Iterator[Client]:
    """It sends again for longer than a busy machine takes to lose a reply and to do what was enqueued."""
    with Client(proxy.url, client.settings.prefix, now_ms=clock, retry_timeout=30) as made:
        yield made


@pytest.fixture
def consumer(client: Client, proxy: Proxy) -> Consumer:
    return Consumer(client, proxy, "line/q")


@pytest.fixture
def hasty(consumer: Consumer, proxy: Proxy, client: Client, clock: Any) -> Iterator[tuple[Client, Queue]]:
    """A client that sends nothing again by itself and whose next reply is lost, and a queue of it that was used."""
    with Client(proxy.url, client.settings.prefix, now_ms=clock, retry_timeout=0) as made:
        queue = made.queue("line/q")
        queue.push("warm")
        consumer.take_all()
        consumer.taken.clear()
        consumer.lose()
        yield made, queue


@pytest.fixture(params=[0, 9.9, 10, 60], ids="keep={}".format)
def greet(producer: Client, request: pytest.FixtureRequest) -> Iterator[type[Job]]:
    @job(queue="line/q", result_ttl=request.param)
    class Greet(Job):
        name: str = "Ada"

        def run(self) -> None: ...

    with pinned(producer):
        yield Greet
    forget("Greet")


@pytest.mark.parametrize("way", ["commit", "pop", "delete", "die"])
@pytest.mark.parametrize("own", [False, True])
def test_a_push_delivers_once(consumer: Consumer, producer: Client, way: str, own: bool) -> None:
    queue = producer.queue("line/q")
    queue.configure(max_attempts=1, dead_ttl=0)
    queue.push("first, so that the connection and the script are there")
    consumer.take_all()
    consumer.taken.clear()
    consumer.way = way
    consumer.lose(times=2)

    pushed = queue.push("once", id="mine" if own else None, on_clash="raise")
    consumer.take_all()

    assert consumer.proxy.lost["enqueue"] == 2
    assert consumer.taken == [pushed]
    assert queue.counts()["waiting"] == queue.counts()["dead"] == 0


def test_a_push_of_many_delivers_each_once_and_says_which_were_new(consumer: Consumer, producer: Client) -> None:
    queue = producer.queue("line/q")
    queue.push("there", id="there", in_=60)
    consumer.lose()
    clashes: list[str] = []

    ids = queue.push_many(
        ["made", Item("own", id="own"), Item("again", id="own"), Item("no", id="there")], on_clash=clashes.extend
    )
    consumer.take_all()

    assert consumer.taken == ids[:2]
    assert clashes == ["own", "there"]
    assert queue.totals()["enqueued"] == 3


@pytest.mark.parametrize("own", [False, True])
def test_a_push_of_all_delivers_each_once_though_replies_to_slices_are_lost(
    consumer: Consumer, producer: Client, own: bool
) -> None:
    queue = producer.queue("line/q")
    queue.push_all(range(3))
    consumer.take_all()
    consumer.taken.clear()
    consumer.proxy.lose_replies("enqueue", times=3, every=2)
    clashes: list[str] = []

    queue.push_all([Item(n, id=f"i{n}" if own else None) for n in range(6500)], on_clash=clashes.extend)
    consumer.take_all()

    assert consumer.proxy.lost["enqueue"] == 3
    assert len(consumer.taken) == len(set(consumer.taken)) == 6500
    assert clashes == []
    assert queue.totals()["enqueued"] == 6503


@pytest.mark.parametrize("way", ["commit", "pop", "delete", "die"])
def test_a_job_runs_once_however_long_it_is_kept(
    consumer: Consumer, producer: Client, greet: Any, way: str
) -> None:
    producer.queue("line/q").configure(max_attempts=1, dead_ttl=0)
    consumer.way = way
    consumer.lose(times=2)

    tasks = [greet().enqueue(), greet(name="Bob").enqueue(id="mine")]
    consumer.take_all()

    assert consumer.taken == [task.id for task in tasks]
    assert [task.is_new for task in tasks] == [True, True]


def test_many_jobs_of_several_queues_run_once_each(consumer: Consumer, producer: Client, greet: Any) -> None:
    consumer.lose(times=2)
    calls = [greet.enqueue_many([greet() for _ in range(1500)])]
    consumer.take_all()

    assert len(consumer.taken) == 1500
    assert sorted(consumer.taken) == sorted(task.id for task in calls[0])
    assert {task.is_new for task in calls[0]} == {True}


def test_a_unique_job_runs_once_and_replaces_nobody(consumer: Consumer, producer: Client) -> None:
    @job(queue="line/q", result_ttl=0, unique=Unique(on_clash="raise"))
    class Only(Job):
        def run(self) -> None: ...

    try:
        with pinned(producer):
            consumer.lose("enqueue_unique")
            first = Only().enqueue()
            consumer.take_all()
            second = Only().enqueue()
            with pytest.raises(DuplicateTask):
                Only().enqueue()
    finally:
        forget("Only")

    assert consumer.taken == [first.id]
    assert (first.is_new, second.is_new) == (True, True)


@pytest.fixture
def only(producer: Client, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A unique job of which the server knows its tasks for a while, so that a call of it leaves no note."""

    @job(queue="line/q", result_ttl=60, unique=Unique(on_clash=request.param))
    def only() -> None: ...

    with pinned(producer):
        yield only
    forget(only)


@pytest.mark.parametrize("only", ["existing", "raise"], indirect=True)
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_a_unique_job_that_is_kept_is_new_behind_a_lost_reply(consumer: Consumer, only: Any, many: bool) -> None:
    consumer.lose("enqueue_unique", times=2)

    (first,) = only.enqueue_many([only.bind()]) if many else [only.enqueue()]

    assert consumer.proxy.lost["enqueue_unique"] == 2
    assert first.is_new is True
    consumer.take_all()
    assert consumer.taken == [first.id]


@pytest.mark.parametrize("only", ["existing", "raise"], indirect=True)
def test_a_unique_job_that_ran_is_not_taken_for_the_one_that_holds_its_lock_when_the_reply_is_lost(
    consumer: Consumer, client: Client, only: Any
) -> None:
    others: list[Any] = []

    def another_one() -> None:
        consumer.take_all()
        with pinned(client):
            others.append(only.enqueue())

    consumer.proxy.before_loss = another_one
    consumer.lose("enqueue_unique")

    first = only.enqueue()

    assert [first.id] == consumer.taken
    assert (first.is_new, others[0].is_new) == (True, True)
    assert first.state == "succeeded"


def test_asyncio_delivers_once_too(
    consumer: Consumer, proxy: Proxy, client: Client, greet: Any, clock: Any, on_loop: Callable[..., Any]
) -> None:
    async def produce() -> list[str]:
        async with AsyncClient(proxy.url, client.settings.prefix, now_ms=clock, retry_timeout=30) as way:
            queue = way.queue("line/q")
            consumer.lose(times=3)
            one = await queue.push("one")
            many = await queue.push_many(["two", Item("three", id="three")])
            return [one, *many]

    ids = on_loop(produce())
    consumer.take_all()
    assert consumer.taken == ids


def test_a_move_delivers_once(consumer: Consumer, producer: Client, client: Client) -> None:
    onward = Consumer(client, consumer.proxy, "line/next")
    producer.queue("line/q").push("x", id="x")
    (lease,) = producer.queue("line/q").reserve()
    onward.lose("move", times=2)

    with pytest.raises(ReportUnknown, match=r"task x was lost.* most likely it was applied"):
        lease.move("next")
    onward.take_all()
    assert onward.taken == ["x"]


def test_the_same_id_pushed_on_purpose_is_new_once_the_first_is_gone(consumer: Consumer, producer: Client) -> None:
    queue = producer.queue("line/q")
    queue.push("first", id="mine")
    consumer.take_all()
    queue.push("second", id="mine", on_clash="raise")
    consumer.take_all()

    assert consumer.taken == ["mine", "mine"]


def test_what_a_caller_sends_again_after_an_unknown_outcome_is_delivered_once(
    consumer: Consumer, hasty: tuple[Client, Queue]
) -> None:
    sender, queue = hasty
    with pytest.raises(OutcomeUnknown):
        queue.push("x", id="mine")
    sender.queue("line/q").push("x", id="mine")
    consumer.take_all()
    assert consumer.taken == ["mine"]
    queue.push("y", id="mine")
    consumer.take_all()
    assert consumer.taken == ["mine", "mine"], "after that it is a new one"


@pytest.mark.parametrize("again", ["the same call", "each alone", "another process"])
def test_of_many_whose_outcome_is_unknown_the_same_call_again_adds_none(
    consumer: Consumer, hasty: tuple[Client, Queue], again: str
) -> None:
    """And what is another call for the server adds those that are done and gone: it cannot know that they are old."""
    items = [Item("x", id="a"), Item("y", id="b")]
    _, queue = hasty
    with pytest.raises(OutcomeUnknown):
        queue.push_many(items)
    if again == "another process":
        outgoing._unknown.clear()
    for part in [[one] for one in items] if again == "each alone" else [items]:
        queue.push_many(part)
    consumer.take_all()

    assert consumer.taken == ["a", "b"] * (1 if again == "the same call" else 2)


@pytest.mark.parametrize("all_at_once", [True, False])
def test_of_thousands_whose_outcome_is_unknown_the_same_call_again_adds_none(
    consumer: Consumer, hasty: tuple[Client, Queue], all_at_once: bool
) -> None:
    """Only the last thousand were remembered, so that the same call had another name, and all were doubled."""
    items = [Item(number, id=f"{number}") for number in range(2000)]
    _, queue = hasty
    push = queue.push_many if all_at_once else queue.push_all
    consumer.lose(times=1 if all_at_once else 2)  # the slice that is sent again as well
    with pytest.raises(OutcomeUnknown):
        push(items)
    push(items)
    consumer.take_all()

    assert consumer.taken == [f"{number}" for number in range(2000)]


@pytest.mark.parametrize("face", ["threads", "asyncio"])
@pytest.mark.parametrize("call", ["enqueue_many", "push_all"])
def test_an_error_behind_the_first_thousand_says_so_and_the_same_call_again_adds_none_twice(
    consumer: Consumer, proxy: Proxy, client: Client, clock: Any, on_loop: Any, face: str, call: str
) -> None:
    """ServerUnavailable said that nothing was sent; and those that were done and gone by then were added again."""

    def own(sent: range, sink: Callable[[int], object] = lambda number: None) -> Iterator[Any]:
        for number in sent:
            sink(number)
            if call == "push_all":
                yield Item(number, id=f"{number}")
            else:
                sending = outgoing.sending_of("line/q", f"{number}")
                yield Task(id=f"{number}", queue="line/q", payload=b"1", sending=sending)

    def lose_server(number: int) -> None:
        if number == 2500:
            wait_for(lambda: client.queue("line/q").counts()["waiting"] == 2000)
            consumer.take_all()
            proxy.close()

    def send(way: Any, sent: Iterator[Any]) -> None:
        (way.enqueue_many if call == "enqueue_many" else way.queue("line/q").push_all)(sent)

    real: Any = AsyncClient if face == "asyncio" else Client
    made = real(proxy.url, client.settings.prefix, now_ms=clock, retry_timeout=0)
    with (
        Awaited(made, on_loop) if face == "asyncio" else made as way,
        pytest.raises(OutcomeUnknown, match=r"\. [12],000 other tasks of this call were added"),
    ):
        send(way, own(range(3000), lose_server))
    send(client, own(range(3000)))
    consumer.take_all()
    assert consumer.taken == [f"{number}" for number in range(3000)]


def test_a_refusal_behind_the_first_thousand_says_that_they_are_in(client: Client) -> None:
    client.queue("line/q").configure(max_size=1600)
    with pytest.raises(QueueFull, match=r"\. 1,000 other tasks of this call were added") as refused:
        client.enqueue_many(Task(id=new_id("line"), queue="line/q", payload=b"1") for _ in range(2000))
    assert (refused.value.queue, refused.value.max_size) == ("line/q", 1600)
    with pytest.raises(QueueFull) as refused:
        client.enqueue_many([Task(id=new_id("line"), queue="line/q", payload=b"1") for _ in range(900)])
    assert "other tasks" not in str(refused.value)


def test_the_slices_again_that_were_under_way_when_a_push_of_all_was_interrupted_add_none(
    consumer: Consumer, client: Client, wait_until: Callable[..., Any]
) -> None:
    """As by Ctrl-C in a notebook."""
    queue = client.queue("line/q")
    queue.push("warm")
    consumer.take_all()
    consumer.taken.clear()
    items = [Item(number, id=f"{number}") for number in range(3000)]

    def interrupt(pushed: int) -> None:
        wait_until(lambda: queue.counts()["waiting"] == pushed + 1000)  # the next slice is in already
        consumer.take_all()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        queue.push_all(items, progress=interrupt)
    queue.push_all(items[1000:])
    consumer.take_all()
    assert consumer.taken == [f"{number}" for number in range(3000)]


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_call_whose_outcome_is_unknown_is_still_that_call_after_another_failure(
    consumer: Consumer, proxy: Proxy, client: Client, clock: Any, on_loop: Any, kind: str
) -> None:
    """The second try forgot the first one, so the third added the item once more."""
    made: Any = AsyncClient if kind == "asyncio" else Client
    fails = Fails()
    way = made(proxy.url, client.settings.prefix, now_ms=clock, retry_timeout=0, middleware=[fails])
    with_face = Awaited(way, on_loop)
    with with_face if kind == "asyncio" else with_face.real as sender:
        queue = sender.queue("line/q")
        queue.push("warm")
        consumer.take_all()
        consumer.taken.clear()
        consumer.lose()
        with pytest.raises(OutcomeUnknown):
            queue.push("once", id="mine")
        fails.now = True
        with pytest.raises(RuntimeError, match="no tenant"):
            queue.push("once", id="mine")
        with pytest.raises(InvalidOption):
            queue.push_many([Item("once", id="mine"), Item("other", priority=7)])
        fails.now = False
        proxy.close()
        with pytest.raises(ServerUnavailable):
            queue.push("once", id="mine")
    other = client.queue("line/q")
    other.push("once", id="mine")
    consumer.take_all()
    assert consumer.taken == ["mine"]
    other.push("on purpose", id="mine")
    consumer.take_all()
    assert consumer.taken == ["mine", "mine"], "it was answered, so the next is another"


class Fails:
    """Middleware that refuses each task while `now` is set."""

    now = False

    def on_enqueue(self, task: Any, next: Any) -> None:
        if self.now:
            raise RuntimeError("no tenant")
        next(task)


def test_the_call_again_after_it_was_cancelled_delivers_once(
    consumer: Consumer, proxy: Proxy, client: Client, clock: Any, on_loop: Callable[..., Any]
) -> None:
    """As by a timeout of the program that is shorter than `retry_timeout`."""

    async def produce() -> None:
        async with AsyncClient(proxy.url, client.settings.prefix, now_ms=clock, retry_timeout=30) as way:
            queue, loop, over = way.queue("line/q"), asyncio.get_running_loop(), threading.Event()
            await queue.push("warm")
            consumer.take_all()
            consumer.taken.clear()
            pushing = loop.create_task(queue.push("once", id="mine"))
            pushing.add_done_callback(lambda _: over.set())

            def take_and_cancel() -> None:
                consumer.take_all()
                loop.call_soon_threadsafe(pushing.cancel)
                assert over.wait(20)

            proxy.before_loss = take_and_cancel
            consumer.lose()
            with pytest.raises(asyncio.CancelledError):
                await pushing
            await queue.push("once", id="mine")

    on_loop(produce())
    consumer.take_all()
    assert consumer.taken == ["mine"]


def test_what_a_buffer_sends_again_is_delivered_once(
    consumer: Consumer, proxy: Proxy, client: Client, clock: Any, wait_until: Callable[..., Any]
) -> None:
    with buffering(consumer, proxy, client, clock, buffer_tasks=100) as patient:
        queue = patient.queue("line/q")
        consumer.lose()
        keep, ids = patient._buffer._keep, []  # type: ignore[union-attr]

        def keep_with_more(tasks: Any, error: Any = None) -> None:
            with patient._buffer._changed:  # type: ignore[union-attr]  # nothing is sent before there is more to send
                keep(tasks, error)
                if error is not None:
                    ids.append(queue.push("c"))

        patient._buffer._changed = threading.Condition(threading.RLock())  # type: ignore[union-attr]
        patient._buffer._keep = keep_with_more  # type: ignore[method-assign,union-attr]
        ids = [*queue.push_many(["a", "b"]), *ids]  # applied and taken; kept to be sent again
        wait_until(lambda: queue.counts()["waiting"] == 1)
        consumer.take_all()
        assert consumer.taken == ids


def test_a_full_buffer_does_not_call_tasks_refused_that_may_have_arrived(
    consumer: Consumer, proxy: Proxy, client: Client, clock: Any
) -> None:
    with buffering(consumer, proxy, client, clock, buffer_tasks=1) as patient:
        queue = patient.queue("line/q")
        items = [Item("x", id="a"), Item("y", id="b")]
        consumer.lose()
        with pytest.raises(OutcomeUnknown, match=r"applied or it was not; and 0 tasks .* wait for it already: 2"):
            queue.push_many(items)
        queue.push_many(items)
        consumer.take_all()
        assert consumer.taken == ["a", "b"]


def test_the_same_id_on_purpose_is_new_once_a_buffer_sent_the_first(
    consumer: Consumer, proxy: Proxy, client: Client, clock: Any, wait_until: Callable[..., Any]
) -> None:
    """It passed for the sending in doubt, which the buffer had sent again by then: the second was lost."""
    with buffering(consumer, proxy, client, clock, buffer_tasks=100) as patient:
        queue = patient.queue("line/q")
        consumer.lose()
        queue.push("first", id="mine")
        wait_until(lambda: not len(patient._buffer or ()))
        consumer.take_all()
        assert consumer.taken == ["mine"]

        queue.push("on purpose", id="mine")
        consumer.take_all()
        assert consumer.taken == ["mine", "mine"]


def test_a_buffer_sends_every_call_in_doubt_again_as_it_was(
    consumer: Consumer, proxy: Proxy, client: Client, clock: Any, wait_until: Callable[..., Any]
) -> None:
    """A connection that breaks leaves several threads in doubt; only the first of their calls was sent as it was."""
    with buffering(consumer, proxy, client, clock, buffer_tasks=100) as patient:
        queue = patient.queue("line/q")
        consumer.lose(times=2)
        buffer, others = patient._buffer, []
        assert buffer is not None
        keep = buffer._keep

        def keep_after_another(tasks: Any, error: Any = None) -> None:
            with buffer._changed:  # nothing is sent before all wait
                buffer._keep = keep  # type: ignore[method-assign]
                others.extend(queue.push_many(["c", "d"]))  # as by another thread: it met an empty buffer, too
                keep(tasks, error)
                others.append(queue.push("e"))

        buffer._changed = threading.Condition(threading.RLock())  # type: ignore[assignment]
        buffer._keep = keep_after_another  # type: ignore[method-assign]
        ids = [*queue.push_many(["a", "b"]), *others]
        wait_until(lambda: queue.counts()["waiting"] >= 1 and not len(buffer))
        consumer.take_all()
        assert consumer.proxy.lost["enqueue"] == 2
        assert consumer.taken == ids


@pytest.fixture(params=["threads", "asyncio"])
def teller(request: Any, proxy: Proxy, client: Client, clock: Any, on_loop: Any) -> Iterator[Any]:
    """A client through the proxy, for threads or for asyncio, which sends again for long."""
    made: Any = Client if request.param == "threads" else AsyncClient
    way = made(proxy.url, client.settings.prefix, now_ms=clock, retry_timeout=30)
    with way if request.param == "threads" else Awaited(way, on_loop) as faced:
        yield faced


REPORTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "rollback": ("fail", lambda lease: lease.rollback(0)),
    "release": ("release", lambda lease: lease.release()),
    "move": ("move", lambda lease: lease.move("next")),
}


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_whose_reply_is_lost_says_not_that_it_changed_nothing(
    teller: Any, proxy: Proxy, report: str
) -> None:
    script, make = REPORTS[report]
    queue = teller.queue("line/q")
    queue.push_many(["once", "too late"])
    lease, other = queue.reserve(2)
    proxy.lose_replies(script)
    with pytest.raises(ReportUnknown, match=f"the reply about task {lease.id} was lost") as told:
        make(lease)
    assert isinstance(told.value, OutcomeUnknown)
    assert isinstance(told.value, LeaseError)
    assert queue.counts()["pending"] == 1

    other.release()
    with pytest.raises(NotReserved):
        make(other)


def test_of_a_batch_each_lost_reply_is_told(teller: Any, proxy: Proxy) -> None:
    queue = teller.queue("line/q")
    queue.push_many(["a", "b"])
    held = queue.reserve(2)
    proxy.lose_replies("fail")
    with pytest.raises(ReportsRefused, match=r"^0 of 2 reports .*; the replies to 2 were lost, and most") as told:
        queue.rollback_many(held, 0)
    assert [type(one) for one in told.value.verdicts] == [ReportUnknown, ReportUnknown]
    assert queue.totals()["failed"] == 2


def test_a_commit_whose_reply_is_lost_says_that_its_item_is_gone(teller: Any, proxy: Proxy) -> None:
    queue = teller.queue("line/q")
    queue.push_many(["once", "too late"])
    lease, other = queue.reserve(2)
    proxy.lose_replies("commit")
    assert lease.commit() is False
    assert queue.totals()["succeeded"] == 1

    other.release()
    with pytest.raises(NotReserved):
        other.commit()


def test_commits_of_a_batch_whose_reply_is_lost_do_so_too(teller: Any, proxy: Proxy) -> None:
    queue = teller.queue("line/q")
    queue.push_many(["a", "b"])
    held = queue.reserve(2)
    proxy.lose_replies("commit")
    assert queue.commit_many(held) == [False, False]
    assert queue.totals()["succeeded"] == 2


CHANGES: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "cancel": ("cancel", lambda client, it: client.task(it, queue="line/q").cancel()),
    "run_now": ("run_now", lambda client, it: client.task(it, queue="line/q").run_now()),
    "run_now of a queue": ("run_now", lambda client, it: client.queue("line/q").run_now(it)),
    "delete": ("delete", lambda client, it: client.queue("line/q").delete(it)),
    "requeue": ("requeue", lambda client, it: client.task(it, queue="line/q").requeue()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_whose_reply_is_lost_says_not_that_there_was_nothing_to_do(
    teller: Any, proxy: Proxy, change: str
) -> None:
    script, make = CHANGES[change]
    queue = teller.queue("line/q")
    queue.configure(max_attempts=1)
    pushed = queue.push("x", in_=60 if script == "run_now" else None)
    if change in ("requeue", "delete"):
        (lease,) = queue.reserve()
        if change == "requeue":
            lease.rollback(0)
    proxy.lose_replies(script)
    with pytest.raises(OutcomeUnknown, match=f"the reply about task {pushed} was lost"):
        make(teller, pushed)

    assert make(teller, pushed) is False, "this one was answered"


@pytest.fixture
def late(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """late(9.5): when the next reply is lost, the process goes on so many seconds later, and all was taken."""
    shift = [0.0]
    for module in (reconnect, call_stream):
        monkeypatch.setattr(module, "since_boot", lambda: since_boot() + shift[0])

    def lose(seconds: float, script: str = "enqueue") -> None:
        shift[0] = 0.0

        def take_and_stop() -> None:
            consumer.take_all()
            shift[0] += seconds

        consumer.proxy.before_loss = take_and_stop
        consumer.lose(script)

    return lose


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_push_that_would_come_again_too_late_for_its_note_is_not_sent_again(
    consumer: Consumer, late: Any, proxy: Proxy, client: Client, clock: Any, on_loop: Any, kind: str
) -> None:
    """The process was stopped for ten seconds, or a `retry_timeout` is longer than that."""
    made: Any = AsyncClient if kind == "asyncio" else Client
    with_face = Awaited(made(proxy.url, client.settings.prefix, now_ms=clock, retry_timeout=60), on_loop)
    with with_face if kind == "asyncio" else with_face.real as sender:
        queue = sender.queue("line/q")
        queue.push("warm")
        consumer.take_all()
        consumer.taken.clear()
        late(9.5)
        with pytest.raises(OutcomeUnknown, match="10 s later it is too late to send it again"):
            queue.push("once", id="mine")
        consumer.take_all()
        assert consumer.taken == ["mine"]

        late(8)
        pushed = queue.push("in time")
        consumer.take_all()
        assert consumer.taken == ["mine", pushed]


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_push_is_not_called_unsent_when_its_server_goes_away_with_the_reply(
    consumer: Consumer, proxy: Proxy, client: Client, clock: Any, on_loop: Any, kind: str
) -> None:
    """It adds nothing when it is made once more, by a program that waited for the server."""
    made: Any = AsyncClient if kind == "asyncio" else Client
    with_face = Awaited(made(proxy.url, client.settings.prefix, now_ms=clock, retry_timeout=0.5), on_loop)

    def take_and_leave() -> None:
        consumer.take_all()
        proxy.close()

    with with_face if kind == "asyncio" else with_face.real as sender:
        queue = sender.queue("line/q")
        queue.push("warm")
        proxy.before_loss = take_and_leave
        consumer.lose()
        with pytest.raises(OutcomeUnknown, match=r"it was applied or it was not; since then: no server at"):
            queue.push("once", id="mine")
        with pytest.raises(ServerUnavailable, match=r"^no server at"):
            queue.push("unsent")
    client.queue("line/q").push("once", id="mine")
    consumer.take_all()

    assert consumer.taken[1:] == ["mine"]


def test_a_kept_job_is_sent_again_as_long_as_its_id_is_known(
    consumer: Consumer, producer: Client, greet: Any, late: Any, request: pytest.FixtureRequest
) -> None:
    greet.enqueue_many([greet()])
    consumer.take_all()
    consumer.taken.clear()
    late(9.5)
    if request.node.callspec.params["greet"] < 60:
        with pytest.raises(OutcomeUnknown):
            greet().enqueue()
    else:
        greet().enqueue()
    consumer.take_all()
    assert len(consumer.taken) == 1


def test_a_job_that_is_committed_by_hand_is_known_as_long_as_its_enqueue_may_be_sent_again(
    producer: Client, raw: Any
) -> None:
    @job(queue="line/q", result_ttl=3600)
    def mend() -> None: ...

    try:
        with pinned(producer):
            task = mend.enqueue()
        producer.queue("line/q").reserve()[0].commit()
        (key,) = raw.keys(f"*task:{task.id}")
        assert 50_000 < raw.pttl(key) <= 60_000
    finally:
        forget("mend")


def test_threads_whose_outcomes_are_unknown_forget_the_oldest_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The caller got RuntimeError in place of OutcomeUnknown."""

    class Shared(OrderedDict[tuple[str, str], str]):
        """Another thread adds one whenever this one begins to look."""

        def __iter__(self) -> Iterator[tuple[str, str]]:
            first = super().__iter__()
            self["q", f"of another thread {len(self)}"] = "sending"
            return first

    unknown = Shared({("q", f"{number}"): "sending" for number in range(outgoing._REMEMBERED)})
    monkeypatch.setattr(outgoing, "_unknown", unknown)
    outgoing.remember_unknown([Task(id="last", queue="q", payload=b"", sending="its own")])
    assert outgoing.sending_of("q", "last") == "its own"
    assert outgoing.sending_of("q", "0") != "sending"


@pytest.mark.parametrize("on_clash", ["replace", "reschedule"])
def test_a_replacement_is_not_sent_again_after_its_time(
    consumer: Consumer, producer: Client, late: Any, on_clash: Any
) -> None:
    """Whatever is kept of its job: the note alone tells that the task of another enqueue was changed."""

    @job(queue="line/q", result_ttl=3600, unique=Unique(on_clash=on_clash))
    def mend(n: int) -> None:
        """Its `n` is not what it is unique by."""

    try:
        with pinned(producer):
            mend.bind(1).enqueue()
            late(9.5, "enqueue_unique")
            with pytest.raises(OutcomeUnknown, match="10 s later it is too late to send it again"):
                mend.bind(1).enqueue()
        consumer.take_all()
        assert len(consumer.taken) == 1
    finally:
        forget(mend)


def test_slices_of_a_push_of_all_are_not_sent_again_after_their_time(
    consumer: Consumer, producer: Client, late: Any
) -> None:
    queue = producer.queue("line/q")
    queue.push_all(range(3))
    consumer.take_all()
    consumer.taken.clear()
    late(9.5)
    with pytest.raises(OutcomeUnknown, match="too late to send the round again"):
        queue.push_all(range(4000))
    consumer.take_all()
    assert len(consumer.taken) == len(set(consumer.taken)) > 0


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_nothing_is_lost_in_a_connection_that_was_dead_before(
    start_server: Any, clock: Any, on_loop: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A patient client looks first: else the outage of the server would count as one of the reply."""
    own = start_server()
    made: Any = AsyncClient if kind == "asyncio" else Client
    with_face = Awaited(made(own.url, "p", retry_timeout=60), on_loop)
    shift = [0.0]
    monkeypatch.setattr(reconnect, "since_boot", lambda: since_boot() + shift[0])
    with with_face if kind == "asyncio" else with_face.real as sender:
        queue = sender.queue("q")
        queue.push("warm")
        own.kill()

        way = "open_async" if kind == "asyncio" else "open"
        connects = getattr(Endpoint, way)

        def comes_back(*given: Any, **named: Any) -> Any:
            if not shift[0]:
                shift[0] = 15
                own.start()
            return connects(*given, **named)

        monkeypatch.setattr(Endpoint, way, comes_back)
        queue.push("after the outage")
        assert queue.counts()["waiting"] == 1


def test_an_enqueue_of_a_kept_job_leaves_no_note(producer: Client, raw: Any) -> None:
    @job(queue="line/q")
    class Kept(Job):
        def run(self) -> None: ...

    try:
        with pinned(producer):
            Kept().enqueue()
            Kept.enqueue_many([Kept(), Kept()])
            assert not raw.keys(f"{producer.settings.prefix}:*sent:*")
            Kept().enqueue(id="mine")
            assert len(raw.keys(f"{producer.settings.prefix}:*sent:*")) == 1
    finally:
        forget("Kept")


@pytest.mark.parametrize(("change", "script"), [(requeue_all, "requeue"), (delete_all, "remove")])
def test_a_change_of_many_tasks_counts_those_whose_reply_was_lost(
    producer: Client, proxy: Proxy, change: Callable[..., Any], script: str
) -> None:
    """None counted: the page said that all were refused, and no event was written."""
    queue = producer.queue("line/q")
    queue.configure(max_attempts=1)
    ids = queue.push_many(range(3))
    queue.rollback_many(queue.reserve(3), delay=0)
    keys, broker = keys_of(producer), broker_of(producer)
    assert run_operation(broker, change(keys, "line/q", ["none"])) == 0

    proxy.lose_replies(script)
    assert run_operation(broker, change(keys, "line/q", ids)) == 3
    assert proxy.lost[script] == 1
    assert queue.counts()["dead"] == 0
    assert run_operation(broker, change(keys, "line/q", ids)) == 0


def test_a_purge_whose_reply_was_lost_tells_the_joins_of_what_it_purged(producer: Client, proxy: Proxy) -> None:
    queue, behind = producer.queue("line/q"), producer.queue("behind")
    keys, broker = keys_of(producer), broker_of(producer)
    task = Task(id="joined", queue="behind", payload=b"{}")
    broker.run(
        flows.prepare(
            keys.queue("behind"), Join(id="j", queue="behind", rule="complete", total=1, ttl_ms=10**6, task=task)
        )
    )
    producer.enqueue(Task(id="a", queue="line/q", payload=b"{}", then=write_onward([Arrival("behind", "j", 0)])))

    proxy.lose_replies("purge")
    queue.purge("waiting")
    assert proxy.lost["purge"] == 1
    assert behind.ids("waiting") == ["joined"]
