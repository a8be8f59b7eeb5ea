"""Exchanges of one event loop with a server: a few at once; requests that come meanwhile share the next exchange.

Each exchange needs a connection of its own, and thousands of coroutines may send requests at once: with a connection
each, the server would refuse most of them. Waiting requests are pipelined: one write has the first of them and the
later ones for which a lost reply means the same, in their order. Writes that wait for a confirmation share one: it
covers all that was written before it on its connection. They have exchanges of their own, so that no other call waits
for a disk or a replica.

Invariants: a request whose caller was cancelled while it waited is not sent; the end of one caller does not cut off a
request that another caller sent.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from jobrunner.broker.call import Call, may_repeat
from jobrunner.broker.confirmed_writes import ends_with_confirmation

CONNECTIONS: Final = 16
"""The most exchanges at once."""
CONFIRMED: Final = 8
"""The most exchanges at once, besides those, that end with a confirmation."""
_TOGETHER = 64
"""The most requests in one exchange."""

_PASSED_OVER = 64
"""The most requests of other kinds that are passed over for one exchange, so that its cost does not grow with the
line."""

Send = Callable[[Sequence[Call[Any]]], Awaitable[list[Any]]]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    calls: Sequence[Call[Any]]
    kind: int
    replies: "asyncio.Future[list[Any]]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class _RequestLine:
    """Exchanges of one kind: up to `most` at once, and the requests that wait for one."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.under_way = 0
        self.waiting: deque[_Waiting] = deque()

    def next(self) -> list[_Waiting]:
        """The requests to send together: all of one kind, as an exchange fails for all requests in it."""
        found: list[_Waiting] = []
        passed_over: list[_Waiting] = []
        while self.waiting and len(found) < _TOGETHER and len(passed_over) < _PASSED_OVER:
            one = self.waiting.popleft()
            if not one.replies.done():
                (passed_over if found and one.kind != found[0].kind else found).append(one)
        self.waiting.extendleft(reversed(passed_over))
        return found


def _kind_of(calls: Sequence[Call[Any]]) -> int:
    """The effect of a lost reply. 3: the calls are not sent again. 2: they are, for some seconds. 1: they are as long
    as the driver tries, then their outcome is unknown. 0: as 1, but the caller may simply ask once more."""
    if not may_repeat(calls):
        return 3
    return max(((call.repeat_s < inf) + call.must_be_answered for call in calls), default=0)


class ExchangeQueue:
    """Hands requests to `send`, which raises for all of them or returns a reply for each call. Of one event loop."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._plain, self._confirmed = _RequestLine(CONNECTIONS), _RequestLine(CONFIRMED)
        self._tasks: set[asyncio.Task[None]] = set()

    async def replies(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """The replies to one request."""
        line = self._plain
        if ends_with_confirmation(calls):
            if not self._confirmed.waiting:  # requests of the same turn of the loop share one
                asyncio.get_running_loop().call_soon(self._send_waiting, self._confirmed)
            line = self._confirmed
        elif line.under_way < line.most:
            line.under_way += 1
            try:
                return await self._send(calls)
            finally:
                line.under_way -= 1
                self._send_waiting(line)
        waiting = _Waiting(calls, _kind_of(calls))
        line.waiting.append(waiting)
        return await waiting.replies

    def _send_waiting(self, line: _RequestLine) -> None:
        while line.under_way < line.most and (requests := line.next()):
            line.under_way += 1
            task = asyncio.get_running_loop().create_task(self._exchange(line, requests))
            self._tasks.add(task)  # the loop itself keeps no reference
            task.add_done_callback(self._tasks.discard)

    async def _exchange(self, line: _RequestLine, requests: Sequence[_Waiting]) -> None:
        shared = 1 if line is self._confirmed else 0
        try:
            calls = [call for one in requests for call in one.calls[: len(one.calls) - shared]]
            replies = await self._send([*calls, *requests[0].calls[len(requests[0].calls) - shared :]])
        except Exception as error:
            for one in requests:
                if not one.replies.done():
                    one.replies.set_exception(error)
        except BaseException:  # the loop ends
            for one in requests:
                one.replies.cancel()
            raise
        else:
            confirmation = replies[len(calls) :]
            for one in requests:
                count = len(one.calls) - shared
                own, replies = [*replies[:count], *confirmation], replies[count:]
                if not one.replies.done():
                    one.replies.set_result(own)
        finally:
            line.under_way -= 1
            self._send_waiting(line)
