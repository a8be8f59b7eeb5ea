"""Exchanges of one event loop with a server: a few at once, and what is asked meanwhile goes together with the next.

Each exchange needs a connection of its own, and thousands of coroutines may ask at once: with a connection each, the
server would refuse most of them. Requests that wait are sent in the order in which they were asked, many in one write,
as other clients do with pipelines.

Invariant: a request whose caller was cancelled while it waited is not sent; one that was sent is not cut off by the end
of another caller.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from jobrunner.broker.call import Call, may_repeat
from jobrunner.broker.confirmed_writes import ends_with_confirmation

CONNECTIONS: Final = 16
"""Exchanges at once."""
_TOGETHER = 64
"""Requests of one exchange."""

Send = Callable[[Sequence[Call[Any]]], Awaitable[list[Any]]]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    calls: Sequence[Call[Any]]
    replies: "asyncio.Future[list[Any]]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class ExchangeQueue:
    """Hands requests to `send`, which raises for all of them or returns a reply for each call. Of one event loop."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._under_way = 0
        self._waiting: deque[_Waiting] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def replies(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """The replies to one request."""
        if self._under_way >= CONNECTIONS:
            waiting = _Waiting(calls)
            self._waiting.append(waiting)
            return await waiting.replies
        self._under_way += 1
        try:
            return await self._send(calls)
        finally:
            self._under_way -= 1
            self._send_waiting()

    def _send_waiting(self) -> None:
        requests = self._next()
        if not requests:
            return
        self._under_way += 1
        task = asyncio.get_running_loop().create_task(self._exchange(requests))
        self._tasks.add(task)  # the loop itself keeps no reference
        task.add_done_callback(self._tasks.discard)

    def _next(self) -> list[_Waiting]:
        """Requests to send together. After a lost reply, either all of them may be repeated or none."""
        found: list[_Waiting] = []
        kind: object = None
        while self._waiting and len(found) < _TOGETHER:
            one = self._waiting[0]
            # A confirmation is of all that is before it in its exchange.
            own = one if ends_with_confirmation(one.calls) else may_repeat(one.calls)
            if found and own != kind:
                break
            self._waiting.popleft()
            if not one.replies.done():
                found.append(one)
                kind = own
        return found

    async def _exchange(self, requests: Sequence[_Waiting]) -> None:
        try:
            replies = await self._send([call for one in requests for call in one.calls])
        except Exception as error:
            for one in requests:
                if not one.replies.done():
                    one.replies.set_exception(error)
        except BaseException:  # the loop ends
            for one in requests:
                one.replies.cancel()
            raise
        else:
            for one in requests:
                own, replies = replies[: len(one.calls)], replies[len(one.calls) :]
                if not one.replies.done():
                    one.replies.set_result(own)
        finally:
            self._under_way -= 1
            self._send_waiting()
