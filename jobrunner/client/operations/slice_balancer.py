"""Balances slices by load: workers and clients read the shards of the queues that they serve about once a second."""

from jobrunner.broker.calls import slices
from jobrunner.broker.calls.slices import ShardSlices
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.operation import EachReply, Operation, ask
from jobrunner.client.operations.partitions import align
from jobrunner.client.operations.slice_plan import Usage, plan
from jobrunner.client.operations.slices import deliver, found_wrong, move
from jobrunner.clock import monotonic, unix_ms
from jobrunner.errors import JobrunnerError

LOOK_EVERY_S = 1.0
_CLAIMED_FOR_MS = 900
_UNLIMITED_S = 5.0
"""The interval of looks at a queue without limits, as it may get limits."""
_SOON_S = 0.1
_MOST_SOON = 5
"""The most looks in a row at the short interval, because a shard holds back leases to give them away."""
_WRONG_BEFORE_MENDED = 3


class SliceBalancer:
    """Moves slices of a queue to the shards where tasks wait for them.

    Each of its steps is safe at any time in any process. One process at a time looks, only to save commands.
    """

    def __init__(self, ref: QueueRef) -> None:
        self._ref = ref
        self._usage = Usage()
        self._soon = 0
        self._wrong: tuple[object, int] = (None, 0)
        self.due_at = 0.0
        """When the next look is due, by the monotonic clock."""

    def balancing(self, count: int) -> Operation[bool]:
        """Looks at `count` shards and moves slices, unless another process looked just now. Returns whether any slice
        moved. Raises ServerError."""
        self.due_at = monotonic() + LOOK_EVERY_S
        if not self._soon and not (yield from ask(slices.claim(self._ref.keys, for_ms=_CLAIMED_FOR_MS))):
            return False
        every = self._ref.first_shards(count)
        found: list[ShardSlices | JobrunnerError] = yield EachReply([slices.read(shard.keys) for shard in every])
        both = [(one, shard) for one, shard in zip(found, every, strict=True) if not isinstance(one, JobrunnerError)]
        seen, there = [one for one, _ in both], [shard for _, shard in both]
        if all(one.inflight is None and one.tokens is None for one in seen):
            self.due_at = monotonic() + _UNLIMITED_S
            return False
        if len(there) == count and (yield from self._mended(seen)):
            return True
        late = {number: one.gifts for number, one in enumerate(seen) if one.gifts}
        moved = yield from deliver(there, {number: seen[number].generation for number in late}, late)
        if len({one.generation for one in seen}) > 1:
            return moved  # its limits are being divided
        now = monotonic()
        usage = self._usage if len(there) == count else Usage()  # usage is kept by the position of the shard
        usage.note(now, seen)
        givings = plan(seen, usage, now, unix_ms() / 1000)
        moved |= yield from move(there, seen[0].generation, givings)
        holds = any(giving.hold is not None for giving in givings.values())
        self._soon = self._soon + 1 if holds and self._soon < _MOST_SOON else 0
        if self._soon:  # short tasks end soon, and their leases are to be given away
            self.due_at = monotonic() + _SOON_S
        return moved

    def _mended(self, seen: list[ShardSlices]) -> Operation[bool]:
        """Divides the limits anew after several looks with the same wrong slices: a program died while it divided them,
        or a server lost confirmed writes. Returns whether it did."""
        what = found_wrong(seen, (seen[0].max_inflight, seen[0].max_tokens))
        if what is None:
            self._wrong = None, 0
            return False
        self._wrong = what, self._wrong[1] + 1 if what == self._wrong[0] else 1
        if self._wrong[1] < _WRONG_BEFORE_MENDED:
            return False
        self._wrong = None, 0
        yield from align(self._ref)
        return True
