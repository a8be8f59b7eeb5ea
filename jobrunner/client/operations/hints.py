"""Waits of an operation: for a hint of the server that something changed, or for the next poll."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from jobrunner.broker.broker import Broker
from jobrunner.broker.keys import QueueKeys
from jobrunner.clock import sleep

if TYPE_CHECKING:
    from jobrunner.broker.async_broker import AsyncBroker
    from jobrunner.broker.async_listener import AsyncWakeListener
    from jobrunner.broker.listeners import ChannelListener
    from jobrunner.broker.notifier import WakeListener

_FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.5


class WorkHint(msgspec.Struct, frozen=True):
    """Waits until one of the queues may have work. A hint may get lost, so `at_most_s` must be short."""

    queues: Sequence[QueueKeys]
    at_most_s: float

    @property
    def place(self) -> tuple[str, ...]:
        """The queues, by name."""
        return tuple([queue.name for queue in self.queues])

    def listen(self, broker: Broker) -> "WakeListener":
        """The listener of a thread."""
        from jobrunner.broker.notifier import WakeListener  # here and below: most programs do not wait

        return WakeListener(broker, self.queues)

    def listen_async(self, broker: "AsyncBroker") -> "AsyncWakeListener | _AsyncPauses":
        """The listener of a coroutine. It has one connection, so shards of a queue on a cluster are polled."""
        from jobrunner.broker.async_listener import AsyncWakeListener

        if len(self.queues) > 1 and broker.endpoint.cluster is not None:
            return _AsyncPauses()
        return AsyncWakeListener(broker, self.queues)


class CapacityHint(msgspec.Struct, frozen=True):
    """Waits until a full queue may have room. As with WorkHint, `at_most_s` must be short."""

    queue: QueueKeys
    at_most_s: float

    @property
    def place(self) -> str:
        """The queue, by name."""
        return self.queue.name

    def listen(self, broker: Broker) -> "WakeListener":
        """The listener of a thread."""
        from jobrunner.broker.notifier import WakeListener

        return WakeListener(broker, [self.queue], of="capacity")

    def listen_async(self, broker: "AsyncBroker") -> "AsyncWakeListener":
        """The listener of a coroutine."""
        from jobrunner.broker.async_listener import AsyncWakeListener

        return AsyncWakeListener(broker, [self.queue], of="capacity")


class TaskEndHint(msgspec.Struct, frozen=True):
    """Waits until the channel of a task may have announced its end.

    A thread subscribes. A coroutine polls with growing pauses: thousands of coroutines may wait for as many tasks, and
    each subscription is a connection.
    """

    channel: bytes
    at_most_s: float

    @property
    def place(self) -> bytes:
        """The channel."""
        return self.channel

    def listen(self, broker: Broker) -> "ChannelListener":
        """The listener of a thread. The first wait subscribes, and therefore returns at once."""
        from jobrunner.broker.listeners import ChannelListener

        return ChannelListener(broker, self.channel)

    def listen_async(self, broker: "AsyncBroker") -> "_AsyncPauses":  # noqa: ARG002 - nothing is asked of the server
        """The listener of a coroutine."""
        return _AsyncPauses()


class PollPause(msgspec.Struct, frozen=True):
    """Waits until the next poll, without a hint. The pauses of one operation grow, whatever it polls."""

    at_most_s: float

    @property
    def place(self) -> None:
        """None: all polls of an operation share one series of pauses."""

    def listen(self, broker: Broker) -> "_Pauses":  # noqa: ARG002 - nothing is asked of the server
        """The listener of a thread."""
        return _Pauses()

    def listen_async(self, broker: "AsyncBroker") -> "_AsyncPauses":  # noqa: ARG002 - as above
        """The listener of a coroutine."""
        return _AsyncPauses()


class _Pauses:
    def __init__(self) -> None:
        self._next_s = _FIRST_PAUSE_S

    def next_s(self) -> float:
        pause, self._next_s = self._next_s, min(self._next_s * 1.5, LONGEST_PAUSE_S)
        return pause

    def wait(self, at_most_s: float) -> None:
        sleep(min(self.next_s(), at_most_s))

    def close(self) -> None:
        pass


class _AsyncPauses:
    def __init__(self) -> None:
        self._pauses = _Pauses()

    async def wait(self, at_most_s: float) -> None:
        import asyncio

        await asyncio.sleep(min(self._pauses.next_s(), at_most_s))

    async def close(self) -> None:
        pass
