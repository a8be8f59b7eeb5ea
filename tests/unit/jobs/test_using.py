"""using(...): the options of one enqueue, on job classes, their instances and functions alike."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobrunner import AsyncClient, Unique, chain
from jobrunner.client.client import Client
from jobrunner.client.item import ITEM_OPTIONS, ItemKeywords, read_headers
from jobrunner.errors import InvalidName, InvalidOption, NaiveDatetime, ParameterError, UnknownOption, UsageError
from jobrunner.jobs.decorator import job
from jobrunner.jobs.enqueue_options import OPTIONS, EnqueueKeywords, EnqueueOptions, read_options
from jobrunner.jobs.job import Job
from jobrunner.jobs.registry import forget
from jobrunner.queue_settings import QueueSettings, SettingKeywords


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


WRONG = {
    "priority": 7, "in_": "soon", "at": datetime(2030, 1, 1), "max_attempts": -1, "timeout": 0, "expires_in": 0,
    "result_ttl": -1, "queue": "",
}  # fmt: skip
ALIKE = [
    pytest.param(lambda **options: Mail.using(**options).enqueue(to="ada"), id="class"),
    pytest.param(lambda **options: Mail.using(**options).bind(to="ada").enqueue(), id="class, bound"),
    pytest.param(lambda **options: Mail(to="ada").using(**options).enqueue(), id="instance"),
    pytest.param(lambda **options: Mail(to="ada").enqueue(**options), id="keywords of enqueue"),
    pytest.param(lambda **options: add.using(**options).enqueue(to="ada"), id="function"),
    pytest.param(lambda **options: add.using(**options).bind(to="ada").enqueue(), id="function, bound"),
    pytest.param(lambda **options: add.bind(to="ada").enqueue(**options), id="keywords of a call"),
    pytest.param(lambda **options: asyncio.run(add.bind("ada").aenqueue(**options)), id="keywords of a call, asyncio"),
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
    with pytest.raises(UnknownOption, match=r"'max_attempts'.*3 retries are max_attempts=4"):
        enqueue(max_retries=2)
    with pytest.raises(UnknownOption, match="'expires_in'"):
        enqueue(expires=2)
    for name, value in WRONG.items():
        with pytest.raises((InvalidOption, InvalidName, NaiveDatetime), match=name):
            enqueue(**{name: value})
    assert current.queues() == []


@pytest.mark.parametrize("enqueue", ALIKE)
def test_none_leaves_an_option_to_the_job(current: Client, enqueue: Any) -> None:
    enqueue(**dict.fromkeys(OPTIONS))
    assert sum(counts.waiting for counts in current.stats().values()) == 1


def test_none_leaves_an_option_of_many_to_using_and_the_job(current: Client) -> None:
    none: Any = dict.fromkeys(OPTIONS)
    assert all(task.is_new for task in add.using(priority=2).enqueue_many([add.bind("ada")], **none))
    assert all(task.is_new for task in Mail.enqueue_many([Mail(to="ada")], **none))
    assert all(task.is_new for task in asyncio.run(add.aenqueue_many([add.bind("ada")], **none)))


@pytest.mark.parametrize(("given", "wait"), [(None, 5), (0, 0), (1, 1)])
def test_the_wait_of_a_call_counts_before_that_of_using(given: Any, wait: float) -> None:
    """Also that it is not to wait at all."""
    bound = add.using(wait=5).bind("ada")
    assert read_options({"wait": given}, "enqueue").over(bound.options).max_wait == wait


SEND_MANY = [
    pytest.param(lambda calls, **options: add.using(**options).enqueue_many(calls), id="function"),
    pytest.param(lambda calls, **options: add.enqueue_many(calls, **options), id="function, keywords"),
    pytest.param(lambda calls, **options: Mail.using(**options).enqueue_many(calls), id="class"),
    pytest.param(lambda calls, **options: Mail.enqueue_many(calls, **options), id="class, keywords"),
    pytest.param(lambda calls, **options: asyncio.run(add.using(**options).aenqueue_many(calls)), id="asyncio"),
    pytest.param(lambda calls, **options: asyncio.run(Mail.using(**options).aenqueue_many(calls)), id="class, asyncio"),
    pytest.param(lambda calls, **options: asyncio.run(Mail.aenqueue_many(calls, **options)), id="Job, asyncio"),
]


@pytest.mark.parametrize("send", SEND_MANY)
def test_of_many_calls_the_longest_wait_counts(current: Client, monkeypatch: pytest.MonkeyPatch, send: Any) -> None:
    """That of a call did not: a full queue refused it at once."""
    waits: list[Any] = []

    def note(self: Any, sent: Any, *, wait: Any = 0) -> list[Any]:
        waits.append(wait)
        return []

    async def note_async(*given: Any, **named: Any) -> list[Any]:
        return note(*given, **named)

    monkeypatch.setattr(Client, "enqueue_many", note)
    monkeypatch.setattr(AsyncClient, "enqueue_many", note_async)
    plain, short, never = add.bind("a"), add.using(wait=timedelta(seconds=1)).bind("b"), add.using(wait=0).bind("c")
    send([plain, short])
    send([plain, short], wait=2)
    send([short, never], wait=2)
    send([never, Mail(to="d")], wait=2)
    assert waits == [1, 2, 1, 2]
    with pytest.raises(InvalidOption, match="wait is 'soon'"):
        send([plain, add.using(wait="soon").bind("e")])  # type: ignore[typeddict-item]
    assert len(waits) == 4


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
    assert EnqueueOptions.__struct_fields__ == tuple(EnqueueKeywords.__annotations__)
    assert tuple(ItemKeywords.__annotations__) == ITEM_OPTIONS
    assert set(QueueSettings.__slots__) == set(SettingKeywords.__annotations__)
    assert Mail(to="a").using(in_=1).options == EnqueueOptions(in_=1) == add.using(in_=1).bind("a").options


EVERY = {
    "in_": timedelta(hours=1), "priority": 2, "queue": "slow", "id": "mine", "expires_in": timedelta(days=1),
    "max_attempts": 2, "timeout": 30, "result_ttl": 3600.5, "headers": {"tenant": "a"},
}  # fmt: skip
"""Every option but `at` and `wait`."""


@pytest.mark.parametrize("enqueue", ALIKE)
def test_every_option_travels_with_its_task(current: Client, enqueue: Any) -> None:
    enqueue(**EVERY)

    fields = current.task("mine", queue="slow").record().fields
    assert (fields["max_attempts"], fields["expires_in_ms"]) == (b"2", b"86400000")
    assert read_headers(fields["headers"]) == {
        "tenant": "a", "jobrunner.timeout": "30.0", "jobrunner.result_ttl": "3600.5",
    }  # fmt: skip


def test_a_task_without_options_has_no_field_for_them(current: Client) -> None:
    fields = add.enqueue("ada").record().fields

    assert not {"max_attempts", "expires_in_ms", "headers", "priority"} & fields.keys()


def test_options_add_up_and_the_last_ones_count(current: Client) -> None:
    base = add.using(in_=60, queue="slow", headers={"a": "1", "b": "1"})
    at = datetime(2100, 1, 1, tzinfo=UTC)

    options = base.using(at=at, headers={"b": "2"}).bind("ada").using(priority=2).options
    assert options == EnqueueOptions(at=at, queue="slow", headers={"a": "1", "b": "2"}, priority=2)
    assert base.bind("ada").options.in_ == 60
    assert Mail.using(in_=60).using(queue="slow").bind("ada").options == EnqueueOptions(in_=60, queue="slow")
    assert Mail("ada").using(in_=60).using(at=at).options == EnqueueOptions(at=at)


@pytest.mark.parametrize("many", ["class", "class with options", "function", "function with options", "asyncio"])
def test_many_have_the_options_of_the_call_unless_they_have_their_own(current: Client, many: str) -> None:
    at_once = Mail.using(in_=0, priority=0).bind("di")
    jobs: list[Any] = [Mail("ada"), Mail("bob").using(queue="vip"), add.bind("cy"), at_once]
    options: dict[str, Any] = {"in_": 3600, "max_attempts": 2}

    async def send_async() -> list[str]:
        sent = [*await Mail.aenqueue_many(jobs[:2], **options), *await add.aenqueue_many(jobs[2:], **options)]
        return [task.id for task in sent]

    send: dict[str, Any] = {
        "class": lambda: Mail.enqueue_many(jobs, **options),
        "class with options": lambda: Mail.using(**options).enqueue_many(jobs),
        "function": lambda: add.enqueue_many(jobs, **options),
        "function with options": lambda: add.using(**options).enqueue_many(jobs),
        "asyncio": lambda: [current.task(task_id) for task_id in asyncio.run(send_async())],
    }
    records = [task.record() for task in send[many]()]

    assert [record.queue for record in records] == ["mail", "vip", "mail", "mail"]
    assert [record.state for record in records] == ["scheduled", "scheduled", "scheduled", "waiting"]
    assert [record.priority for record in records] == [1, 1, 1, 0]
    assert {record.fields["max_attempts"] for record in records} == {b"2"}


@pytest.mark.parametrize(
    ("calls", "of_function", "of_class"),
    [
        ([("ada", 2)], r"item 0 is \('ada', 2\), .* no call of a job; write add\.bind\('ada', 2\)", r"write Mail\(…\)"),
        (["ada"], r"item 0 is 'ada'.*write add\.bind\(…\)", r"item 0 is 'ada'.*write Mail\(…\)"),
        ("ada", r"add\.enqueue_many\('ada'\): give a list", r"Mail\.enqueue_many\('ada'\): give a list"),
        ([None], "item 0 is None", "item 0 is None"),
    ],
)
def test_what_is_no_call_is_refused_before_anything_is_sent(
    current: Client, calls: Any, of_function: str, of_class: str
) -> None:
    with pytest.raises(UsageError, match=of_function):
        add.enqueue_many(calls)
    with pytest.raises(UsageError, match=of_class):
        Mail.enqueue_many(calls)
    assert current.queues() == []


def test_a_function_or_a_class_in_place_of_its_call_is_refused(current: Client) -> None:
    with pytest.raises(UsageError, match=r"item 1 is .*add.*write add\.bind\(…\)"):
        add.enqueue_many([add.bind("ada"), add])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="item 0"):
        Mail.enqueue_many([Mail])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="give a list"):
        Mail.enqueue_many(Mail("ada"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"enqueue_many\(None\): give a list, or another iterable, of calls"):
        add.enqueue_many(None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"enqueue_many\(None\): give a list, or another iterable, of tasks"):
        current.enqueue_many(None)  # type: ignore[arg-type]
    assert current.queues() == []


def test_one_id_is_for_one_task(current: Client) -> None:
    with pytest.raises(InvalidOption, match=r"id='x': enqueue_many sends many tasks; give each its own"):
        add.enqueue_many([add.bind("ada"), add.bind("bob")], id="x")
    assert [task.id for task in add.enqueue_many([add.bind("a").using(id="x"), add.bind("b").using(id="y")])] == [
        "x", "y",
    ]  # fmt: skip


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, ["a"], {"jobrunner.timeout": "5"}, {"a": "\udce9"}])
def test_wrong_headers_are_refused(current: Client, headers: Any) -> None:
    with pytest.raises(InvalidOption, match="header"):
        add.using(headers=headers).enqueue("ada")
    assert current.queues() == []


def test_a_task_with_a_short_life_of_its_own_is_noted(current: Client) -> None:
    options = [EnqueueOptions(), EnqueueOptions(result_ttl=1), EnqueueOptions(result_ttl=3600)]
    assert [add.bind("a").task(one).kept_s for one in options] == [60, 0, 3600]


def test_a_task_that_takes_the_place_of_another_has_its_own_options_only(current: Client) -> None:
    @job(name="using-unique", queue="mail", unique=Unique(by=[], on_clash="replace"))
    def single(to: str) -> None: ...

    try:
        first = single.using(in_=60, max_attempts=2, expires_in=60, timeout=5).enqueue("ada")
        single.using(in_=60).enqueue("bob")
        fields = first.record().fields
        assert fields["payload"] == b'{"to":"bob"}'
        assert not {"max_attempts", "expires_in_ms", "headers"} & fields.keys()
    finally:
        forget("using-unique")
