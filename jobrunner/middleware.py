"""Code around every enqueue and every run: the middleware of a client.

A middleware is an object with some of these methods (see docs/middleware.md):

    def on_enqueue(self, task, next):    # for each task, before it is sent; adds headers
        task.headers["tenant"] = current_tenant()
        return next(task)

    def around(self, run, next):         # around a job, in the process and thread that runs it
        with tenant(run.headers["tenant"]):
            yield next(run)              # `yield`: for functions and coroutines; `return`: for functions only

    async def around_async(self, run, next):   # instead of `around`, around a coroutine job
        async with tenant(run.headers["tenant"]):
            return await next(run)

Invariants: without middleware an enqueue and an attempt only check once that there is none. No middleware can lose a
task or a result: the value or error of the job counts, unless the middleware itself raises.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from io import BytesIO
from typing import Any

import msgspec

from jobrunner.errors import InvalidOption, MiddlewareError, UsageError
from jobrunner.formatting import describe, storable
from jobrunner.logs import text_of
from jobrunner.option_names import meant

__all__ = ["LogContext"]

_METHODS = ("on_enqueue", "around", "around_async")
_LOG_HEADER = "log."
_RETURNS = "'return next(run)' cannot wait for a coroutine: write 'yield next(run)', which serves both kinds of job"
_AWAITS = (
    "'async def' serves coroutine jobs only: write 'def around' with 'yield next(run)', which serves both, or name it "
    "around_async and add a 'def around'"
)

_IN_MAIN = "{name!r} is in __main__, the program itself, which they do not import"


class _Member(msgspec.Struct, frozen=True):
    """A checked middleware."""

    name: str
    on_enqueue: Callable[[Any, Any], Any] | None
    around: Callable[[Any, Any], Any] | None
    """Around functions; around coroutine jobs as well if it is a generator and there is no `around_async`."""
    around_async: Callable[[Any, Any], Awaitable[Any]] | None
    """Around coroutine jobs; an `around` that is async, too."""
    async_name: str
    """The name of `around_async` in the class."""
    is_generator: bool

    @property
    def is_around(self) -> bool:
        """Whether it has to do with runs."""
        return self.around is not None or self.around_async is not None


class MiddlewareStack:
    """The middleware of one client, outermost first. Middleware named by texts is imported at the first use, when the
    program's modules are loaded."""

    def __init__(self, given: Iterable[object]) -> None:
        self._given = tuple(given)
        self._made: tuple[_Member, ...] | None = None
        for one in self._given:
            if not isinstance(one, str):
                _checked(one)

    @property
    def members(self) -> tuple[_Member, ...]:
        """All middleware. Raises InvalidOption for a text that names none."""
        if self._made is None:
            self._made = tuple(_checked(_imported(one) if isinstance(one, str) else one) for one in self._given)
        return self._made

    def enqueue(self, task: Any) -> None:
        """Passes a task through `on_enqueue` of all middleware. Raises their errors, and MiddlewareError."""
        step: Callable[[Any], Any] = _returned
        for member in reversed(self.members):
            if member.on_enqueue is not None:
                step = partial(_enqueue, member, step)
        step(task)

    def around(self, job: str, run: Any, work: Callable[[], Any]) -> Any:
        """Does the work of a job within all middleware, and returns its value. Raises the error of the job or of a
        middleware."""
        for member in reversed(self.members):
            if member.is_around:
                work = partial(_around, member, job, run, work)
        return work()

    def around_async(self, job: str, run: Any, work: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
        """`around` for a coroutine job."""
        for member in reversed(self.members):
            if member.is_around:
                work = partial(_around_async, member, job, run, work)
        return work()

    def check(self, jobs: Iterable[tuple[str, bool]]) -> None:
        """Raises UsageError when a middleware cannot be around one of these jobs, each with whether it is a coroutine
        function."""
        for name, is_async in jobs:
            for member in self.members:
                _check_kind(member, name, is_async)

    def pickled(self) -> bytes:
        """All middleware for a child process. Raises UsageError, also for what a child could not restore: its tasks
        would die."""
        import pickle  # most workers have no middleware

        class ChildUnpickler(pickle.Unpickler):
            def find_class(self, module: str, name: str) -> Any:
                if module == "__main__":
                    raise AttributeError(_IN_MAIN.format(name=name))
                return super().find_class(module, name)

        for one in self._given:
            try:
                if isinstance(one, str) and one.startswith("__main__:"):
                    raise AttributeError(_IN_MAIN.format(name=one.partition(":")[2]))
                ChildUnpickler(BytesIO(pickle.dumps(one))).load()
            except Exception as error:
                raise UsageError(
                    f"middleware {_name(one)} cannot be sent to child processes ({type(error).__name__}: {error}); "
                    "define its class at the top of a module, or give it as a text 'module:Name'"
                ) from error
        return pickle.dumps(self._given)


def stack_of(given: Sequence[object]) -> MiddlewareStack | None:
    """The stack of the setting `middleware`; None when it is empty. Raises InvalidOption."""
    return MiddlewareStack(given) if given else None


class LogContext:
    """A middleware that carries names of the log context from the enqueue of a task to its run.

    With `LogContext("request_id")`, a value that `structlog.contextvars.bind_contextvars(request_id=…)` bound when the
    task was enqueued is bound while its job runs, as text.
    """

    def __init__(self, *names: str) -> None:
        if not names or not all(isinstance(name, str) and name for name in names):
            raise InvalidOption(f"LogContext{describe(names)}: give the names to carry, LogContext('request_id')")
        self._names = names

    def on_enqueue(self, task: Any, next: Callable[[Any], Any]) -> Any:  # noqa: A002
        """Adds the bound values to the headers."""
        from structlog.contextvars import get_contextvars

        bound = get_contextvars()
        for name in self._names:
            if name in bound:
                task.headers[_LOG_HEADER + name] = storable(text_of(bound[name]))
        return next(task)

    def around(self, run: Any, next: Callable[[Any], Any]) -> Iterator[Any]:  # noqa: A002
        """Binds the values while the job runs."""
        from structlog.contextvars import bound_contextvars

        found = {name: run.headers[_LOG_HEADER + name] for name in self._names if _LOG_HEADER + name in run.headers}
        with bound_contextvars(**found):
            yield next(run)


class _Next:
    """The argument `next` of one middleware at one enqueue or run: records whether it was called, and the result."""

    __slots__ = ("_given", "_what", "_work", "error", "is_called", "misuse", "value")

    def __init__(self, what: str, given: Any, work: Callable[[], Any]) -> None:
        self._what = what
        self._given = given
        self._work = work
        self.is_called = False
        self.error: BaseException | None = None
        self.misuse: MiddlewareError | None = None
        self.value: Any = None

    def __call__(self, given: Any) -> Any:
        self._begin(given)
        try:
            self.value = self._work()
        except BaseException as error:
            self.error = error
            raise
        return self.value

    def result(self, consequence: str) -> Any:
        """The value of the call. Raises the error of the call, and MiddlewareError unless there was exactly one."""
        if self.misuse is not None:
            raise self.misuse
        if not self.is_called:
            raise MiddlewareError(f"{self._what} did not call next: {consequence}")
        if self.error is not None:
            raise self.error
        return self.value

    def _begin(self, given: Any) -> None:
        if self.is_called:
            self.misuse = MiddlewareError(f"{self._what} called next twice; call it once")
        elif given is not self._given:
            self.misuse = MiddlewareError(f"{self._what} called next({describe(given)}); pass its own argument on")
        if self.misuse is not None:
            raise self.misuse
        self.is_called = True


class _AsyncNext(_Next):
    """The argument `next` of one middleware around a coroutine."""

    __slots__ = ("coroutine", "is_done")

    def __call__(self, given: Any) -> Any:
        self._begin(given)
        self.is_done = False
        self.coroutine = self._run()
        return self.coroutine

    async def _run(self) -> Any:
        try:
            self.value = await self._work()
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.is_done = True
        return self.value

    def result(self, consequence: str) -> Any:
        if self.is_called and not self.is_done:
            self.coroutine.close()
            raise MiddlewareError(f"{self._what} did not await next(run): {consequence}")
        return super().result(consequence)


def _returned(task: Any) -> Any:
    return task


def _enqueue(member: _Member, inner: Callable[[Any], Any], task: Any) -> Any:
    assert member.on_enqueue is not None
    step = _Next(f"{member.name}.on_enqueue", task, partial(inner, task))
    try:
        member.on_enqueue(task, step)
        return step.result("the task is not sent; call next(task), or raise an error to refuse the task")
    finally:
        step.error = None  # its traceback holds this frame


def _around(member: _Member, job: str, run: Any, inner: Callable[[], Any]) -> Any:
    _check_kind(member, job, is_async=False)
    assert member.around is not None
    step = _Next(f"{member.name}.around", run, inner)
    try:
        returned = member.around(run, step)
        if member.is_generator:
            _drive(member, returned, step)
        return step.result(_not_run(job))
    finally:
        step.error = None


async def _around_async(member: _Member, job: str, run: Any, inner: Callable[[], Awaitable[Any]]) -> Any:
    _check_kind(member, job, is_async=True)
    own = member.around_async
    step = _AsyncNext(f"{member.name}.{'around' if own is None else member.async_name}", run, inner)
    try:
        if own is not None:
            await own(run, step)
        else:
            assert member.around is not None
            await _drive_async(member, member.around(run, step), step)
        return step.result(_not_run(job))
    finally:
        step.error = None


def _drive(member: _Member, generator: Any, step: _Next) -> None:
    """Runs the code of a generator on both sides of its `yield next(run)`."""
    try:
        value = next(generator)
    except StopIteration:
        return
    except RuntimeError as error:
        # Python raises this instead of a StopIteration within a generator. The caller raises the job's StopIteration.
        if isinstance(step.error, StopIteration) and error.__cause__ is step.error:
            return
        raise
    _finish(member, generator, partial(generator.send, value))


async def _drive_async(member: _Member, generator: Any, step: _AsyncNext) -> None:
    """`_drive` around a coroutine, which this function awaits on behalf of the generator."""
    try:
        yielded = next(generator)
    except StopIteration:
        return
    if not step.is_called or yielded is not step.coroutine:
        generator.close()
        return
    try:
        value = await yielded
    except BaseException as error:
        _finish(member, generator, partial(generator.throw, error))
        return
    _finish(member, generator, partial(generator.send, value))


def _finish(member: _Member, generator: Any, go_on: Callable[[], Any]) -> None:
    try:
        go_on()
    except StopIteration:
        return
    generator.close()
    raise MiddlewareError(f"{member.name}.around yields twice; write 'yield next(run)' once")


def _not_run(job: str) -> str:
    return f"{job} was not run; call next(run), or raise an error to end the attempt"


def _check_kind(member: _Member, job: str, is_async: bool) -> None:
    serves = member.around_async is not None or member.is_generator if is_async else member.around is not None
    if serves or not member.is_around:
        return
    method, why = ("around", _RETURNS) if is_async else (member.async_name, _AWAITS)
    raise MiddlewareError(f"{member.name}.{method} cannot be around {job}: {why}")


def _imported(text: str) -> Any:
    """Imports 'module:Name'; a class is instantiated without arguments."""
    module, _, name = text.partition(":")
    try:
        found = getattr(import_module(module), name) if module and name else None
    except (ImportError, AttributeError) as error:
        raise InvalidOption(f"middleware {text!r} cannot be imported: {error}; give 'module:Name'") from error
    if found is None:
        raise InvalidOption(f"middleware {text!r}: give 'module:Name', the name of a class or of an object")
    if not isinstance(found, type):
        return found
    try:
        return found()
    except TypeError as error:
        raise InvalidOption(f"middleware {text!r} cannot be made without arguments: {error}; name an object") from error


def _name(middleware: object) -> str:
    return middleware if isinstance(middleware, str) else type(middleware).__qualname__


def _checked(middleware: object) -> _Member:
    """Checks a middleware. Raises InvalidOption for other objects."""
    if isinstance(middleware, type):
        raise InvalidOption(f"middleware {middleware.__qualname__} is a class; give an object, {middleware.__name__}()")
    found = {name: getattr(middleware, name, None) for name in _METHODS}
    name = _name(middleware)
    if not any(callable(one) for one in found.values()):
        public = [one for one in dir(middleware) if not one.startswith("_")]
        near = next((f" (its {one!r}: did you mean {known}?)" for one in public if (known := meant(one, _METHODS))), "")
        raise InvalidOption(
            f"{describe(middleware)} is no middleware{near}; define on_enqueue(self, task, next) or "
            "around(self, run, next)"
        )
    for method, one in found.items():
        if one is not None:
            _check_method(f"{name}.{method}", one)
    on_enqueue, around, around_async = (found[name] for name in _METHODS)
    if inspect.iscoroutinefunction(on_enqueue) or inspect.isgeneratorfunction(on_enqueue):
        raise InvalidOption(f"{name}.on_enqueue is async or a generator; write 'def' with 'return next(task)'")
    if around_async is not None and not inspect.iscoroutinefunction(around_async):
        raise InvalidOption(f"{name}.around_async is not async; write 'async def' with 'return await next(run)'")
    if (is_async := inspect.iscoroutinefunction(around)) and around_async is not None:
        raise InvalidOption(f"{name}.around is async beside {name}.around_async; write 'def around' for functions")
    return _Member(
        name,
        on_enqueue,
        around=None if is_async else around,
        around_async=around if is_async else around_async,
        async_name="around" if is_async else "around_async",
        is_generator=inspect.isgeneratorfunction(around),
    )


def _check_method(name: str, method: Any) -> None:
    given = "(task, next)" if name.endswith("on_enqueue") else "(run, next)"
    if not callable(method):
        raise InvalidOption(f"{name} is {describe(method)}; define it as a method with {given}")
    if inspect.isasyncgenfunction(method):
        instead = "return await next(run)" if name.endswith("_async") else "def around' with 'yield next(run)"
        raise InvalidOption(f"{name} is an async generator; write '{instead}'")
    try:
        inspect.signature(method).bind(None, None)
    except TypeError as error:
        raise InvalidOption(f"{name} cannot be called with {given}: {error}") from error
    except ValueError:  # a callable without a signature
        return
