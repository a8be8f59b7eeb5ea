"""What an operation may wait for: a hint that a queue has work or room, and the end of a task."""

import asyncio
from dataclasses import dataclass
from typing import Any

from jobrunner.broker.aio import AsyncBroker
from jobrunner.broker.broker import Broker
from jobrunner.broker.keys import QueueKeys
from jobrunner.broker.wakeup import AsyncWakeListener, WakeListener

_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Hint:
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
class Room:
    """Until a full queue may have room. As with Hint, `at_most_s` must be short."""

    queue: QueueKeys
    at_most_s: float

    def listen(self, broker: Broker) -> WakeListener:
        """In a thread."""
        return WakeListener(broker, [self.queue], of="room")

    def listen_async(self, broker: AsyncBroker) -> AsyncWakeListener:
        """In a coroutine."""
        return AsyncWakeListener(broker, [self.queue], of="room")


@dataclass(frozen=True, slots=True)
class Ending:
    """Until the end of a task may have been told on its channel.

    A thread subscribes. A coroutine looks again after pauses that grow: thousands of coroutines may wait for as many
    tasks, and each subscription is a connection.
    """

    channel: bytes
    at_most_s: float

    def listen(self, broker: Broker) -> "_Subscription":
        """In a thread. Subscribed from the first wait on, which therefore comes back at once."""
        return _Subscription(broker, self.channel)

    def listen_async(self, broker: AsyncBroker) -> "_Pauses":  # noqa: ARG002 - nothing is asked of the server
        """In a coroutine."""
        return _Pauses()


class _Subscription:
    """Waits for a message on one channel, on a connection of its own."""

    def __init__(self, broker: Broker, channel: bytes) -> None:
        self._connection: Any = broker.open_blocking()
        self._channel = channel
        self._is_listening = False

    def wait(self, at_most_s: float) -> None:
        """Returns when a message came, or after so many seconds."""
        if not self._is_listening:
            self._connection.connect()
            self._connection.send_command("SUBSCRIBE", self._channel)
            self._connection.read_response()
            self._is_listening = True
        elif self._connection.can_read(timeout=at_most_s):
            self._connection.read_response()

    def close(self) -> None:
        """Ends the connection."""
        self._connection.disconnect()


class _Pauses:
    def __init__(self) -> None:
        self._next_s = _FIRST_PAUSE_S

    async def wait(self, at_most_s: float) -> None:
        await asyncio.sleep(min(self._next_s, at_most_s))
        self._next_s = min(self._next_s * 1.5, _LONGEST_PAUSE_S)

    async def close(self) -> None:
        pass
