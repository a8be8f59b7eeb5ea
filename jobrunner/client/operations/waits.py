"""Waits of operations: for a hint that a queue has work or room, and for the end of a task."""

import asyncio
from dataclasses import dataclass

from jobrunner.broker.async_broker import AsyncBroker
from jobrunner.broker.broker import Broker
from jobrunner.broker.keys import QueueKeys
from jobrunner.broker.notifier import AsyncWakeListener, ChannelListener, WakeListener

_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class WorkHint:
    """Until the queue may have work. A hint may get lost, so `at_most_s` must be short."""

    queue: QueueKeys
    at_most_s: float

    def listen(self, broker: Broker) -> WakeListener:
        """In a thread."""
        return WakeListener(broker, [self.queue])

    def listen_async(self, broker: AsyncBroker) -> AsyncWakeListener:
        """In a coroutine."""
        return AsyncWakeListener(broker, [self.queue])


@dataclass(frozen=True, slots=True)
class CapacityHint:
    """Until a full queue may have room. As with Hint, `at_most_s` must be short."""

    queue: QueueKeys
    at_most_s: float

    def listen(self, broker: Broker) -> WakeListener:
        """In a thread."""
        return WakeListener(broker, [self.queue], of="capacity")

    def listen_async(self, broker: AsyncBroker) -> AsyncWakeListener:
        """In a coroutine."""
        return AsyncWakeListener(broker, [self.queue], of="capacity")


@dataclass(frozen=True, slots=True)
class TaskEndHint:
    """Waits until the channel of a task may have announced its end.

    A thread subscribes. A coroutine looks again after pauses that grow: thousands of coroutines may wait for as many
    tasks, and each subscription is a connection.
    """

    channel: bytes
    at_most_s: float

    def listen(self, broker: Broker) -> ChannelListener:
        """In a thread. Subscribed from the first wait on, which therefore comes back at once."""
        return ChannelListener(broker, self.channel)

    def listen_async(self, broker: AsyncBroker) -> "_Pauses":  # noqa: ARG002 - nothing is asked of the server
        """In a coroutine."""
        return _Pauses()


class _Pauses:
    def __init__(self) -> None:
        self._next_s = _FIRST_PAUSE_S

    async def wait(self, at_most_s: float) -> None:
        await asyncio.sleep(min(self._next_s, at_most_s))
        self._next_s = min(self._next_s * 1.5, _LONGEST_PAUSE_S)

    async def close(self) -> None:
        pass
