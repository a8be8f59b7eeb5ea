"""The asyncio clients of this process, which `aenqueue()` uses: one for each event loop and settings of the current
client. A client ends with its loop."""

import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from jobrunner.client.current import current_client, pinned_twin

if TYPE_CHECKING:
    import asyncio

    from jobrunner.client.async_client import AsyncClient

_lock = threading.RLock()


class _OfLoop(NamedTuple):
    """A client of an event loop, and the generator whose end closes it."""

    client: "AsyncClient"
    closing: AsyncGenerator[None, None]


_of_loops: "dict[asyncio.AbstractEventLoop, list[_OfLoop]]" = {}
_blocks: "Counter[asyncio.AbstractEventLoop]" = Counter()
"""How many blocks of `async_client` are open in an event loop."""
_MOST_OF_A_LOOP = 8
"""The most clients of one loop: for example, each test of a session may configure another prefix."""


def current_async_client() -> "AsyncClient":
    """The asyncio client of the running event loop, with the settings of the current client."""
    from jobrunner.broker.async_broker import running_loop
    from jobrunner.client.async_client import client_beside, go_by

    loop = running_loop()
    current = current_client()
    if (twin := pinned_twin(current)) is not None:
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
    Django's `async_to_sync` do, would otherwise run out of connections.

    Before a loop is closed it ends the generators that were begun in it (shutdown_asyncgens); it also ends a generator
    without references. Loops that were closed without that are forgotten here.
    """
    closing = _until_loop_ends(client)
    with suppress(StopIteration):  # how a step of a coroutine returns; this one runs to the `yield`
        closing.__anext__().send(None)
    with _lock:
        for other in [other for other in _of_loops if other.is_closed()]:
            del _of_loops[other]
        for other in [other for other in _blocks if other.is_closed()]:
            del _blocks[other]
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
    """The asyncio client of the running event loop, which `aenqueue` uses too; closed at the end of the block, or of
    the last one, when several are open in the loop.

    For the lifespan of an application.
    """
    import asyncio

    client, loop = current_async_client(), asyncio.get_running_loop()
    mine = list(_of_loops.get(loop, ()))  # kept until this block ends, however many clients of the loop come
    with _lock:
        _blocks[loop] += 1
    try:
        yield client
    finally:
        with _lock:
            _blocks[loop] -= 1
            is_last = not _blocks[loop]
            if is_last:
                del _blocks[loop]
        for found in [*mine, *_of_loops.get(loop, ())] if is_last else ():
            await found.closing.aclose()
