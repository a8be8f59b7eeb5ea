"""Reads the present use of a queue's limits: leases, tokens of the rate, open tasks."""

import math
from dataclasses import dataclass
from functools import partial

from jobrunner.broker.call import command
from jobrunner.broker.calls.server import server_time
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.inspector.shards import with_shards
from jobrunner.inspector.snapshot import QueueView
from jobrunner.queue_settings import RateLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUse:
    """One limit: `used` of `most`."""

    name: str
    """The setting: max_inflight, rate or max_size."""
    used: int
    most: int

    @property
    def left(self) -> int:
        """The unused part of the limit."""
        return max(self.most - self.used, 0)

    @property
    def is_spent(self) -> bool:
        """Whether the limit now blocks or refuses tasks."""
        return not self.left


def inflight_use(queue: QueueView) -> LimitUse | None:
    """The use of `max_inflight`; None without that limit."""
    if not queue.max_inflight:
        return None
    return LimitUse(name="max_inflight", used=queue.pending, most=queue.max_inflight)


def limit_uses(client: Client, queue: QueueView) -> list[LimitUse]:
    """The limits of a queue that are set, with their use. Makes a round trip when it has a rate. Raises ServerError."""
    inflight = inflight_use(queue)
    found = [] if inflight is None else [inflight]
    if queue.rate is not None:
        used = queue.rate.max_tokens - tokens_left(client, queue.name, queue.rate)
        found.append(LimitUse(name="rate", used=used, most=queue.rate.max_tokens))
    if queue.max_size:
        found.append(LimitUse(name="max_size", used=queue.waiting + queue.scheduled, most=queue.max_size))
    return found


def tokens_left(client: Client, queue: str, rate: RateLimit) -> int:
    """The tokens in the bucket now, computed as in lua/lib/token_bucket.lua, because the server refills the bucket only
    when it hands tasks out. For a queue with partitions, the sum of all shards, each of which has a slice of the
    rate."""
    shards = [keys_of(client).queue(name) for name in with_shards(client, [queue])]
    now_ms: float
    now_ms, *found = broker_of(client).run_many(
        [
            server_time(),
            *(command("HMGET", shard.bucket, "level", "at", "interval", read=list) for shard in shards),
            *(command("HGET", shard.settings, "slice_tokens", read=lambda reply: reply) for shard in shards),
        ]
    )
    if given := broker_of(client).now_ms():  # the clock that scripts get instead of the server's
        now_ms = float(given)
    slices = [rate.max_tokens if (own := _number(raw)) is None else int(own) for raw in found[len(shards) :]]
    return sum(map(partial(_left_in, now_ms, rate.seconds), found, slices))


def _left_in(now_ms: float, seconds: float, words: list[bytes | None], most: int) -> int:
    """The tokens left in one bucket with a capacity of `most`."""
    level, at_us, interval_us = (_number(word) for word in words)
    if level is None or at_us is None or not interval_us:
        return most
    tokens = level / interval_us + max(0.0, now_ms * 1000 - at_us) * most / (seconds * 1e6)
    return min(most, max(math.floor(tokens), 0))


def _number(raw: bytes | None) -> float | None:
    try:
        found = float(raw or b"nan")
    except ValueError:  # damaged: scripts take such a bucket as full
        return None
    return found if math.isfinite(found) else None
