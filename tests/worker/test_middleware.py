"""Middleware: around every enqueue and every run, in each executor; and what becomes of one that misbehaves."""

import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import structlog

from jobrunner import AsyncClient, Backoff, Cancel, Client, Fail, Item, Job, Retry, Worker, chain, configure, group, job
from jobrunner.client.current import forget as forget_client
from jobrunner.errors import InvalidOption, MiddlewareError, TaskFailed, UsageError
from jobrunner.etl import Pipeline
from jobrunner.jobs.registry import forget
from jobrunner.middleware import LogContext
from jobrunner.testing import inline
from jobrunner.testing.worker import JobrunnerWorker, Travel
from tests.worker import stacked_jobs as jobs
from tests.worker.stacked_jobs import Tenant, tenant


class Note:
    """Writes down what passes it."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name = name
        self.seen = seen

    def on_enqueue(self, task: Any, next: Any) -> Any:
        self.seen.append(f"{self.name} sends {task.job or task.queue}")
        return next(task)

    def around(self, run: Any, next: Any) -> Any:
        self.seen.append(f"{self.name} begins {run.job}")
        try:
            yield next(run)
        finally:
            self.seen.append(f"{self.name} ends {run.job}")


class Plain(Note):
    """The same for functions only."""

    def around(self, run: Any, next: Any) -> Any:
        self.seen.append(f"{self.name} begins {run.job}")
        value = next(run)
        self.seen.append(f"{self.name} ends {run.job}: {value}")
        return value


class Awaiting(Note):
    """The same for coroutine functions only."""

    async def around(self, run: Any, next: Any) -> Any:
        self.seen.append(f"{self.name} begins {run.job}")
        value = await next(run)
        self.seen.append(f"{self.name} ends {run.job}: {value}")
        return value


@pytest.fixture
def declare() -> Iterator[Callable[..., Any]]:
    """declare(name, **options): @job of a job that is forgotten behind the test."""
    names: list[str] = []

    def declared(name: str, **options: Any) -> Any:
        names.append(name)
        return job(**{"name": name, "queue": "stacked", "result_ttl": 60, **options})

    yield declared
    for name in names:
        forget(name)


@pytest.fixture
def using(server: Any, keys: Any) -> Iterator[Callable[..., Client]]:
    """using(a, b, …): the client of this process, with that middleware."""
    yield lambda *middleware, **options: configure(server.url, keys.prefix, middleware=list(middleware), **options)
    forget_client()


def work(**options: Any) -> None:
    Worker(queues=options.pop("queues", ["stacked"]), **options).run(burst=True)


def error_of(handle: Any) -> str:
    return str(handle.record().error)


def test_the_first_is_outermost_around_functions_classes_and_coroutines(using: Any, declare: Any) -> None:
    seen: list[str] = []
    using(Note("a", seen), Note("b", seen))

    @declare("f")
    def function() -> int:
        seen.append("runs")
        return 1

    @declare("c")
    class Class(Job):
        def before(self) -> None:
            seen.append("before")

        def run(self) -> int:
            return 2

    @declare("co")
    async def coroutine() -> int:
        await asyncio.sleep(0)
        return 3

    for made, value in ((function.enqueue, 1), (Class().enqueue, 2), (coroutine.enqueue, 3)):
        handle = made()
        work()
        assert handle.result(timeout=30) == value
    assert seen[:7] == [
        "a sends f", "b sends f", "a begins f", "b begins f", "runs", "b ends f", "a ends f",
    ]  # fmt: skip
    assert seen[7:14] == [
        "a sends c", "b sends c", "a begins c", "b begins c", "before", "b ends c", "a ends c",
    ]  # fmt: skip
    assert seen[-4:] == ["a begins co", "b begins co", "b ends co", "a ends co"]


def test_a_stop_iteration_of_a_job_is_its_error_behind_a_generator_too(using: Any, declare: Any) -> None:
    """It was a RuntimeError of Python's, "generator raised StopIteration", which `retry_on` did not know."""
    using(Note("a", []), Note("b", []))
    ran: list[int] = []

    @declare("empty", max_attempts=2, retry_on=StopIteration, backoff=Backoff(base=0))
    def empty() -> None:
        ran.append(1)
        next(iter([]))

    handle = empty.enqueue()
    Worker(queues=["stacked"]).run(drain=True)
    assert len(ran) == 2
    assert error_of(handle).startswith("StopIteration")


def test_plain_and_async_around_see_what_the_job_returned(using: Any, declare: Any) -> None:
    seen: list[str] = []
    using(Plain("a", seen))
    function = declare("f")(lambda: 7)
    handle = function.enqueue()
    work()
    assert handle.result(timeout=30) == 7
    assert seen[-1] == "a ends f: 7"
    forget("f")

    using(Awaiting("b", seen))

    @declare("co")
    async def coroutine() -> int:
        return 8

    awaited = coroutine.enqueue()
    work()
    assert awaited.result(timeout=30) == 8
    assert seen[-1] == "b ends co: 8"


def test_what_is_returned_by_around_does_not_replace_the_result(using: Any, declare: Any) -> None:
    class Forgetful:
        def around(self, run: Any, next: Any) -> None:
            next(run)

    using(Forgetful())
    handle = declare("f")(lambda: 7).enqueue()
    work()
    assert handle.result(timeout=30) == 7


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_header_of_the_enqueue_is_there_around_the_run(using: Any, executor: str) -> None:
    """Jobs in a child use the server and the middleware of the worker, whatever a module configured there."""
    client = using(Tenant())
    handles = []
    for name in ("ada", "bob"):
        before = tenant.set(name)
        handles += [jobs.in_child.enqueue(), jobs.in_child_awaited.enqueue()]
        parent = jobs.enqueues.enqueue()
        tenant.reset(before)
    work(queues=["children"], modules=["tests.worker.stacked_jobs"], executor=executor, concurrency=2)
    assert [handle.result(timeout=30) for handle in handles] == ["ada", "ada", "bob", "bob"]
    runs, child = parent.result(timeout=30)
    assert runs in (1, 2)  # of two
    assert client.task(child).result(timeout=30) == "bob"


def test_what_ends_a_child_process_is_seen_by_hooks_alone(using: Any, tmp_path: Path) -> None:
    using(jobs.Errors(str(tmp_path / "seen")))
    jobs.died.clear()
    for one in (jobs.Hangs(), jobs.Crashes(), jobs.Raises()):
        one.enqueue()
    work(queues=["dying"], modules=["tests.worker.stacked_jobs"], executor="processes", concurrency=1)
    assert sorted(jobs.died) == ["Crashes AttemptCrashed", "Hangs AttemptTimeout"]  # those of the others: in the child
    assert (tmp_path / "seen").read_text() == "Raises ValueError\n"


def test_batches_flows_bare_queues_and_the_async_client_pass_it(using: Any, declare: Any, server: Any) -> None:
    client = using(Tenant())
    tenant_of = declare("t")(lambda: tenant.get())
    before = tenant.set("ada")
    many = tenant_of.enqueue_many([tenant_of.bind() for _ in range(3)])
    chained = chain(tenant_of.bind(), tenant_of.bind()).enqueue()
    grouped = group(tenant_of.bind(), tenant_of.bind()).enqueue()
    client.queue("bare").push({"n": 1})

    async def send() -> str:
        async with AsyncClient(server.url, client.settings.prefix, middleware=[Tenant()]) as twin:
            await twin.queue("bare").push_many([{"n": 2}, Item({"n": 3}, headers={"own": "yes"})])
        handle = await tenant_of.aenqueue()
        return handle.id

    awaited = asyncio.run(send())
    tenant.reset(before)
    work()
    assert [handle.result(timeout=30) for handle in many] == ["ada"] * 3
    assert chained.result(timeout=30) == "ada"
    assert grouped.result(timeout=30) == ["ada", "ada"]
    assert client.task(awaited).result(timeout=30) == "ada"
    found = [lease.headers for lease in client.queue("bare").reserve(3)]
    assert found == [{"tenant": "ada"}, {"tenant": "ada"}, {"own": "yes", "tenant": "ada"}]


def test_stations_and_what_they_fan_out_keep_the_headers(using: Any) -> None:
    client = using(Tenant())
    line = Pipeline("stacked", client)
    seen: list[str] = []

    @line.station("in", to="parts", fan_out=True)
    def split(item: Any) -> list[int]:
        seen.append(tenant.get())
        return [1, 2]

    @line.sink("parts")
    async def keep(item: Any) -> None:
        seen.append(tenant.get())

    before = tenant.set("ada")
    line.push("in", {"n": 1})
    tenant.reset(before)
    work(queues=["stacked/in", "stacked/parts"])
    assert seen == ["ada"] * 3


def test_a_periodic_tick_runs_within_it(using: Any, declare: Any) -> None:
    seen: list[str] = []
    travel = Travel()
    client = using(Note("a", seen), now_ms=travel)
    declare("tick", every=60)(lambda: None)
    worker = JobrunnerWorker(client, travel)
    travel.forward(61)
    worker.run(queues=["stacked"])
    assert seen == ["a begins tick", "a ends tick"]


def test_headers_are_added_before_payloads_are_encrypted(using: Any, declare: Any) -> None:
    using(Tenant(), payload_keys=["AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="], payload_encryption="sign")
    handle = declare("t")(lambda: tenant.get()).enqueue()
    work()
    assert handle.result(timeout=30) == "public"


def test_inline_jobs_run_within_it(using: Any, declare: Any) -> None:
    seen: list[str] = []
    using(Note("a", seen), Tenant())
    tenant_of = declare("t")(lambda: tenant.get())
    with inline():
        assert tenant_of.enqueue().result() == "public"
    assert seen == ["a sends t", "a begins t", "a ends t"]


def test_the_log_context_travels(using: Any, declare: Any) -> None:
    using(LogContext("request_id"))
    context = declare("log")(lambda: structlog.contextvars.get_contextvars())
    with structlog.contextvars.bound_contextvars(request_id="r-1", other="no"):
        handle, bare = context.enqueue(), None
    bare = context.enqueue()
    work()
    assert handle.result(timeout=30) == {"request_id": "r-1"}
    assert bare.result(timeout=30) == {}


class Unprintable:
    """A value without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no")


def test_a_log_context_that_no_header_can_have_keeps_nothing_from_being_enqueued(using: Any, declare: Any) -> None:
    """As the name of a file that is no UTF-8: a log line takes it, and the enqueue was refused."""
    using(LogContext("path", "request"))
    context = declare("log")(lambda: structlog.contextvars.get_contextvars())
    with structlog.contextvars.bound_contextvars(path="caf\udce9.txt", request=Unprintable()):
        handle = context.enqueue()
    work()
    said = handle.result(timeout=30)
    assert said["path"] == "caf\\udce9.txt"
    assert said["request"].startswith("(Unprintable cannot be written")


def test_texts_name_classes_and_objects_also_in_the_environment_and_the_file(
    server: Any, keys: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = "tests.worker.stacked_jobs:Tenant"
    before = tenant.set("ada")
    with Client(server.url, keys.prefix, middleware=[named]) as client:
        client.queue("bare").push(1)
    monkeypatch.setenv("JOBRUNNER_MIDDLEWARE", named)
    with Client(server.url, keys.prefix) as client:
        client.queue("bare").push(2)
    monkeypatch.delenv("JOBRUNNER_MIDDLEWARE")
    (tmp_path / "pyproject.toml").write_text(f'[tool.jobrunner]\nmiddleware = ["{named}"]\n')
    monkeypatch.chdir(tmp_path)
    with Client(server.url, keys.prefix) as client:
        client.queue("bare").push(3)
        assert [lease.headers for lease in client.queue("bare").reserve(3)] == [{"tenant": "ada"}] * 3
    tenant.reset(before)


class _Misbehaving:
    """A middleware that does wrong with the jobs named 'bad' and nothing with others."""

    def around(self, run: Any, next: Any) -> Any:
        if run.job == "bad":
            return self.wrong(run, next)
        return next(run)

    def wrong(self, run: Any, next: Any) -> Any:
        raise NotImplementedError


class RaisesBefore(_Misbehaving):
    def wrong(self, run: Any, next: Any) -> Any:
        raise ValueError("no session")


class RaisesAfter(_Misbehaving):
    def wrong(self, run: Any, next: Any) -> Any:
        next(run)
        raise ValueError("no commit")


class Forgets(_Misbehaving):
    def wrong(self, run: Any, next: Any) -> Any:
        return None


class CallsTwice(_Misbehaving):
    def wrong(self, run: Any, next: Any) -> Any:
        next(run)
        try:
            return next(run)
        except MiddlewareError:
            return None


class PassesAnother(_Misbehaving):
    def wrong(self, run: Any, next: Any) -> Any:
        return next("another")


@pytest.mark.parametrize(
    ("middleware", "ran", "error"),
    [
        (RaisesBefore(), 0, "ValueError: no session"),
        (RaisesAfter(), 1, "ValueError: no commit"),
        (Forgets(), 0, "MiddlewareError: Forgets.around did not call next: job 'bad' was not run; call next(run)"),
        (CallsTwice(), 1, "MiddlewareError: CallsTwice.around called next twice; call it once"),
        (PassesAnother(), 0, "MiddlewareError: PassesAnother.around called next('another'); pass its own argument on"),
    ],
)
def test_a_middleware_that_misbehaves_fails_the_attempt_and_no_neighbour(
    using: Any, declare: Any, middleware: Any, ran: int, error: str
) -> None:
    using(middleware)
    runs: list[str] = []
    bad = declare("bad", max_attempts=1)(lambda: runs.append("bad"))
    good = declare("good")(lambda: 1)
    handles = bad.enqueue(), good.enqueue()
    work()
    assert error in error_of(handles[0])
    assert handles[0].state == "dead"
    assert len(runs) == ran
    assert handles[1].result(timeout=30) == 1


class AsyncForgets:
    async def around(self, run: Any, next: Any) -> Any:
        return None


class AsyncDoesNotAwait:
    async def around(self, run: Any, next: Any) -> Any:
        next(run)


class AsyncTwice:
    async def around(self, run: Any, next: Any) -> Any:
        await next(run)
        await next(run)


class YieldsTwice:
    def around(self, run: Any, next: Any) -> Any:
        yield next(run)
        yield


class YieldsNothing:
    def around(self, run: Any, next: Any) -> Any:
        yield


class AsyncRaises:
    async def around(self, run: Any, next: Any) -> Any:
        await next(run)
        raise ValueError("no commit")


@pytest.mark.parametrize(
    ("middleware", "ran", "error"),
    [
        (AsyncForgets(), 0, "MiddlewareError: AsyncForgets.around did not call next: job 'bad' was not run"),
        (AsyncDoesNotAwait(), 0, "MiddlewareError: AsyncDoesNotAwait.around did not await next(run): job 'bad' was"),
        (AsyncTwice(), 1, "MiddlewareError: AsyncTwice.around called next twice"),
        (YieldsTwice(), 1, "MiddlewareError: YieldsTwice.around yields twice; write 'yield next(run)' once"),
        (YieldsNothing(), 0, "MiddlewareError: YieldsNothing.around did not call next"),
        (AsyncRaises(), 1, "ValueError: no commit"),
    ],
)
def test_the_same_around_coroutines(using: Any, declare: Any, middleware: Any, ran: int, error: str) -> None:
    using(middleware)
    runs: list[str] = []

    @declare("bad", max_attempts=1)
    async def bad() -> None:
        runs.append("bad")

    handle = bad.enqueue()
    work()
    assert error in error_of(handle)
    assert len(runs) == ran


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_passes_all_and_one_that_is_swallowed_counts_all_the_same(
    using: Any, declare: Any, is_async: bool
) -> None:
    seen: list[str] = []

    class Swallows:
        def around(self, run: Any, next: Any) -> Any:
            try:
                yield next(run)
            except ValueError as error:
                seen.append(str(error))

    using(Note("a", seen), Swallows())

    async def fails_async() -> None:
        raise ValueError("of the job")

    def fails() -> None:
        raise ValueError("of the job")

    handle = declare("f", max_attempts=1)(fails_async if is_async else fails).enqueue()
    work()
    assert "ValueError: of the job" in error_of(handle)
    assert seen == ["a sends f", "a begins f", "of the job", "a ends f"]


def test_a_plain_middleware_runs_in_the_event_loop_of_a_coroutine_job(using: Any, declare: Any) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    class Around:
        def around(self, run: Any, next: Any) -> Any:
            loops.append(asyncio.get_running_loop())
            yield next(run)

    using(Around())

    @declare("waits")
    async def waits() -> None:
        loops.append(asyncio.get_running_loop())

    waits.enqueue()
    work()

    assert len(loops) == 2
    assert loops[0] is loops[1]


@pytest.mark.parametrize("is_generator", [True, False])
def test_around_async_serves_coroutine_jobs_and_around_beside_it_functions(
    using: Any, declare: Any, is_generator: bool
) -> None:
    """A session of an asyncio driver, and one that blocks, in one worker with both kinds of jobs."""
    seen: list[str] = []

    class Returns:
        def around(self, run: Any, next: Any) -> Any:
            seen.append(f"plain {run.job}")
            return next(run)

        async def around_async(self, run: Any, next: Any) -> Any:
            await asyncio.sleep(0)
            seen.append(f"async {run.job}")
            try:
                return await next(run)
            finally:
                await asyncio.sleep(0)
                seen.append(f"closed {run.job}")

    class Yields(Returns):
        def around(self, run: Any, next: Any) -> Any:
            seen.append(f"plain {run.job}")
            yield next(run)

    using(Note("outer", seen), Yields() if is_generator else Returns())

    @declare("co")
    async def coroutine() -> str:
        return "awaited"

    @declare("fails", max_attempts=1)
    async def fails() -> None:
        raise ValueError("of the job")

    function, failed = declare("f")(lambda: "called").enqueue(), fails.enqueue()
    awaited = coroutine.enqueue()
    work()

    assert (function.result(timeout=0), awaited.result(timeout=0)) == ("called", "awaited")
    assert "ValueError: of the job" in error_of(failed)
    assert sorted(line for line in seen if "outer" not in line) == [
        "async co", "async fails", "closed co", "closed fails", "plain f",
    ]
    with inline():
        assert coroutine.enqueue().result() == "awaited"
    assert seen.count("closed co") == 2


def test_around_async_alone_serves_no_functions(using: Any, declare: Any) -> None:
    class Alone:
        async def around_async(self, run: Any, next: Any) -> Any:
            return await next(run)

    using(Alone())
    declare("f")(lambda: 1).enqueue()
    with pytest.raises(MiddlewareError, match=r"Alone\.around_async cannot be around job 'f': .* add a 'def around'"):
        work()


def test_a_worker_does_not_start_with_middleware_that_cannot_be_around_its_stations_on_spark(using: Any) -> None:
    """It did, and each batch failed."""

    class Alone:
        async def around(self, run: Any, next: Any) -> Any:
            return await next(run)

    using(Alone())
    pipeline = Pipeline("orders")
    pipeline.spark_sink("late", schema="n int")(lambda df, spark, batch: None)
    pipeline.apply()
    with pytest.raises(MiddlewareError, match=r"Alone\.around cannot be around the station on Spark of 'orders/late'"):
        Worker(queues=["orders/late"]).run(drain=True)


def test_a_middleware_may_steer(using: Any, declare: Any) -> None:
    class Later:
        def around(self, run: Any, next: Any) -> Any:
            if run.attempt == 1:
                raise Retry(in_=0)
            yield next(run)

    using(Later())
    handle = declare("f")(lambda: 5).enqueue()
    Worker(queues=["stacked"]).run(drain=True)
    assert handle.result(timeout=30) == 5


def test_a_worker_does_not_start_with_middleware_that_cannot_be_around_its_jobs(using: Any, declare: Any) -> None:
    using(Awaiting("a", []))
    handle = declare("f")(lambda: 1).enqueue()
    with pytest.raises(MiddlewareError, match=r"Awaiting\.around cannot be around job 'f': 'async def' serves cor"):
        work()
    assert handle.state == "waiting"

    using(Plain("a", []))
    forget("f")

    @declare("co")
    async def coroutine() -> None: ...

    with pytest.raises(MiddlewareError, match=r"Plain\.around cannot be around job 'co': 'return next\(run\)' cannot"):
        work()
    work(queues=["unwrapped"])


def test_children_are_not_started_with_middleware_that_cannot_be_sent(using: Any) -> None:
    class Local:
        def around(self, run: Any, next: Any) -> Any:
            yield next(run)

    using(Local())
    with pytest.raises(UsageError, match=r"Local cannot be sent to child processes .* give it as a text 'module:Name'"):
        work(executor="processes")


class OfTheProgram:
    """Middleware in the file of the program itself."""

    def around(self, run: Any, next: Any) -> Any:
        yield next(run)


class CannotBeRestored(OfTheProgram):
    """Middleware that can be pickled, and no more."""

    def __getstate__(self) -> Any:
        return {"lock": "open"}

    def __setstate__(self, _: Any) -> None:
        raise RuntimeError("the lock is gone")


def test_children_are_not_started_with_middleware_that_they_cannot_restore(
    using: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker started, and each of its tasks died."""
    using(CannotBeRestored())
    with pytest.raises(UsageError, match=r"CannotBeRestored cannot be sent to child .*RuntimeError: the lock is gone"):
        work(executor="processes")

    monkeypatch.setattr(OfTheProgram, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "OfTheProgram", OfTheProgram, raising=False)
    for own in (OfTheProgram(), "__main__:OfTheProgram"):
        using(own)
        with pytest.raises(UsageError, match=r"OfTheProgram.*'OfTheProgram' is in __main__, the program itself"):
            work(executor="processes")


def test_enqueueing_fails_with_the_middleware_and_sends_nothing(using: Any, declare: Any) -> None:
    class Refuses:
        def on_enqueue(self, task: Any, next: Any) -> Any:
            if self.what == "raises":
                raise PermissionError("not in this tenant")
            if self.what == "twice":
                next(task)
                return next(task)
            if self.what == "headers":
                task.headers["n"] = 1
                return next(task)
            if self.what == "assigns":
                task.payload = b"{}"
            return None

        what = "raises"

    refuses = Refuses()
    client = using(refuses)
    function = declare("f")(lambda: 1)
    for what, raised, message in (
        ("raises", PermissionError, "not in this tenant"),
        ("forgets", MiddlewareError, r"Refuses\.on_enqueue did not call next: the task is not sent; call next\(task\)"),
        ("twice", MiddlewareError, r"Refuses\.on_enqueue called next twice"),
        ("headers", InvalidOption, r"header 'n': 1: give strings"),
        ("assigns", MiddlewareError, r"task\.payload of on_enqueue cannot be assigned: add entries to task\.headers"),
    ):
        refuses.what = what
        with pytest.raises(raised, match=message):
            function.enqueue()
        with pytest.raises(raised, match=message):
            function.enqueue_many([function.bind()])
        with pytest.raises(raised, match=message):
            asyncio.run(function.aenqueue())
        with pytest.raises(raised, match=message):
            client.queue("stacked").push(1)
        with pytest.raises(raised, match=message):
            chain(function.bind(), function.bind()).enqueue()
    assert client.queue("stacked").counts()["waiting"] == 0


class NoMethods:
    def on_enque(self, task: Any, next: Any) -> None: ...


class TooFew:
    def around(self, run: Any) -> None: ...


class AsyncEnqueue:
    async def on_enqueue(self, task: Any, next: Any) -> None: ...


class AsyncGenerator:
    async def around(self, run: Any, next: Any) -> Any:
        yield


class AsyncGeneratorBeside:
    async def around_async(self, run: Any, next: Any) -> Any:
        yield


class PlainAsync:
    def around_async(self, run: Any, next: Any) -> Any:
        return next(run)


class TwiceAsync(PlainAsync):
    async def around(self, run: Any, next: Any) -> Any: ...
    async def around_async(self, run: Any, next: Any) -> Any: ...


class NotCallable:
    around = "yes"
    on_enqueue = None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([Tenant], "middleware Tenant is a class; give an object, Tenant()"),
        ([NoMethods()], "is no middleware (its 'on_enque': did you mean 'on_enqueue'?); define on_enqueue(self, task"),
        ([3], "3 is no middleware; define on_enqueue"),
        ([TooFew()], "TooFew.around cannot be called with (run, next): too many positional arguments"),
        ([AsyncEnqueue()], "AsyncEnqueue.on_enqueue is async or a generator; write 'def' with 'return next(task)'"),
        ([AsyncGenerator()], "AsyncGenerator.around is an async generator; write 'def around' with 'yield next(run)'"),
        ([AsyncGeneratorBeside()], "AsyncGeneratorBeside.around_async is an async generator; write 'return await next"),
        ([PlainAsync()], "PlainAsync.around_async is not async; write 'async def' with 'return await next(run)'"),
        ([TwiceAsync()], "TwiceAsync.around is async beside TwiceAsync.around_async; write 'def around' for functions"),
        ([NotCallable()], "no middleware"),
        (Tenant(), "give a list, [Tenant()] or ['app.middleware:Tenant']"),
        ("app:Tenant", "middleware='app:Tenant': give a list"),
    ],
)
def test_what_is_no_middleware_is_refused_at_once(server: Any, keys: Any, given: Any, message: str) -> None:
    with pytest.raises(InvalidOption) as raised:
        Client(server.url, keys.prefix, middleware=given)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere_at_all:Tenant", "cannot be imported: No module named 'nowhere_at_all'"),
        ("tests.worker.stacked_jobs:Missing", "has no attribute 'Missing'; give 'module:Name'"),
        ("tests.worker.stacked_jobs", "give 'module:Name', the name of a class or of an object"),
        ("jobrunner.middleware:LogContext", "give the names to carry"),
        ("tests.worker.test_middleware:Note", "cannot be made without arguments"),
    ],
)
def test_a_text_that_names_no_middleware_says_so_at_the_first_use(
    server: Any, keys: Any, text: str, message: str
) -> None:
    with Client(server.url, keys.prefix, middleware=[text]) as client, pytest.raises(InvalidOption) as raised:
        client.queue("bare").push(1)
    assert message in str(raised.value)


def test_the_example_for_sentry_reports_errors_and_no_steering(
    using: Any, declare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "middleware.md").read_text("utf-8")
    code = next(code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "import sentry_sdk" in code)
    captured: list[tuple[str, Any]] = []
    tags: dict[str, Any] = {}

    @contextmanager
    def isolation_scope() -> Iterator[Any]:
        yield SimpleNamespace(set_tags=tags.update)

    stand_in = ModuleType("sentry_sdk")
    vars(stand_in).update(
        isolation_scope=isolation_scope, capture_exception=lambda error: captured.append((tags["task"], error))
    )
    monkeypatch.setitem(sys.modules, "sentry_sdk", stand_in)
    names: dict[str, Any] = {}
    exec(code, names)
    using(names["Sentry"]())

    @declare("fails", max_attempts=1)
    async def fails() -> None:
        raise ValueError("of the job")

    @declare("steers")
    def steers() -> None:
        raise Cancel

    @declare("returns")
    def returns() -> Any:
        return Fail("returned", retry=False)

    @declare("exits", max_attempts=1)
    def exits() -> None:
        sys.exit("of a library")

    @declare("returns_later")
    async def returns_later() -> Any:
        return Retry("later")

    handles = [fails.enqueue(), returns.enqueue(), exits.enqueue()]
    steers.enqueue()
    returns_later.enqueue()
    work(concurrency=1)
    assert [(task, str(error)) for task, error in captured] == [
        (handle.id, said) for handle, said in zip(handles, ("of the job", "returned", "of a library"), strict=True)
    ]


def test_the_example_with_an_asyncio_driver_commits_and_rolls_back_both_kinds_of_jobs(
    using: Any, declare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    pytest.importorskip("aiosqlite")
    page = (Path(__file__).parents[2] / "docs" / "middleware.md").read_text("utf-8")
    code = next(code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "create_async_engine" in code)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    with names["engine"].begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE orders (article TEXT)"))
    using(names["Sessions"]())
    insert = sqlalchemy.text("INSERT INTO orders VALUES (:article)")

    @declare("order")
    def order(article: str) -> None:
        names["session"].get().execute(insert, {"article": article})
        if article == "bad":
            raise ValueError(article)

    @declare("order_async")
    async def order_async(article: str) -> None:
        await names["session"].get().execute(insert, {"article": article})
        if article == "bad":
            raise ValueError(article)

    for article in ("tea", "bad"):
        order.enqueue(article)
        order_async.enqueue(f"async {article}" if article == "tea" else article)
    work(concurrency=1)

    with names["engine"].begin() as connection:
        found = connection.execute(sqlalchemy.text("SELECT article FROM orders")).scalars().all()
    assert sorted(found) == ["async tea", "tea"]
    names["engine"].dispose()


def test_an_inline_job_whose_middleware_misbehaves_fails(using: Any, declare: Any) -> None:
    using(Forgets())
    bad = declare("bad")(lambda: 1)
    with inline(), pytest.raises(TaskFailed, match=r"Forgets\.around did not call next"):
        bad.enqueue()
