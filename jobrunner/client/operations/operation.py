"""Operations written once, for threads and for asyncio.

An operation is a generator. It yields what it wants of the server, is sent the answer, and returns its value; it never
talks to the server itself, so `run_operation` runs it with a Broker and `run_operation_async` with an AsyncBroker. What
it may yield: a list of calls (one round trip; the answer is their values), a list of them as `EachReply`, `Durable` or
`Uninterrupted`, an `InThread`, or a `Wait` (hints.py has them). A JobrunnerError of the driver is raised in it. (The
idea is that of "sans-I/O" protocols: https://sans-io.readthedocs.io.)
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import msgspec

from jobrunner.broker.broker import Broker, run_each_or_errors
from jobrunner.broker.call import Call
from jobrunner.clock import sleep
from jobrunner.errors import JobrunnerError, ServerError, ServerUnavailable

if TYPE_CHECKING:
    from jobrunner.broker.async_broker import AsyncBroker

T = TypeVar("T")
Calls: TypeAlias = list[Call[Any]]
AFTER_BROKEN_S = 0.2
"""After a wait whose connection broke: a way that always breaks must not become a loop without pause."""


class EachReply(msgspec.Struct, frozen=True):
    """One round trip; the reply of a refused call is its error."""

    calls: Calls


class Durable(msgspec.Struct, frozen=True):
    """One round trip that ends when what it wrote is as safe as the client's `durability` asks."""

    calls: Calls


class Uninterrupted(msgspec.Struct, frozen=True):
    """One round trip that is brought to its end even when the coroutine that asked for it is cancelled; the reply of a
    refused call is its error, so that what the others handed out is not lost.

    When it is cancelled, nobody is left to receive the answer, so the calls that `undo` makes of it are sent before the
    cancellation goes on. A thread is not cancelled, so there it is an `EachReply`.
    """

    calls: Calls
    undo: Callable[[list[Any]], Calls]


class InThread(msgspec.Struct, frozen=True):
    """Work that may block, but not for the server: reading a payload store. A coroutine has a thread do it."""

    work: Callable[[], Any]


class Listener(Protocol):
    """Waits in a thread."""

    def wait(self, at_most_s: float, /) -> object: ...
    def close(self) -> None: ...


class AsyncListener(Protocol):
    """Waits in a coroutine. `close` must not wait for anything."""

    async def wait(self, at_most_s: float, /) -> object: ...
    async def close(self) -> None: ...


class Wait(Protocol):
    """A pause that may end before its time. Waits of one operation share a listener as long as their place is the same:
    what they listen to."""

    @property
    def at_most_s(self) -> float: ...
    @property
    def place(self) -> object: ...
    def listen(self, broker: Broker) -> Listener: ...
    def listen_async(self, broker: "AsyncBroker") -> AsyncListener: ...


Step: TypeAlias = Calls | EachReply | Durable | Uninterrupted | InThread | Wait
Operation: TypeAlias = Generator[Step, Any, T]


def ask(call: Call[T]) -> Operation[T]:
    """One call; returns its value."""
    values = yield [call]
    return values[0]  # type: ignore[no-any-return]


def noting(call: Call[None]) -> Operation[None]:
    """Writes an event about what was done. Errors of the server are ignored: the events may be on another node of a
    cluster, and an error would say that nothing was done."""
    with suppress(ServerError):
        yield [call]


def run_operation(broker: Broker, steps: Operation[T]) -> T:
    """Carries an operation out in this thread."""
    listener: Listener | None = None
    place: object = None
    answer: Any = None
    error: JobrunnerError | None = None
    try:
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            answer, error = None, None
            try:
                if isinstance(step, list):
                    answer = broker.run_many(step) if step else []
                elif isinstance(step, Durable):
                    answer = broker.write(step.calls)
                elif isinstance(step, EachReply | Uninterrupted):
                    answer = broker.run_each(step.calls)
                elif isinstance(step, InThread):
                    answer = step.work()
                else:
                    if listener is None or place != step.place:
                        _close(listener)
                        listener, place = step.listen(broker), step.place
                    answer = _waited(listener, step.at_most_s)
            except JobrunnerError as refused:
                error = refused
    finally:
        _close(listener)


def run_together(broker: Broker, operations: Sequence[Operation[T]]) -> list[T | Exception]:
    """Carries operations out side by side in this thread: the next calls of all of them share a round trip. The
    operations may yield lists of calls only. Returns the value of each operation, or the error that it raised."""
    ends: list[Any] = [None] * len(operations)
    answers: dict[int, Any] = dict.fromkeys(range(len(operations)))
    while answers:
        asked: dict[int, Calls] = {}
        for place, answer in answers.items():
            steps = operations[place]
            try:
                step = steps.throw(answer) if isinstance(answer, JobrunnerError) else steps.send(answer)
                assert isinstance(step, list), f"{step} is no list of calls"
                asked[place] = step
            except StopIteration as end:
                ends[place] = end.value
            except Exception as error:
                ends[place] = error
        replies = iter(run_each_or_errors(broker, [call for calls in asked.values() for call in calls]))
        answers = {place: _values_or_error(list(islice(replies, len(calls)))) for place, calls in asked.items()}
    return ends


def _values_or_error(found: list[Any]) -> list[Any] | JobrunnerError:
    return next((one for one in found if isinstance(one, JobrunnerError)), found)


def _close(listener: Listener | None) -> None:
    if listener is not None:
        listener.close()


def _waited(listener: Listener, at_most_s: float) -> object:
    """Returns early when the connection of the wait breaks: the next request shows whether the server is away."""
    try:
        return listener.wait(at_most_s)
    except ServerUnavailable:
        sleep(min(at_most_s, AFTER_BROKEN_S))
        return None


async def run_operation_async(broker: "AsyncBroker", steps: Operation[T]) -> T:
    """Carries an operation out in this coroutine."""
    listener: AsyncListener | None = None
    place: object = None
    answer: Any = None
    error: JobrunnerError | None = None
    try:
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            answer, error = None, None
            try:
                if isinstance(step, list):
                    answer = await broker.run_many(step) if step else []
                elif isinstance(step, Durable):
                    answer = await broker.write(step.calls)
                elif isinstance(step, Uninterrupted):
                    answer = await _unbroken(broker, step)
                elif isinstance(step, EachReply):
                    answer = await broker.run_each(step.calls)
                elif isinstance(step, InThread):
                    answer = await _in_thread(step.work)
                else:
                    if listener is None or place != step.place:
                        await _close_async(listener)
                        listener, place = step.listen_async(broker), step.place
                    answer = await _waited_async(listener, step.at_most_s)
            except JobrunnerError as refused:
                error = refused
    finally:
        await _close_async(listener)


async def _close_async(listener: AsyncListener | None) -> None:
    if listener is not None:
        await listener.close()


async def _waited_async(listener: AsyncListener, at_most_s: float) -> object:
    import asyncio

    try:
        return await listener.wait(at_most_s)
    except ServerUnavailable:
        await asyncio.sleep(min(at_most_s, AFTER_BROKEN_S))
        return None


async def _in_thread(work: Callable[[], Any]) -> Any:
    import asyncio  # here and below: with the first coroutine, as a program of threads needs none of it

    return await asyncio.to_thread(work)


async def _unbroken(broker: "AsyncBroker", step: Uninterrupted) -> list[Any]:
    import asyncio

    exchange = asyncio.ensure_future(broker.run_each(step.calls))
    try:
        return await asyncio.shield(exchange)
    except asyncio.CancelledError:
        # A second cancellation does not wait; the undo continues in the background.
        await asyncio.shield(asyncio.ensure_future(_undo(broker, exchange, step)))
        raise


async def _undo(broker: "AsyncBroker", exchange: Awaitable[list[Any]], step: Uninterrupted) -> None:
    with suppress(JobrunnerError):  # the server is away: the leases end by themselves
        if calls := step.undo(await exchange):
            await broker.run_many(calls)
