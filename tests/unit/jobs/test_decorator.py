"""@job validates its options at declaration: unknown and impossible options raise there."""

import asyncio
import copy
import dataclasses
import functools
import inspect
import pickle
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any, cast

import pytest
from starlette.background import BackgroundTask

from jobrunner.client.async_client import AsyncClient
from jobrunner.client.client import Client
from jobrunner.errors import (
    DuplicateJob,
    InvalidName,
    InvalidOption,
    ParameterError,
    UnknownJob,
    UnknownOption,
    UsageError,
)
from jobrunner.jobs import registry
from jobrunner.jobs.build import define
from jobrunner.jobs.decorator import job
from jobrunner.jobs.flow import chain, group
from jobrunner.jobs.job import Job, PeriodicJob
from jobrunner.jobs.options import Unique
from jobrunner.retry import Backoff
from jobrunner.schedule import Cron, Every
from jobrunner.task import Task


def plain(x: int, *, y: int = 0) -> int:
    """Adds."""
    return x + y


def test_a_class_keeps_its_name_and_options() -> None:
    @job(queue="mail", max_attempts=3, keepalive=timedelta(seconds=5), priority=2)
    class Send(Job):
        """Sends."""

        def run(self) -> None: ...

    definition = registry.lookup("Send")
    assert Send.definition is definition
    assert (definition.options.queue, definition.options.max_attempts, definition.options.keepalive) == ("mail", 3, 5.0)
    assert (definition.options.priority, definition.is_async) == (2, False)


def test_a_function_stays_callable_and_keeps_its_doc() -> None:
    declared = job()(plain)
    assert declared(1, y=2) == 3
    assert declared.__doc__ == "Adds."
    parameters = registry.lookup("plain").parameters
    assert parameters.read(parameters.write_and_read(declared.bind(1).values)[0]).x == 1


def test_a_coroutine_function_is_known_as_one() -> None:
    @job()
    async def fetch() -> None: ...

    assert fetch.definition.is_async


def test_only_the_hooks_a_job_defines_are_called() -> None:
    @job()
    class Hooked(Job):
        def run(self) -> None: ...
        def before(self) -> None: ...
        def on_dead(self, error: BaseException) -> None: ...

    definition = registry.lookup("Hooked")
    assert definition.hooks == {"before", "on_dead"}


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"quue": "x"}, UnknownOption, "did you mean 'queue'"),
        ({"max_attempt": 3}, UnknownOption, "did you mean 'max_attempts'"),
        ({"queue": "{x}"}, InvalidName, "'{x}'"),
        ({"queue": "a b"}, InvalidName, "'a b'"),
        ({"queue": "x" * 129}, InvalidName, "1 to 128"),
        ({"queue": "task"}, InvalidName, "reserved"),
        ({"name": "a/b"}, InvalidName, "job name"),
        ({"ack": ["late"]}, InvalidOption, "ack=['late']: choose"),
        ({"on_crash": {}}, InvalidOption, "on_crash={}: choose"),
        ({"priority": 3}, InvalidOption, "priority=3"),
        ({"priority": -1}, InvalidOption, "priority=-1"),
        ({"priority": True}, InvalidOption, "priority=True"),
        ({"max_attempts": -1}, InvalidOption, "max_attempts=-1"),
        ({"max_attempts": 1.5}, InvalidOption, "max_attempts=1.5"),
        ({"backoff": 3}, InvalidOption, "Backoff"),
        ({"backoff": Backoff}, InvalidOption, "give Backoff"),
        ({"retry_on": [ValueError]}, InvalidOption, "give an error class, a tuple of some, or a callable"),
        ({"executor": "processes"}, UnknownOption, "it is an option of Worker()"),
        ({"keepalive": 0}, InvalidOption, "keepalive=0"),
        ({"keepalive": 1e9}, InvalidOption, "seconds, from 0 to 31536000"),
        ({"timeout": "5s"}, InvalidOption, "timeout"),
        ({"ack": "never"}, InvalidOption, "'late'"),
        ({"result_ttl": -1}, InvalidOption, "result_ttl"),
        ({"unique": "x"}, InvalidOption, "unique='x'"),
        ({"unique": 0}, InvalidOption, "ttl=0"),
        ({"unique": Unique(by=["nope"])}, InvalidOption, "by='nope' is none of its parameters"),
        ({"unique": True, "every": 3}, InvalidOption, "overlap"),
        ({"tz": "Europe/Madrid"}, InvalidOption, "every=… or cron=…"),
    ],
)
def test_a_wrong_option_is_an_error_that_names_it(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as raised:
        job(**options)(plain)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_two_jobs_with_one_name_are_refused_and_the_same_one_again_is_not() -> None:
    job(name="twice")(plain)
    job(name="twice")(plain)

    def other() -> None: ...

    with pytest.raises(DuplicateJob, match=r"twice.*plain.*other"):
        job(name="twice")(other)


def test_a_schedule_makes_any_class_or_function_periodic() -> None:
    @job(every=timedelta(hours=1))
    class Plain(Job):
        note: str = "hourly"

        def run(self) -> None: ...

    @job(cron="0 4 * * *")
    def sweep(rows: int = 10) -> None: ...

    @job(every=60)
    async def probe() -> None: ...

    assert Plain.definition is not None
    found = [definition.periodic for definition in (Plain.definition, sweep.definition, probe.definition)]
    assert [one and one.schedule for one in found] == [Every(3600), Cron("0 4 * * *", "UTC"), Every(60)]
    assert define(Plain.definition).payload == b'{"note":"hourly"}'
    with pytest.raises(InvalidOption, match=r"class Idle\(PeriodicJob\) has no schedule: give @job every=… or cron=…"):

        @job()
        class Idle(PeriodicJob):
            def run(self) -> None: ...


def test_periodic_options_are_read() -> None:
    @job(every=timedelta(minutes=5), overlap="allow", catch_up=3)
    class Beat(PeriodicJob):
        def run(self) -> None: ...

    @job(cron="0 3 * * *", tz="Europe/Madrid")
    class Nightly(PeriodicJob):
        def run(self) -> None: ...

    beat, nightly = registry.lookup("Beat").periodic, registry.lookup("Nightly").periodic
    assert beat is not None
    assert nightly is not None
    assert (beat.schedule, beat.overlap, beat.catch_up) == (Every(300), "allow", 3)
    assert nightly.schedule == Cron("0 3 * * *", "Europe/Madrid")
    with pytest.raises(InvalidOption, match="either"):
        job(every=5, cron="* * * * *")(plain)


def test_a_periodic_job_needs_a_default_for_each_parameter() -> None:
    with pytest.raises(InvalidOption, match="give every parameter a default"):

        @job(every=5)
        class Needy(PeriodicJob):
            x: int

            def run(self) -> None: ...

    with pytest.raises(InvalidOption, match=r"give every parameter a default \(missing for x, z\)"):

        @job(every=5)
        def needy(x: int, y: int = 1, *, z: str) -> None: ...

    with pytest.raises(InvalidOption, match=r"give every parameter a default \(missing for z\)"):

        @job(every=5)
        def behind(y: int = 1, *, z: str) -> None: ...

    with pytest.raises(InvalidOption, match="give every parameter a default"):

        @job(cron="* * * * *")
        class Plain(Job):
            x: int

            def run(self) -> None: ...


def test_a_parameter_may_not_hide_what_every_job_has() -> None:
    with pytest.raises(InvalidName, match="'task'"):

        @job()
        class Hiding(Job):
            task: str  # type: ignore[assignment]

            def run(self) -> None: ...


def test_what_is_no_job_is_refused_with_the_way_to_write_it() -> None:
    with pytest.raises(UsageError, match=r"@job\('mail'\): options have names; write @job\(queue=…\)"):
        job("mail")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="options have names"):
        job(plain, 3)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match=r"\(Job\)"):
        job()(int)
    with pytest.raises(UsageError, match=r"parameter \*numbers cannot be stored: .* functools\.wraps"):
        job()(lambda *numbers: None)
    with pytest.raises(UsageError, match=r"parameter x cannot be stored: .* remove the / behind it"):
        job()(lambda x, /, y: None)


def test_a_class_is_not_enqueued_but_a_job_that_was_made_of_it() -> None:
    @job
    class Mail(Job):
        to: str

        def run(self) -> None: ...

    enqueue: Any = Mail.enqueue
    aenqueue: Any = Mail.aenqueue
    for args, options in (((), {"to": "ada"}), ((), {"in_": 3}), ((), {}), (("ada",), {}), (("ada",), {"in_": 3})):
        with pytest.raises(UsageError, match=r"make the job first, with its parameters, as SendMail\(to=…\)\.enqueue"):
            enqueue(*args, **options)
        with pytest.raises(UsageError, match=r"make the job first, with its parameters, as SendMail\(to=…\)\.aenqueue"):
            asyncio.run(aenqueue(*args, **options))


def test_a_slip_in_a_call_is_answered_with_the_way_to_write_it() -> None:
    @job(name="slips")
    class Slip(Job):
        retries = 3  # no annotation, so no parameter
        to: str = ""

        def run(self) -> None: ...

    made, anything = Slip(to="ada"), cast(Any, Slip)
    try:
        for call in (lambda: anything(retries=4), lambda: anything("ada", 4)):
            with pytest.raises(ParameterError, match=r"retries = 3 has no type, so it is .*: write retries: int$"):
                call()
        with pytest.raises(ParameterError, match=r"its parameters are to: str$"):
            anything(x=1)
        with pytest.raises(UnknownOption, match=r"'to' of Job\.enqueue\(\); it is a .*: write Slip\(to=…\)\.enqueue"):
            made.enqueue(to="bob")  # type: ignore[call-overload]
        with pytest.raises(UsageError, match=r"^enqueue\(60\): options have names, .*; parameters go into Slip\(…\)$"):
            made.enqueue(60)  # type: ignore[call-overload]
        with pytest.raises(UsageError, match=r"^aenqueue\(60\): options have names"):
            asyncio.run(made.aenqueue(60))  # type: ignore[call-overload]
        with pytest.raises(UsageError, match="make the job first"):
            anything.enqueue("ada", "bob")
        with pytest.raises(AttributeError, match=r"job class Slip has no attribute 'bind'; write Slip\(…\)$"):
            anything.bind(to="ada")
        with pytest.raises(UnknownOption, match=r"'on_dead' of chain\(\); it is an option of group\(\), .*group\(ch"):
            chain(made, on_dead=made)  # type: ignore[call-arg]
    finally:
        registry.forget("slips")


def test_the_base_class_is_not_the_decorator() -> None:
    for decorate in (lambda: cast(Any, Job)(print), lambda: cast(Any, Job)(queue="mail")):
        with pytest.raises(UsageError, match=r"^Job\(…\) is the base class of jobs, not the decorator: write @job\(\)"):
            decorate()


def test_a_default_that_cannot_be_is_an_error_that_names_class_and_parameter() -> None:
    shared = r"job class Tagged: all tasks would share the default \['new'\] of parameter tags; write tags = datacl"
    with pytest.raises(UsageError, match=shared):

        class Tagged(Job):
            tags: list[str] = ["new"]  # noqa: RUF012 - what is refused

    late = r"job class Late: parameter to has no default and comes after one that has; .* class Late\(Job, kw_only="
    with pytest.raises(UsageError, match=late):

        class Late(Job):
            tries: int = 1
            to: str


def test_a_class_without_the_decorator_cannot_be_enqueued() -> None:
    class Bare(Job):
        def run(self) -> None: ...

    with pytest.raises(UsageError, match="@job"):
        Bare().enqueue()


def test_a_subclass_does_not_inherit_the_declaration() -> None:
    @job()
    class Parent(Job):
        def run(self) -> None: ...

    class Child(Parent): ...

    with pytest.raises(UsageError, match="Child is not declared"):
        Child().enqueue()


@pytest.mark.parametrize(("args", "named"), [((), {}), ((1, 2), {}), ((1,), {"x": 2}), ((1,), {"z": 3})])
def test_arguments_that_do_not_fit_a_function_are_an_error(args: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="plain"):
        job()(plain).bind(*args, **named)


def test_a_job_nobody_knows_is_named_with_the_nearest_one() -> None:
    job(name="SendMail")(plain)
    with pytest.raises(UnknownJob, match="'SendMail'"):
        registry.lookup("SendMial")


def test_outside_a_run_there_is_no_task() -> None:
    @job()
    class Alone(Job):
        def run(self) -> None: ...

    with pytest.raises(UsageError, match="not being run"):
        _ = Alone().task


def test_what_becomes_of_it_in_a_crash_is_one_of_two() -> None:
    @job(name="patient", on_crash="wait")
    def patient() -> None: ...

    try:
        assert patient.definition.options.on_crash == "wait"
        assert registry.waiting_on_crash() is not None
    finally:
        registry.forget("patient")
    with pytest.raises(InvalidOption, match=r"on_crash='never': choose 'retry' .* or 'wait'"):
        job(name="impatient", on_crash="never")(lambda: None)


def test_without_parentheses_it_declares_classes_and_functions_with_the_defaults() -> None:
    @job
    class Bare(Job):
        """Bare."""

        x: int

        def run(self) -> int:
            return self.x

    @job
    def bare(x: int) -> int:
        return x

    @job
    async def bare_async(x: int) -> int:
        return x

    assert (Bare.definition.name, Bare.definition.options.queue) == ("Bare", "default")
    assert (bare.definition.name, bare(3), bare_async.definition.is_async) == ("bare", 3, True)


def test_the_type_of_a_result_may_be_imported_for_type_checkers_alone() -> None:
    def total(x: int) -> "ForTypeCheckers": ...  # type: ignore[name-defined]  # noqa: F821

    declared = job(total)
    wrong: Any = "1"
    with pytest.raises(ParameterError, match="must be int"):
        declared.definition.parameters.write_and_read(declared.bind(wrong).values)


def test_a_parameter_whose_type_is_not_there_is_named_with_the_remedy() -> None:
    def pay(amount: "ForTypeCheckers") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    remedy = "'ForTypeCheckers' is not defined; .*: import it outside of `if TYPE_CHECKING`, above the job"
    with pytest.raises(UsageError, match=f"job 'pay': the type of a parameter is not there: name {remedy}"):
        job(pay)

    @job
    class PayLater(Job):
        amount: "ForTypeCheckers"  # type: ignore[name-defined]  # noqa: F821

        def run(self) -> None: ...

    with pytest.raises(ParameterError, match=f"job 'PayLater': the type of a parameter is not there: name {remedy}"):
        PayLater.definition.parameters.write_and_read(PayLater(amount=1))


@pytest.mark.parametrize("annotation", ["functools.absent", "List[", "1 / 0", "int[str]"])
def test_a_type_that_cannot_be_read_is_an_error_that_names_the_job(annotation: str) -> None:
    def pay(amount): ...  # type: ignore[no-untyped-def]

    pay.__annotations__ = {"amount": annotation}
    with pytest.raises(UsageError, match=r"job 'pay': the type of a parameter \S+ .*: \S+"):
        job(pay)

    @job(name="decorator.unreadable")
    class Pay(Job):
        amount: annotation  # type: ignore[valid-type]

        def run(self) -> None: ...

    try:
        with pytest.raises(ParameterError, match=r"job 'decorator\.unreadable'.* the type of|whose type"):
            Pay.definition.parameters.write_and_read(Pay(amount=1))
        assert Pay.definition.parameters.may_run_code
    finally:
        registry.forget("decorator.unreadable")


def test_what_can_be_called_but_is_no_function_is_refused_with_the_remedy() -> None:
    def add(x: int, y: int) -> int:
        return x + y

    class Adder:
        def __call__(self, x: int) -> int:
            return x

    wrapped = functools.update_wrapper(functools.partial(add, 1), add)
    for target in (functools.partial(add, 1), wrapped, Adder(), max):
        with pytest.raises(UsageError, match=r"@job is for a function, and .* is none: write one that calls it"):
            job(name="decorator.odd")(target)
    assert registry.find("decorator.odd") is None


def test_a_generator_is_refused_as_a_worker_would_run_nothing_of_it() -> None:
    def rows() -> Iterator[int]:
        yield 1

    async def arows() -> AsyncIterator[int]:
        yield 1

    for generator in (rows, arows):
        with pytest.raises(UsageError, match=f"job '{generator.__name__}' is a generator, .*; return a list"):
            job(generator)
    with pytest.raises(UsageError, match=r"Rows\.run' is a generator"):

        @job
        class Rows(Job):
            def run(self) -> Iterator[int]:
                yield 1


def test_a_method_is_refused_as_a_task_has_no_object_to_call_it_on() -> None:
    with pytest.raises(UsageError, match="job 'greet' is a method"):

        class Greeter:
            @job
            def greet(self, name: str) -> str:
                return name

    class Adder:
        @staticmethod
        @job(name="decorator.static")
        def add(x: int) -> int:
            return x + 1

    assert Adder.add(1) == Adder().add(1) == 2
    registry.forget("decorator.static")


def test_a_class_that_could_only_fail_is_refused_where_it_is_declared() -> None:
    with pytest.raises(UsageError, match=r"NoRun has no run\(\); define def run\(self\)"):

        @job
        class NoRun(Job):
            x: int

    with pytest.raises(UsageError, match=r"Wants\.run\(self, x: int\) -> None cannot be called.*annotated attributes"):

        @job
        class Wants(Job):
            def run(self, x: int) -> None: ...  # type: ignore[override]

    with pytest.raises(UsageError, match="NoTick has no run"):

        @job(every=60)
        class NoTick(PeriodicJob): ...

    class Asks(Job):
        async def before(self) -> None: ...

    with pytest.raises(UsageError, match=r"Plain\.before is a coroutine function, .*Plain\.run is not, so nothing"):

        @job
        class Plain(Asks):
            def run(self) -> None: ...

    assert registry.find("NoRun") is None


def test_run_may_be_inherited_and_have_defaults() -> None:
    class Base(Job):
        x: int

        def run(self, again: bool = False) -> bool:
            return again

    @job
    class Derived(Base): ...

    assert Derived(x=1).run() is False


@pytest.mark.parametrize("options", [{}, {"frozen": True}, {"slots": True}])
def test_a_dataclass_over_a_job_is_refused(options: dict[str, bool]) -> None:
    class Send(Job):
        to: str

        def run(self) -> None: ...

    with pytest.raises(UsageError, match=r"job class Send needs no @dataclass: .* remove it"):
        dataclasses.dataclass(**options)(Send)  # type: ignore[call-overload]


@pytest.mark.parametrize("method", ["__init__", "__new__"])
def test_a_constructor_in_a_job_is_refused_with_the_way_to_write_it(method: str) -> None:
    with pytest.raises(UsageError, match=rf"job class Made defines {method}: a job gets its parameters by.*before\(\)"):
        type(Job)("Made", (Job,), {method: lambda self: None})


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("delay", r"enqueue\(…\)"), ("apply_async", r"enqueue\(…\)"), ("perform_async", r"enqueue\(…\)"),
        ("send", r"enqueue\(…\)"), ("perform_in", r"using\(in_=…\)"), ("s", r"bind\(…\)"), ("chunks", "enqueue_many"),
    ],
)  # fmt: skip
def test_methods_of_other_frameworks_are_answered_with_ours(name: str, here: str) -> None:
    @job
    class Foreign(Job):
        def run(self) -> None: ...

    for owner in (job(plain), Foreign, Foreign()):
        with pytest.raises(AttributeError, match=rf"has no attribute '{name}'; write {here}"):
            getattr(owner, name)
        assert not hasattr(owner, "nothing_like_it")


@pytest.mark.parametrize("make", [chain, group])
def test_those_of_flows_and_calls_too(make: Callable[..., Any]) -> None:
    call = job(plain).bind(1)
    for owner in (call, make(call)):
        with pytest.raises(AttributeError, match=r"has no attribute 'apply_async'; write enqueue\(…\)"):
            owner.apply_async()
        assert not hasattr(owner, "nothing_like_it")
        assert copy.copy(owner).__class__ is owner.__class__
    with pytest.raises(UsageError, match=r"write chain\(…, …\)"):
        call | call  # type: ignore[operator]
    with pytest.raises(UnknownOption, match="did you mean 'on_success'"):
        group(call, callback=call)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("enqueue", r"push\(…\) for a payload, or send_mail\.enqueue\(…\) for a job"), ("get", r"reserve\("),
        ("qsize", r"counts\(\)"), ("fetch_job", r"client\.task\("), ("upsertJobScheduler", r"client\.add_periodic\("),
    ],
)  # fmt: skip
def test_methods_of_queues_elsewhere_are_answered_with_those_here(name: str, here: str) -> None:
    nowhere = "redis://127.0.0.1:1"
    for owner in (Client(nowhere).queue("q"), AsyncClient(nowhere).queue("q")):
        with pytest.raises(AttributeError, match=rf"Queue' object has no attribute '{name}'; write {here}"):
            getattr(owner, name)
        assert not hasattr(owner, "nothing_like_it")


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("send_task", r"send_mail\.enqueue\(…\) for a job"), ("AsyncResult", r"task\(id\)"),
        ("revoke", r"task\(id\)\.cancel\("), ("schedule", r"add_periodic\("), ("inspect", r"workers\(\)"),
    ],
)  # fmt: skip
def test_methods_of_clients_elsewhere_are_answered_with_those_here(name: str, here: str) -> None:
    for owner in (Client("redis://127.0.0.1:1"), AsyncClient("redis://127.0.0.1:1")):
        with pytest.raises(AttributeError, match=rf"Client' object has no attribute '{name}'; write {here}"):
            getattr(owner, name)
        assert not hasattr(owner, "nothing_like_it")


@pytest.mark.parametrize("arguments", [(1,), ()])
@pytest.mark.parametrize("named", [{"x": 1}, {}])
def test_a_client_that_is_given_a_function_and_its_arguments_names_the_call(
    arguments: tuple[int, ...], named: dict[str, int]
) -> None:
    for sent in (job(plain), "plain"):
        with pytest.raises(UsageError, match=r"a job sends itself: plain\.enqueue\(…\)"):
            Client("redis://127.0.0.1:1").enqueue(sent, *arguments, **named)  # type: ignore[call-overload,arg-type]
        with pytest.raises(UsageError, match=r"a job sends itself: plain\.enqueue\(…\)"):
            asyncio.run(AsyncClient("redis://127.0.0.1:1").enqueue(sent, *arguments, **named))  # type: ignore[arg-type]


def test_a_client_sends_one_task_at_a_time() -> None:
    task = Task(id="a", queue="q", payload=b"1")
    with pytest.raises(UsageError, match=r"sends one task and got 2 arguments: send many with enqueue_many\(\[…\]\)"):
        Client("redis://127.0.0.1:1").enqueue(task, task)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "here"),
    [("get", r"result\(timeout=…\)"), ("status", r"record\(\)\.state"), ("ready", r"record\(\)\.state"),
     ("return_value", r"result\("), ("traceback", "error"), ("revoke", r"cancel\(\)"), ("info", r"record\(\)\.prog")],
)  # fmt: skip
def test_members_of_results_elsewhere_are_answered_with_those_of_a_handle(name: str, here: str) -> None:
    nowhere = "redis://127.0.0.1:1"
    for owner in (Client(nowhere).task("x", queue="q"), AsyncClient(nowhere).task("x", queue="q")):
        with pytest.raises(AttributeError, match=rf"TaskHandle' object has no attribute '{name}'; write {here}"):
            getattr(owner, name)
        assert not hasattr(owner, "nothing_like_it")
        assert copy.copy(owner).id == "x"


def test_bind_and_ignore_result_of_celery_are_answered() -> None:
    with pytest.raises(UnknownOption, match=r"'bind' of @job; in the job, current_task\(\) is the task that runs"):
        job(plain, bind=True)
    with pytest.raises(UnknownOption, match="'ignore_result' of @job; did you mean 'result_ttl'"):
        job(plain, ignore_result=True)
    with pytest.raises(UnknownOption, match=r"it is called 'rate' here, and is an option of queue\(\) and Queue\.conf"):
        job(plain, rate_limit="10/s")


def test_a_parameter_may_have_the_name_of_a_foreign_method() -> None:
    @job
    class Late(Job):
        delay: int

        def run(self) -> int:
            return self.delay

    assert Late(delay=3).run() == 3


@job(name="decorator.doubled")
def doubled(x: int) -> int:
    return 2 * x


@job(name="decorator.fetched")
async def fetched(x: int) -> None:
    called.append(x)


called: list[int] = []


def test_a_declared_function_is_still_one_to_frameworks_and_process_pools() -> None:
    """Starlette's background tasks called a coroutine function that they did not take for one, and never awaited it."""
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    assert copy.deepcopy({"call": doubled})["call"] is doubled
    with pytest.raises(pickle.PicklingError, match="not the same object"):
        pickle.dumps(doubled.using(in_=5))
    assert asyncio.iscoroutinefunction(fetched)
    assert asyncio.iscoroutinefunction(fetched.using(in_=5))
    assert not asyncio.iscoroutinefunction(doubled)
    if sys.version_info >= (3, 12):
        assert inspect.iscoroutinefunction(fetched)
        assert not inspect.iscoroutinefunction(doubled)
    asyncio.run(BackgroundTask(fetched, 3)())
    assert called == [3]
