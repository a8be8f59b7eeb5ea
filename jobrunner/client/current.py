"""The client of this process, which `enqueue()` uses when no other is set."""

import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from jobrunner.client.client import Client

if TYPE_CHECKING:
    import asyncio

    from jobrunner.client.async_client import AsyncClient

_lock = threading.RLock()
_state: dict[str, Client] = {}
_pins: "list[tuple[Client, AsyncClient | None]]" = []
_listeners: "list[Callable[[], None]]" = []
_here: ContextVar[Client] = ContextVar("jobrunner_client")


class _OfLoop(NamedTuple):
    """A client of an event loop, and the generator whose end closes it."""

    client: "AsyncClient"
    closing: AsyncGenerator[None, None]


_of_loops: "dict[asyncio.AbstractEventLoop, list[_OfLoop]]" = {}
_MOST_OF_A_LOOP = 8
"""Clients with settings of their own: each test of a session configures another prefix, say."""


def configure(url: str | None = None, prefix: str | None = None, **options: Any) -> Client:
    """Sets the client of this process and returns it. Nothing is connected yet. Options are those of Client."""
    return use(Client(url, prefix, **options))


def use(client: Client) -> Client:
    """Makes `client` the one of this process; the one before is closed. Changes nothing while another is pinned."""
    with _lock:
        if _pins:
            return client
        before = _state.get("client")
        _state["client"] = client
    if before is not None and before is not client:
        before.close()
    for listener in _listeners:
        listener()
    return client


def on_use(listener: "Callable[[], None]") -> None:
    """Has `listener` called whenever a client becomes that of this process. Added twice, it is called once."""
    if listener not in _listeners:
        _listeners.append(listener)


@contextmanager
def within(client: Client) -> Iterator[None]:
    """Makes `client` the current one in this context only: a worker's jobs enqueue where the worker takes from."""
    before = _here.set(client)
    try:
        yield
    finally:
        _here.reset(before)


@contextmanager
def pinned(client: Client, twin: "AsyncClient | None" = None) -> Iterator[None]:
    """Makes `client` the one of this process until the block ends, whatever an application configures meanwhile.

    For tests: restores the previous client afterwards. `twin` is its asyncio client, of any event loop.
    """
    with _lock:
        _pins.append((client, twin))
    try:
        yield
    finally:
        with _lock:
            _pins.remove((client, twin))


def current_client() -> Client:
    """The client of the worker whose job this is, else of this process; made with default settings at the first use."""
    if (client := _here.get(None)) is not None:
        return client
    if not _pins and (client := _state.get("client")) is not None:
        return client
    with _lock:
        if _pins:
            return _pins[-1][0]
        if "client" not in _state:
            _state["client"] = Client()
        return _state["client"]


def configured_client() -> Client | None:
    """The client of this process when there is one, pinned clients left out; makes none."""
    return _here.get(None) or _state.get("client")


def current_async_client() -> "AsyncClient":
    """The asyncio client of the running event loop, with the settings of the current client."""
    import asyncio

    from jobrunner.client.async_client import client_beside, go_by

    loop = asyncio.get_running_loop()
    current = current_client()
    for pin, twin in reversed(_pins):
        if pin is current and twin is not None:
            return twin
    for found in reversed(_of_loops.get(loop, ())):
        if found.client.settings == current.settings:
            client = found.client
            break
    else:
        client = client_beside(current)
        _enter(loop, client)
    go_by(client, current)
    return client


def _enter(loop: "asyncio.AbstractEventLoop", client: "AsyncClient") -> None:
    """Has the client of a loop end with the loop: a program that makes a loop for each call, as `asyncio.run` and
    Django's `async_to_sync` do, would run out of connections.

    A loop ends the generators that were begun in it before it is closed (shutdown_asyncgens), and one that nobody
    refers to any more. Loops that were closed without that are forgotten here.
    """
    closing = _until_loop_ends(client)
    with suppress(StopIteration):  # how a step of a coroutine returns; this one runs to the `yield`
        closing.__anext__().send(None)
    with _lock:
        for other in [other for other in _of_loops if other.is_closed()]:
            del _of_loops[other]
        found = _of_loops.setdefault(loop, [])
        found.append(_OfLoop(client, closing))
        del found[:-_MOST_OF_A_LOOP]


async def _until_loop_ends(client: "AsyncClient") -> AsyncGenerator[None, None]:
    import asyncio

    try:
        yield
    finally:
        with _lock:
            found = _of_loops.get(loop := asyncio.get_running_loop(), [])
            found[:] = [one for one in found if one.client is not client]
            if not found:
                _of_loops.pop(loop, None)
        await client.close()


@asynccontextmanager
async def async_client() -> "AsyncIterator[AsyncClient]":
    """The asyncio client of the running event loop, which `aenqueue` uses too; closed at the end of the block.

    For the lifespan of an application.
    """
    import asyncio

    client, loop = current_async_client(), asyncio.get_running_loop()
    mine = list(_of_loops.get(loop, ()))  # which is not closed before, however many others come
    try:
        yield client
    finally:
        for found in [*mine, *_of_loops.get(loop, ())]:
            await found.closing.aclose()


def forget() -> None:
    """Closes and forgets the client of this process; the next use makes a new one."""
    with _lock:
        before = _state.pop("client", None)
    if before is not None:
        before.close()
