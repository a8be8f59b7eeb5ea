"""Slices of `max_inflight` and `rate` that the shards of a queue have: dividing the limits, and moving slices to shards
where tasks wait (decision 52).

Invariant: the sum of the slices of `max_inflight` and of the gifts under way never exceeds the limit, whichever process
dies between two steps, whichever call is sent twice, and however many processes do this at once. A division has a
number, its generation. Shards begin it one by one, and their slices only shrink; the first shard, which begins it last,
gets the rest of the limit. So parts that were lost on the way, or with a server, are back after the next division.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from jobrunner.broker.calls import slices
from jobrunner.broker.calls.queues import register
from jobrunner.broker.calls.slices import Begun, Gift, Limit, ShardSlices
from jobrunner.broker.resp import Arg
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.operation import Calls, EachReply, Operation, ask
from jobrunner.client.operations.slice_plan import Giving
from jobrunner.errors import JobrunnerError
from jobrunner.queue_settings import QueueSettings

Limits = tuple[Limit, Limit]
_WAYS: Sequence[tuple[bool, bool]] = ((True, False), (False, False), (False, True))
"""The ways in which a division reduces slices: in proportion, to the leases in use, to nothing. The next way is tried
when the first shard holds more leases than the rest of the limit."""


class Divided(Enum):
    """The outcome of a division of limits."""

    DONE = "done"
    SUPERSEDED = "another one was begun; what this one read may be out of date"
    REFUSED = "more leases are held than the limit; the slices are less than the limit together"


def limits_of(settings: QueueSettings) -> Limits:
    """The limits of the whole queue that are divided into slices: leases, and tokens."""
    return settings.max_inflight or None, None if settings.rate is None else settings.rate.max_tokens


def found_wrong(shards: Sequence[ShardSlices], limits: Limits) -> object:
    """The fault in the slices as read; None when their sum, with the gifts under way, is the limits. Reading all shards
    is not atomic, and slices move, so a single finding may be a false alarm."""
    gifts = [gift for one in shards for gift in one.gifts]
    inflight = sum(one.inflight or 0 for one in shards) + sum(gift.leases for gift in gifts)
    tokens = sum(one.tokens or 0 for one in shards) + sum(gift.tokens for gift in gifts)
    kinds = {(one.generation, one.inflight is None, one.tokens is None, one.interval_us) for one in shards}
    are_limited = {(one.inflight is None, one.tokens is None) for one in shards}
    is_right = (inflight, tokens) == (limits[0] or 0, limits[1] or 0) and len(kinds) == 1
    if is_right and are_limited == {(limits[0] is None, limits[1] is None)}:
        return None
    return inflight, tokens, frozenset(kinds)


def begin_division(ref: QueueRef) -> Operation[int]:
    """Returns the number of a new division. Reads after this call see all writes of the division before it: the first
    shard ends only the division that was begun last."""
    return (yield from ask(slices.allocate_generation(ref.keys)))


def divide(
    ref: QueueRef, generation: int, count: int, before: Limits, limits: Limits,
    fields_of: Callable[[int], Mapping[str, Arg]], *, may_exceed: bool,
) -> Operation[Divided]:  # fmt: skip
    """Divides limits among `count` shards; writes each shard's settings, `fields_of` its number, in the same step."""
    every = ref.first_shards(count)
    for in_proportion, by_force in _WAYS if may_exceed else _WAYS[:-1]:
        reduced: Limits = limits if in_proportion else (limits[0] and 0, limits[1] and 0)
        begun = yield from _enter(every[1:], generation, reduced, before, fields_of, by_force=by_force)
        latest = max((one.superseded_by for one in begun if one.superseded_by is not None), default=0)
        if latest:  # also when the first shard lost its number, as with its server
            yield [slices.allocate_generation(ref.keys, above=latest - generation)]
            return Divided.SUPERSEDED
        others = sum(one.inflight for one in begun), sum(one.tokens for one in begun)
        first = yield from ask(slices.settle(ref.keys, generation, limits, others, fields_of(0), may_exceed=by_force))
        if first.superseded_by is not None:
            return Divided.SUPERSEDED
        if not first.is_held_up:
            yield from _spread(every, generation, limits, [first, *begun])
            return Divided.DONE
        if (following := (yield from begin_division(ref))) != generation + 1:
            return Divided.SUPERSEDED
        generation = following
    return Divided.REFUSED


def _enter(
    others: Sequence[QueueRef], generation: int, limits: Limits, before: Limits,
    fields_of: Callable[[int], Mapping[str, Arg]], *, by_force: bool,
) -> Operation[list[Begun]]:  # fmt: skip
    if not others:
        return []
    registering = register(others[0].all_keys, [shard.name for shard in others])
    entering = [
        slices.enter(shard.keys, generation, limits, before, fields_of(number), may_exceed=by_force)
        for number, shard in enumerate(others, 1)
    ]
    replies: list[Begun] = yield [*registering, *entering]
    return replies[len(registering) :]


def _spread(every: Sequence[QueueRef], generation: int, limits: Limits, begun: Sequence[Begun]) -> Operation[None]:
    """Gives the first shard's excess over an even share to the shards that have less."""
    gifts: dict[int, tuple[int, int]] = {}
    left = [0, 0]
    for number, one in enumerate(begun):
        missing = [0, 0]
        for place, (limit, own) in enumerate(zip(limits, (one.inflight, one.tokens), strict=True)):
            if limit is None:
                continue
            even = limit // len(every) + (number < limit % len(every))
            if number == 0:
                left[place] = max(own - even, 0)
            missing[place] = min(max(even - own, 0), left[place]) if number else 0
            left[place] -= missing[place]
        if any(missing):
            gifts[number] = missing[0], missing[1]
    if gifts:
        yield from move(every, generation, {0: Giving(gifts)})


def move(every: Sequence[QueueRef], generation: int, givings: Mapping[int, Giving]) -> Operation[bool]:
    """Gives parts of slices away and delivers them. Returns whether any gift arrived."""
    if not givings:
        return False
    calls = [
        slices.give(
            every[giver].keys,
            generation,
            [(every[taker].name, *amounts) for taker, amounts in giving.gifts.items()],
            hold=giving.hold,
        )
        for giver, giving in givings.items()
    ]
    replies: list[Sequence[Gift] | JobrunnerError] = yield EachReply(list(calls))
    given = {
        giver: gifts for giver, gifts in zip(givings, replies, strict=True) if not isinstance(gifts, JobrunnerError)
    }
    return (yield from deliver(every, dict.fromkeys(given, generation), given))


def deliver(
    every: Sequence[QueueRef], generations: Mapping[int, int], given: Mapping[int, Sequence[Gift]]
) -> Operation[bool]:
    """Delivers gifts, by the number of their giver, and lets the givers forget gifts that arrived. The next look
    delivers the others. Returns whether any gift arrived."""
    by_name = {shard.name: shard for shard in every}
    sent = [(giver, gift) for giver, gifts in given.items() for gift in gifts if gift.shard in by_name]
    if not sent:
        return False
    replies: list[str | JobrunnerError] = yield EachReply(
        [
            slices.take(by_name[gift.shard].keys, every[giver].name, generations[giver], gift)
            for giver, gift in sent
        ]
    )
    ended: dict[int, list[Gift]] = {}
    for (giver, gift), reply in zip(sent, replies, strict=True):
        if reply in ("taken", "had", "late"):
            ended.setdefault(giver, []).append(gift)
    forgetting: Calls = [slices.forget(every[giver].keys, gifts) for giver, gifts in ended.items()]
    if forgetting:
        yield EachReply(forgetting)
    return "taken" in replies
