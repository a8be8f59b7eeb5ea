"""A pipeline of writes: the caller prepares the next round of calls while the server applies the round before.

Invariant: rounds are sent in the order of `send`, and each is applied once. When the connection breaks, or a round has
to be sent again, the driver sends all rounds without a reply once more, one after the other; so only repeatable calls
are sent ahead. When another client's long script delays a round, the next round may be applied before it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

from msgspec.structs import replace

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import BROKEN, Call, interpret, may_repeat, pack_calls, read_reply
from jobrunner.broker.confirmed_writes import to_send_again
from jobrunner.broker.redis_errors import is_demoted, raise_if_loading
from jobrunner.clock import since_boot
from jobrunner.errors import NO_ANSWER, JobrunnerError, OutcomeUnknown

_AHEAD = 1
"""Rounds that may be without a reply when another round is sent. More would not reduce the server's idle time."""


class Round(NamedTuple):
    """Calls that are sent together. `done` gets their values; `lost` is called when the outcome is unknown."""

    calls: Sequence[Call[Any]]
    done: Callable[[list[Any]], object]
    lost: Callable[[], object]
    sent_at: float = 0.0
    """The time of sending on the clock `since_boot`; the stream sets it."""


class CallStream:
    """Sends rounds within a `with` block. The block ends when the last reply has arrived.

    An error of a round is raised when its reply is read: by the `send` of the next round, or at the end of the block.
    The server may have applied that next round by then; its `done` is called as well. Rounds wait for each other when
    their writes are confirmed, or go to a cluster or to the primary that sentinels name.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._connection: Any = None
        self._sent: deque[Round] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.drain()
            elif isinstance(error, Exception):
                with suppress(JobrunnerError):  # the first error is raised
                    self.drain()
            else:
                self._tell_lost(self._sent)
        finally:
            self._give_back()

    def send(self, one: Round) -> None:
        """Sends a round, and waits for the replies to earlier rounds. Raises the errors of `Broker.write`, for any
        round."""
        if not self._broker.sends_ahead or not may_repeat(one.calls):
            self.drain()
            self._write(one)
            return
        if self._connection is None:
            self._broker.connect()
            self._connection = self._broker.lend()
        if self._connection is None:  # another thread took it
            self._write(one)
            return
        self._sent.append(one._replace(sent_at=since_boot()))
        try:
            self._connection.send(pack_calls(one.calls, self._broker.now_ms()))
        except BROKEN:
            self._write_all_again()
        while len(self._sent) > _AHEAD:
            self._receive()

    def drain(self) -> None:
        """Waits for the replies to all rounds. Raises the errors of `send`."""
        while self._sent:
            self._receive()

    def _receive(self) -> None:
        if self._connection is None:  # a round before this one was refused when all were sent again
            self._write(self._sent.popleft(), is_sent=True)
            return
        first = self._sent[0]
        try:
            replies = [read_reply(self._connection) for _ in first.calls]
            raise_if_loading(replies)
        except BROKEN:
            self._write_all_again()
            return
        if to_send_again(first.calls, replies) or any(map(is_demoted, replies)):
            self._write_all_again()
            return
        self._sent.popleft()
        first.done([interpret(call, reply) for call, reply in zip(first.calls, replies, strict=True)])

    def _write_all_again(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None
        while self._sent:
            self._write(self._sent.popleft(), is_sent=True)

    def _write(self, one: Round, *, is_sent: bool = False) -> None:
        try:
            values = self._broker.write(_in_time(one) if is_sent else one.calls)
        except NO_ANSWER:
            self._tell_lost((one, *self._sent))
            self._sent.clear()
            raise
        except BaseException as error:
            if not isinstance(error, Exception):  # interrupted; `__exit__` reports the other rounds
                one.lost()
            raise
        one.done(values)

    def _tell_lost(self, rounds: Iterable[Round]) -> None:
        for one in rounds:
            one.lost()

    def _give_back(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._sent:  # interrupted: unread replies may arrive
            connection.disconnect()
        else:
            self._broker.take_back(connection)


def _in_time(one: Round) -> list[Call[Any]]:
    """The calls of a sent round, with the rest of the time in which they may be repeated. Raises OutcomeUnknown when
    that time is over."""
    age_s = since_boot() - one.sent_at
    calls = [replace(call, repeat_s=call.repeat_s - age_s) for call in one.calls]
    if any(call.repeat_s < 0 for call in calls):
        raise OutcomeUnknown(
            f"the connection broke, and {age_s:.0f} s later it is too late to send the round again; it was applied or "
            "it was not"
        )
    return calls
