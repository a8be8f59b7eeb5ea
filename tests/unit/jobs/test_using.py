"""using(...): the options of one enqueue, on job classes, their instances and functions alike."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from jobrunner import chain
from jobrunner.client.client import Client
from jobrunner.errors import InvalidOption, ParameterError, UnknownOption, UsageError
from jobrunner.jobs.decorator import job
from jobrunner.jobs.job import Job
from jobrunner.jobs.options import EnqueueOptions
from jobrunner.jobs.registry import forget


@job(name="using-mail", queue="mail")
class Mail(Job):
    to: str
    copies: int = 1

    def run(self) -> None: ...


@job(name="using-add", queue="mail")
def add(to: str, copies: int = 1) -> None: ...


@pytest.fixture(autouse=True, scope="module")
def forget_jobs() -> Iterator[None]:
    yield
    forget("using-mail")
    forget("using-add")


ALIKE = [
    pytest.param(lambda **options: Mail.using(**options).enqueue(to="ada"), id="class"),
    pytest.param(lambda **options: Mail.using(**options).bind(to="ada").enqueue(), id="class, bound"),
    pytest.param(lambda **options: Mail(to="ada").using(**options).enqueue(), id="instance"),
    pytest.param(lambda **options: Mail(to="ada").enqueue(**options), id="keywords of enqueue"),
    pytest.param(lambda **options: add.using(**options).enqueue(to="ada"), id="function"),
    pytest.param(lambda **options: add.using(**options).bind(to="ada").enqueue(), id="function, bound"),
    pytest.param(lambda **options: asyncio.run(Mail.using(**options).aenqueue(to="ada")), id="class, asyncio"),
    pytest.param(lambda **options: asyncio.run(Mail(to="ada").using(**options).aenqueue()), id="instance, asyncio"),
]


@pytest.mark.parametrize("enqueue", ALIKE)
def test_options_do_the_same_wherever_they_are_given(current: Client, enqueue: Any) -> None:
    enqueue(in_=3600, priority=2, queue="slow", id="mine")

    record = current.task("mine", queue="slow").record()
    assert (record.state, record.priority, record.payload) == ("scheduled", 2, b'{"to":"ada","copies":1}')


@pytest.mark.parametrize("enqueue", ALIKE)
def test_a_wrong_option_is_refused_alike_and_nothing_is_sent(current: Client, enqueue: Any) -> None:
    with pytest.raises(UnknownOption, match="did you mean 'priority'"):
        enqueue(prioriti=2)
    with pytest.raises(UnknownOption, match="'in_'"):
        enqueue(countdown=2)
    with pytest.raises(InvalidOption, match="priority"):
        enqueue(priority=7)
    assert current.queues() == []


def test_many_jobs_share_the_options_of_their_class(current: Client) -> None:
    sent = Mail.using(queue="slow", in_=60).enqueue_many(Mail(to=name) for name in ("ada", "bob"))

    assert [task.state for task in sent] == ["scheduled", "scheduled"]
    assert current.queue("slow").counts()["scheduled"] == 2


def test_a_step_of_a_flow_keeps_the_options_of_an_instance(current: Client) -> None:
    flow = chain(Mail(to="ada").using(queue="slow"), Mail.using(priority=2).bind(to="bob")).enqueue()

    assert current.queue("slow").counts()["waiting"] == 1
    assert flow.tasks[0].record().queue == "slow"


def test_parameters_are_checked_as_ever(current: Client) -> None:
    with pytest.raises(ParameterError, match="copies"):
        Mail.using(in_=60).enqueue(to="ada", copies=None, more=1)
    with pytest.raises(ParameterError):
        Mail.using(in_=60).bind()

    class Bare(Job):
        def run(self) -> None: ...

    with pytest.raises(UsageError, match="@job"):
        Bare.using(in_=1).enqueue()
    with pytest.raises(UsageError, match="@job"):
        Bare().using(in_=1)
    assert current.queues() == []


def test_there_is_one_kind_of_options() -> None:
    assert EnqueueOptions.__struct_fields__ == ("in_", "at", "priority", "queue", "id", "wait")
    assert Mail(to="a").using(in_=1).options == EnqueueOptions(in_=1) == add.using(in_=1).bind("a").options
