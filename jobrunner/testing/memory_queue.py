"""Queues without a server: their settings are checked and kept, and their pause and limits apply to tasks that begin.
Other operations of a queue are refused."""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Unpack

from jobrunner.broker.async_broker import AsyncBroker
from jobrunner.client.async_queue import AsyncQueue
from jobrunner.client.client import Client, broker_of
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.queue import Queue
from jobrunner.client.settings_hash import read_settings, write_settings
from jobrunner.clock import unix_ms
from jobrunner.queue_settings import QueueSettings, RateLimit, SettingKeywords
from jobrunner.retry import milliseconds
from jobrunner.settings import Duration


@dataclass(slots=True)
class KeptSettings:
    """The configuration of one queue, and the use of its limits. The partition None stands for the whole queue."""

    fields: dict[str, bytes] = field(default_factory=dict)
    paused_until_ms: float = 0.0
    _running: Counter[str | None] = field(default_factory=Counter)
    _buckets: dict[str | None, tuple[float, float]] = field(default_factory=dict)
    """Tokens left, and the time of that count in Unix ms, by partition."""

    @property
    def is_paused(self) -> bool:
        """Whether a pause keeps tasks from beginning now."""
        return self.paused_until_ms > unix_ms()

    def read(self) -> QueueSettings:
        """The settings in force."""
        return read_settings(self.fields)

    def begin(self, partition: str | None) -> bool:
        """Counts a task of this partition that begins. Returns False, and counts nothing, while a pause or a limit
        holds the task."""
        if self.is_paused:
            return False
        found = self.read()
        limits: list[tuple[str | None, int, RateLimit | None]] = [(None, found.max_inflight, found.rate)]
        if partition is not None:
            limits.append((partition, found.max_inflight_per_partition, found.rate_per_partition))
        for place, most, rate in limits:
            if (most and self._running[place] >= most) or (rate is not None and self._tokens(place, rate) < 1):
                return False
        for place, _, rate in limits:
            self._running[place] += 1
            if rate is not None:
                self._buckets[place] = (self._tokens(place, rate) - 1, unix_ms())
        return True

    def end(self, partition: str | None) -> None:
        """Counts that a task of this partition has ended."""
        self._running.subtract({None, partition})

    def _tokens(self, place: str | None, rate: RateLimit) -> float:
        level, at_ms = self._buckets.get(place, (rate.max_tokens, 0.0))
        return min(rate.max_tokens, level + max(unix_ms() - at_ms, 0.0) / 1000 * rate.max_tokens / rate.seconds)


class MemoryQueue(Queue):
    """A queue whose settings can be changed and read."""

    def __init__(self, client: Client, ref: QueueRef, kept: KeptSettings) -> None:
        super().__init__(broker_of(client), ref, None, None)
        self._kept = kept
        self._name = ref.name

    def configure(self, **options: Unpack[SettingKeywords]) -> None:
        for name, value in write_settings(options, self._name).items():
            self._kept.fields.pop(name, None)
            if value != "":
                self._kept.fields[name] = str(value).encode()

    def settings(self) -> QueueSettings:
        return self._kept.read()

    def pause(self, for_: Duration | None = None) -> None:
        length_ms = milliseconds(for_, "for_")
        self._kept.paused_until_ms = math.inf if length_ms is None else unix_ms() + length_ms

    def resume(self) -> None:
        self._kept.paused_until_ms = 0.0

    def is_paused(self) -> bool:
        return self._kept.is_paused


class AsyncMemoryQueue(AsyncQueue):
    """The asyncio twin of a MemoryQueue."""

    def __init__(self, broker: AsyncBroker, ref: QueueRef, of: Queue) -> None:
        super().__init__(broker, ref)
        self._of = of

    async def configure(self, **options: Unpack[SettingKeywords]) -> None:
        self._of.configure(**options)

    async def settings(self) -> QueueSettings:
        return self._of.settings()

    async def pause(self, for_: Duration | None = None) -> None:
        self._of.pause(for_)

    async def resume(self) -> None:
        self._of.resume()

    async def is_paused(self) -> bool:
        return self._of.is_paused()
