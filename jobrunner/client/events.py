"""Reading the stream of events, for threads and for asyncio."""

import re
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import interpret, pack_calls
from jobrunner.broker.calls import events as calls
from jobrunner.broker.keys import Keys
from jobrunner.client.operations.operation import AFTER_BROKEN_S
from jobrunner.errors import NO_ANSWER, InvalidOption, ServerUnavailable
from jobrunner.events import Event
from jobrunner.formatting import describe

if TYPE_CHECKING:
    from jobrunner.broker.async_broker import AsyncBroker
    from jobrunner.broker.async_listener import AsyncBlockingConnection

_AT_ONCE = 100
_WAIT_MS = 2000
_ID = re.compile(r"[0-9]{1,18}(-[0-9]{1,18})?")


def read_events(broker: Broker, keys: Keys, after: str | None, *, follow: bool) -> Iterator[Event]:
    """Yields events, oldest first; with `follow` for ever. Raises InvalidOption for an `after` that is no id."""
    last = _checked(after)
    while found := broker.run(calls.after(keys, last, count=_AT_ONCE)):
        yield from found
        last = found[-1].id
    while follow:
        try:
            found = broker.run(calls.awaited(keys, _from(last), count=_AT_ONCE, wait_ms=_WAIT_MS))
        except NO_ANSWER:  # the connection broke: the next read raises if the server is away
            found = broker.run(calls.after(keys, last, count=_AT_ONCE))
        yield from found
        last = found[-1].id if found else last


async def read_events_async(
    broker: "AsyncBroker", keys: Keys, after: str | None, *, follow: bool
) -> AsyncIterator[Event]:
    """Yields events, oldest first; with `follow` for ever. Raises InvalidOption for an `after` that is no id.

    It waits on a connection of its own, which ends with the iteration: other calls need the few connections of
    `broker`.
    """
    from jobrunner.broker.async_listener import AsyncBlockingConnection  # programs with threads do not need it

    last = _checked(after)
    while found := await broker.run(calls.after(keys, last, count=_AT_ONCE)):
        for event in found:
            yield event
        last = found[-1].id
    listener = AsyncBlockingConnection(broker, keys.events)
    try:
        while follow:
            broker.check_open()
            found = await _awaited_async(broker, listener, keys, last)
            for event in found:
                yield event
            last = found[-1].id if found else last
    finally:
        await listener.close()


async def _awaited_async(
    broker: "AsyncBroker", listener: "AsyncBlockingConnection", keys: Keys, last: str
) -> list[Event]:
    import asyncio

    waiting = calls.awaited(keys, _from(last), count=_AT_ONCE, wait_ms=_WAIT_MS)
    try:
        return interpret(waiting, await listener.reply(pack_calls([waiting], b""), _WAIT_MS / 1000))
    except ServerUnavailable:  # the connection broke: the next read raises if the server is away
        await asyncio.sleep(AFTER_BROKEN_S)
        return await broker.run(calls.after(keys, last, count=_AT_ONCE))


def _checked(after: str | None) -> str:
    if after is not None and not (isinstance(after, str) and _ID.fullmatch(after)):
        raise InvalidOption(f"after={describe(after)}: give the id of an event")
    return after or "-"


def _from(last: str) -> str:
    return "0" if last == "-" else last
