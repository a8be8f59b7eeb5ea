"""Plans which shard of a queue gives which part of its slices to which other shard, so that slices follow the load.

Slices are divided by max-min fairness: no shard has more than it needs while another needs more, and shards that need
more than is available have equal slices. A shard keeps the leases and tokens that it uses or used in the last seconds,
and gives only to shards that are held up. Slices that no shard needs stay where they are. The limit does not depend on
the plan: however wrong it is, the scripts give away only what a shard does not use.
"""

from collections.abc import Mapping, Sequence
from math import ceil, inf

import msgspec

from jobrunner.broker.calls.slices import ShardSlices

_REMEMBERED_S = 5.0
_TURN_S = 2.0
"""The length of a turn, where the limit has less than one lease or token for each waiting shard."""


class Giving(msgspec.Struct):
    """The gifts of one shard: number of the receiver → (leases, tokens). `hold`: how many leases the giver may hold
    from now on (None: its slice)."""

    gifts: dict[int, tuple[int, int]] = {}
    hold: int | None = None


class Usage:
    """The use of leases and the arrivals of each shard in the last seconds, computed from successive looks."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, int]] = {}
        self._peaks: dict[int, tuple[float, int]] = {}
        self._active: dict[int, float] = {}
        self._arrivals: dict[int, float] = {}

    def note(self, now: float, shards: Sequence[ShardSlices]) -> None:
        """Records the shards as read at `now`."""
        for number, shard in enumerate(shards):
            at, enqueued = self._seen.get(number, (now, shard.enqueued))
            if shard.enqueued != enqueued:
                self._active[number] = now
            past = (shard.enqueued - enqueued) / (now - at) if now > at else 0.0
            self._arrivals[number] = max(past, self._arrivals.get(number, 0.0) / 2, 0.0)
            self._seen[number] = now, shard.enqueued
            peak_at, peak = self._peaks.get(number, (0.0, 0))
            if shard.pending >= peak or now - peak_at > _REMEMBERED_S:
                self._peaks[number] = now, shard.pending

    def leases(self, number: int) -> int:
        """The most leases that a shard held in the last seconds."""
        return self._peaks[number][1]

    def arrivals(self, number: int) -> float:
        """Tasks that arrived per second."""
        return self._arrivals[number]

    def is_active(self, number: int, now: float) -> bool:
        """Whether a shard got tasks in the last seconds."""
        return now - self._active.get(number, -inf) <= _REMEMBERED_S


def plan(shards: Sequence[ShardSlices], usage: Usage, now: float, turn_s: float) -> dict[int, Giving]:
    """The gifts of each shard, by its number. `turn_s`: a clock that all balancers share, in seconds."""
    turn = int(turn_s / _TURN_S)
    found: dict[int, Giving] = {}
    _plan_leases(shards, usage, now, turn, found)
    _plan_tokens(shards, usage, now, turn, found)
    return found


def _plan_leases(
    shards: Sequence[ShardSlices], usage: Usage, now: float, turn: int, found: dict[int, Giving]
) -> None:
    slices = [shard.inflight or 0 for shard in shards]
    hungry = [
        shard.inflight is not None and shard.waiting > 0 and shard.pending >= shard.usable and not shard.is_paused
        for shard in shards
    ]
    if any(hungry):
        demands = [
            shard.pending + shard.waiting
            if is_hungry
            else max(shard.pending, usage.leases(number), int(shard.waiting > 0 or usage.is_active(number, now)))
            for number, (shard, is_hungry) in enumerate(zip(shards, hungry, strict=True))
        ]
        if sum(demand > 0 for demand in demands) > sum(slices):  # too few to reserve any for future tasks
            demands = [
                demand if is_hungry else shard.pending
                for demand, shard, is_hungry in zip(demands, shards, hungry, strict=True)
            ]
        targets = fair_shares(sum(slices), demands, slices, turn)
        unused = [max(slice_ - shard.pending, 0) for slice_, shard in zip(slices, shards, strict=True)]
        needs = {number: targets[number] - slices[number] for number, is_hungry in enumerate(hungry) if is_hungry}
        spare = [slice_ - target for slice_, target in zip(slices, targets, strict=True)]
        rest = _match(needs, {n: min(spare[n], unused[n]) for n in range(len(shards))}, found, 0)
        for number in sorted(range(len(shards)), key=spare.__getitem__, reverse=True):
            more = min(spare[number] - unused[number], rest)
            if more > 0:
                rest -= more
                in_use = min(shards[number].pending, slices[number])
                found.setdefault(number, Giving({})).hold = in_use - more
    for number, shard in enumerate(shards):  # a hold ends when no shard waits for it
        if shard.hold is not None:
            found.setdefault(number, Giving({}))


def _plan_tokens(
    shards: Sequence[ShardSlices], usage: Usage, now: float, turn: int, found: dict[int, Giving]
) -> None:
    slices = [shard.tokens or 0 for shard in shards]
    hungry = [
        shard.tokens is not None and shard.waiting > shard.level and not shard.is_paused for shard in shards
    ]  # fmt: skip
    if not any(hungry):
        return
    demands = []
    for number, shard in enumerate(shards):
        interval_s = max(shard.interval_us / 1_000_000, 1.0)
        flow = usage.arrivals(number) + (shard.waiting if hungry[number] else 0)
        least = int(shard.waiting > 0 or usage.is_active(number, now))
        demands.append(max(ceil(flow * interval_s), least))
    if sum(demand > 0 for demand in demands) > sum(slices):
        demands = [demand if is_hungry else 0 for demand, is_hungry in zip(demands, hungry, strict=True)]
    targets = fair_shares(sum(slices), demands, slices, turn)
    needs = {number: targets[number] - slices[number] for number, is_hungry in enumerate(hungry) if is_hungry}
    _match(needs, {n: slices[n] - targets[n] for n in range(len(shards))}, found, 1)


def _match(needs: Mapping[int, int], spare: Mapping[int, int], found: dict[int, Giving], place: int) -> int:
    """Lets the shards with most to spare give to the shards that need most; returns the need that is left."""
    left = {number: more for number, more in spare.items() if more > 0}
    rest = 0
    for taker, need in sorted(needs.items(), key=lambda one: one[1], reverse=True):
        for giver in sorted(left, key=left.__getitem__, reverse=True):
            amount = min(need, left[giver])
            if amount <= 0:
                break
            need -= amount
            left[giver] -= amount
            gift = list(found.setdefault(giver, Giving({})).gifts.get(taker, (0, 0)))
            gift[place] = amount
            found[giver].gifts[taker] = (gift[0], gift[1])
        rest += max(need, 0)
    return rest


def fair_shares(total: int, demands: Sequence[int], slices: Sequence[int], turn: int) -> list[int]:
    """The max-min fair shares of a total. The remainder after equal shares goes to the shards that have more now; where
    the total is less than one for each shard, they take turns."""
    shares = [0] * len(demands)
    wanting = [number for number, demand in enumerate(demands) if demand > 0]
    while wanting and total > 0:
        each = total // len(wanting)
        if each == 0:
            if any(shares[number] for number in wanting):
                wanting.sort(key=lambda number: slices[number], reverse=True)
            else:
                first = turn * total % len(wanting)
                wanting = wanting[first:] + wanting[:first]
            for number in wanting[:total]:
                shares[number] += 1
            break
        for number in wanting:
            more = min(each, demands[number] - shares[number])
            shares[number] += more
            total -= more
        wanting = [number for number in wanting if shares[number] < demands[number]]
    return shares
