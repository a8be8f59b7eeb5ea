"""A caller can see that its id, or a task like its own, was there already: waiting, dead or finished."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobrunner import Job, chain, job
from jobrunner.client.client import Client
from jobrunner.client.item import Item
from jobrunner.client.loop_clients import current_async_client
from jobrunner.errors import DuplicateTask, InvalidName, InvalidOption
from jobrunner.jobs.options import Unique
from jobrunner.jobs.registry import forget


@pytest.fixture
def queue(way: Any) -> Any:
    return way.queue("mail")


@pytest.fixture
def greet(current: Client) -> Iterator[Any]:
    @job(queue="mail")
    class Greet(Job):
        name: str = "Ada"

        def run(self) -> None: ...

    yield Greet
    forget("Greet")


def test_the_id_of_a_task_of_another_queue_is_no_id_for_a_new_one(queue: Any, way: Any, greet: Any) -> None:
    """What knows the id alone would find the other task, and cancel that one."""
    upstream = way.queue("upstream").push(1)
    with pytest.raises(InvalidName, match="is that of a task of 'upstream'"):
        queue.push("a", id=upstream)
    with pytest.raises(InvalidName, match="is that of a task of 'upstream'"):
        greet.using(id=upstream).enqueue()
    assert queue.counts()["waiting"] == 0
    assert queue.push("a", id=f"mail-{upstream[:28]}") == queue.ids("waiting")[0]
    assert way.queue("upstream").push(2, id=upstream) == upstream


def test_a_push_onto_a_dead_item_can_be_seen(queue: Any) -> None:
    queue.push("a", id="inv-1", max_attempts=1)
    queue.reserve()[0].rollback(delay=0)
    clashes: list[str] = []

    assert queue.push("b", id="inv-1") == "inv-1"
    assert queue.push("b", id="inv-1", on_clash=clashes.extend) == "inv-1"
    assert clashes == ["inv-1"]
    with pytest.raises(DuplicateTask, match="'inv-1' exists already") as refused:
        queue.push("b", id="inv-1", on_clash="raise")
    assert (refused.value.task_id, refused.value.task_ids) == ("inv-1", ["inv-1"])
    assert queue.counts()["dead"] == 1
    queue.push("b", id="inv-2", on_clash=clashes.extend)
    queue.push("b", on_clash="raise")
    assert clashes == ["inv-1"]


def test_a_push_of_many_is_refused_as_a_whole_or_says_which_were_there(queue: Any) -> None:
    queue.push_many([Item(n, id=f"old-{n}") for n in range(3)])
    mixed = ["made", *(Item(n, id=f"old-{n}") for n in range(3)), Item("new", id="new")]
    clashes: list[str] = []

    with pytest.raises(DuplicateTask, match="'old-0' and 2 others exist") as refused:
        queue.push_many(mixed, on_clash="raise")
    assert refused.value.task_ids == ["old-0", "old-1", "old-2"]
    assert queue.counts()["waiting"] == 3
    with pytest.raises(DuplicateTask, match="'twice'"):
        queue.push_many([Item(1, id="twice"), Item(2, id="twice")], on_clash="raise")
    assert queue.counts()["waiting"] == 3

    queue.push_many(mixed, on_clash=clashes.extend)
    assert clashes == ["old-0", "old-1", "old-2"]
    assert queue.counts()["waiting"] == 5
    queue.push_many([Item(1, id="fresh"), "made"], on_clash="raise")
    with pytest.raises(InvalidOption, match="on_clash='replace'"):
        queue.push(1, on_clash="replace")


def test_a_refused_push_that_found_its_queue_full_may_be_made_again(queue: Any) -> None:
    queue.configure(max_size=1)
    queue.push("there", id="a")
    with pytest.raises(DuplicateTask):
        queue.push("again", id="a", on_clash="raise")
    queue.pop(1)
    assert queue.push("now", id="a", on_clash="raise") == "a"


@pytest.mark.parametrize("end", ["waiting", "dead", "succeeded", "cancelled"])
def test_a_handle_says_whether_its_task_is_new(current: Client, greet: Any, end: str) -> None:
    first = greet().enqueue(id="mine")
    mail = current.queue("mail")
    if end == "cancelled":
        first.cancel()
    elif end != "waiting":
        (lease,) = mail.reserve()
        mail.configure(max_attempts=1, history=60)
        (lease.rollback if end == "dead" else lease.commit)()

    again = greet(name="Bob").enqueue(id="mine")

    assert (first.is_new, again.is_new, again.id) == (True, False, "mine")
    assert current.task("mine", queue="mail").is_new is None
    assert [task.is_new for task in greet.enqueue_many([greet(), greet()])] == [True, True]


def test_a_unique_job_says_so_too(current: Client, greet: Any) -> None:
    @job(queue="mail", unique=Unique(on_clash="replace"))
    class Only(Job):
        def run(self) -> None: ...

    try:
        assert [Only().enqueue().is_new, Only().enqueue().is_new] == [True, False]
        assert [task.is_new for task in Job.enqueue_many([greet(), Only(), greet()])] == [True, False, True]
    finally:
        forget("Only")


def test_handles_of_asyncio_say_so(current: Client, greet: Any, on_loop: Callable[..., Any]) -> None:
    async def enqueue() -> list[bool | None]:
        said = [(await greet().aenqueue(id="mine")).is_new, (await greet().aenqueue(id="mine")).is_new]
        await current_async_client().close()
        return said

    assert on_loop(enqueue()) == [True, False]


def test_tasks_of_flows_are_always_new(current: Client, greet: Any) -> None:
    with pytest.raises(InvalidOption, match="gets its id from the flow"):
        chain(declared_with_an_id()).enqueue()


def declared_with_an_id() -> Any:
    @job(queue="mail")
    def step() -> None: ...

    forget("step")
    return step.using(id="mine").bind()
