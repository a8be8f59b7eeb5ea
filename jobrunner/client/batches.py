"""Batches: many items of a queue under one lease, committed, retried or split in one step.

Where a batch is in its life: taken → (rows are staged) → decided → rolled forward, slice by slice → done. Whatever dies
in between, each member is in exactly one place, and

1. nothing is seen in other queues before the decision;
2. what was decided is carried out to the end by whoever comes, each row once;
3. what was not decided is handed out again when its lease ended: the same members under the same id, and whatever the
   earlier holder still sends is refused (BatchLost).

How: docs/how-batches-work.md. `stage` in broker/calls/batches.py is all that executors need.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from secrets import token_hex
from typing import Any, Final

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.calls import batch_reads, tasks
from jobrunner.broker.calls import batches as calls
from jobrunner.broker.calls.batches import Advance, Claimed
from jobrunner.broker.calls.queues import register, settings
from jobrunner.broker.keys import QueueKeys, check_name
from jobrunner.client.adaptive_slices import AdaptiveSlice
from jobrunner.client.settings_hash import read_settings
from jobrunner.clock import from_ms, monotonic
from jobrunner.errors import BatchLost, InvalidName, InvalidOption, ServerError
from jobrunner.formatting import describe
from jobrunner.retry import is_spent
from jobrunner.task import new_id

__all__ = ["ROWS_AT_ONCE", "SHARED", "Advance", "BatchLease", "Batches"]

ROWS_AT_ONCE: Final = calls.ROWS_AT_ONCE
SHARED: Final = ("type", "priority", "max_attempts", "max_stalled", "keepalive_ms", "expires_in_ms", "key")
"""The fields that `open` may set on all new items, named as in a task's hash."""
_LOOK_AT: Final = 10
_RESTS = ("succeeded", "dropped")


class Batches:
    """The batches of one queue. Safe to use from several threads; keep it, as the sizes of slices are learned once."""

    def __init__(self, broker: Broker, keys: QueueKeys) -> None:
        self.broker = broker
        self.keys = keys
        self.filling, self.advancing = (AdaptiveSlice(broker, calls.ADVANCED_AT_ONCE) for _ in range(2))
        self.staging = AdaptiveSlice(broker, calls.ROWS_AT_ONCE)
        self._announcements: dict[tuple[str, ...], list[Any]] = {}
        self._unanswered: BatchLease | None = None
        """A new batch that may have members: the call that gave it the first ones had no reply."""

    def take(self, n: int, *, lease_s: float) -> "BatchLease | None":
        """A batch that is due again, else a new one with up to `n` items (0: none); None when there is nothing.

        One that comes back with `state` "committed" is decided: it only has to be rolled forward (`advance`). What is
        put back into the queue, and writes that were abandoned, are rolled forward here: no driver ran them to an end.
        """
        lease_ms = _milliseconds(lease_s)
        if n and (answered := self._answered()) is not None:
            return answered
        while found := self.claim(("finishing", "batches"), lease_ms):
            lease = BatchLease(self, found, lease_ms)
            is_abandoned = not found.size and found.rest in ("", "dead")  # a write
            if found.rest != "back" and not is_abandoned:
                return lease
            with suppress(BatchLost):  # another process was quicker
                lease.dissolve() if found.state == "open" else lease._advance_to_the_end()  # noqa: SLF001
        return self.take_new(n, lease_s=lease_s) if n else None

    def take_new(self, n: int, *, lease_s: float) -> "BatchLease | None":
        """A new batch with up to `n` items; None when none waits. Leaves batches that are due again to others."""
        lease_ms = _milliseconds(lease_s)
        batch_id = new_id(self.keys.tag)
        lease = BatchLease(self, Claimed(id=batch_id, root=batch_id), lease_ms)
        try:
            self.top_up(lease, n)
        except ServerError:  # the attempt meets it, too, and hands back what came by then
            if not lease.size:
                self._unanswered = lease  # else its members waited for the end of the lease, which counts against them
                raise
        return lease if lease.size else None

    def _answered(self) -> "BatchLease | None":
        lease, self._unanswered = self._unanswered, None
        if lease is None:
            return None
        try:
            lease.settle_size()
            if lease.size:
                lease.renew()
        except BatchLost:
            return None
        except ServerError:
            self._unanswered = lease
            raise
        return lease if lease.size else None

    def has_any(self) -> bool:
        """Whether the queue has a batch that is not decided, due or not."""
        return bool(self.broker.run(calls.foremost(self.keys, "batches", 1)))

    def top_up(self, lease: "BatchLease", n: int) -> int:
        """Up to `n` more items for a batch that is new (`lease.is_new`) and of which nothing is staged.

        Returns how many. Raises BatchLost for a part of a batch.
        """
        return lease._fill(n)  # noqa: SLF001  the two classes are one

    def open(
        self,
        *,
        lease_s: float,
        batch_id: str | None = None,
        shared: Mapping[str, str | int] | None = None,
        attempt: str = "",
    ) -> "BatchLease":
        """A batch without members, for writes. Every new item gets the `shared` fields (SHARED).

        With the `batch_id` of an earlier one it is the same again: an undecided one begins anew (its other writer is
        fenced off, what that staged is removed), `state` "committed" is to be rolled forward, "done" is done: for a day
        after its end an id says so. Who names the same `attempt` of one `batch_id` shares the batch with the others
        of that name, and it is remembered for 30 days: for writers that are many and may come back late.
        """
        if unknown := set(shared or {}) - set(SHARED):
            raise InvalidOption(f"shared fields {sorted(unknown)} are not known: choose of {', '.join(SHARED)}")
        batch_id = new_id(self.keys.tag) if batch_id is None else _check_batch_id(batch_id)
        lease_ms = _milliseconds(lease_s)
        begun = calls.begin(self.keys, batch_id, lease_ms=lease_ms, shared=shared or {}, attempt=attempt)
        return BatchLease(self, self.broker.run(begun), lease_ms)

    def resume(self, batch_id: str, epoch: int, *, lease_s: float) -> "BatchLease":
        """The batch without members that another process opened and got this epoch for. Asks nothing of the server."""
        return BatchLease(self, Claimed(id=batch_id, root=batch_id, epoch=epoch), _milliseconds(lease_s))

    def announce(self, targets: tuple[str, ...]) -> None:
        """Adds queues to the registry before their first item arrives, so that the leader maintains them. Before each
        batch, as a queue may have been deleted meanwhile."""
        if targets not in self._announcements:
            names = [f"{self.keys.tag}/{to}" if "/" in self.keys.name else to for to in targets]
            self._announcements[targets] = register(self.keys, names)
        self.broker.run_many(self._announcements[targets])

    def claim(self, indexes: Sequence[str], lease_ms: int) -> Claimed | None:
        """The first batch that is due in one of these indexes of a queue, under a new epoch."""
        for index in indexes:
            if found := self._claim_first(index, lease_ms):
                return found
        return None

    def _claim_first(self, index: str, lease_ms: int) -> Claimed | None:
        """Goes on while what it finds is gone: a batch that was split leaves parts that are due."""
        while True:
            some_gone = False
            for batch_id in self.broker.run(calls.foremost(self.keys, index, _LOOK_AT)):
                claim = calls.claim(self.keys, batch_id, lease_ms=lease_ms, name=token_hex(8))
                found = self.broker.run(claim)
                if isinstance(found, Claimed):
                    return found
                some_gone = some_gone or found
            if not some_gone:
                return None


class BatchLease:
    """One batch in the hands of a driver. Every method that writes raises BatchLost when it is not its own any more."""

    def __init__(self, batches: Batches, found: Claimed, lease_ms: int) -> None:
        self.batches = batches
        self._broker, self._keys = batches.broker, batches.keys
        self._claim = found.claim
        self._ends_ms = found.ends_ms
        self._lease_ms = lease_ms
        self._targets = found.targets
        self._is_announced = False
        self._fills = 0
        self._size_is_sure = True
        self.id = found.id
        """The same for the same members, however often they are handed out; parts of a batch have ids of their own."""
        self.queue = batches.keys.name
        """Full name of the queue."""
        self.epoch = found.epoch
        """Counts the hand-outs of the batch; reports of an earlier holder are refused."""
        self.size = found.size
        """How many members it has, with those that were deleted or cancelled since."""
        self.root, self.first = found.root, found.first
        """Id of the batch whose list the members are in: its own, unless it is a part of another. Position of its
        first member in that list."""
        self.failures, self.error = found.failures, found.error
        """How often it failed before, as reported, and why it failed last; empty when it did not."""
        self.others_worked = found.others_worked
        """Whether another part of the same root was decided before this one was taken."""
        self.is_dead = found.rest == "dead"
        """Whether it was decided, before it was taken, that its last member is dead, as attempts are spent."""
        self.state = found.state
        """open, committed or done, as far as this lease knows."""
        self.rows_before = found.rows
        """Of a write that was decided before it was opened: how many rows it had. None if that is not known."""
        self.taken_s = monotonic()
        """When this hand-out was taken, by the monotonic clock of this process."""

    @property
    def is_new(self) -> bool:
        """Whether this batch was never worked on before: it may be topped up, or dissolved at no cost.

        A part is not, though its own first hand-out has epoch 1: its members failed together before.
        """
        return self.state == "open" and self.epoch == 1 and self.root == self.id

    @property
    def deadline(self) -> datetime:
        """The end of the lease, by the server's clock."""
        return from_ms(self._ends_ms)

    def headers(self, count: int) -> list[bytes | None]:
        """The headers of up to `count` first members, as they are stored."""
        return self._broker.run_many([tasks.headers(self._keys, one) for one in self.members(0, count)])

    def waits_ms(self, most: int) -> list[tuple[float, int]]:
        """How long members had been due when the lease began or was last renewed, of up to `most` that stand evenly in
        the line, and for how many each stands. Two round trips, whatever the size."""
        now_ms, count = self._ends_ms - self._lease_ms, min(most, self.size)
        places = [self.first + (2 * n + 1) * self.size // (2 * count) for n in range(count)]
        taken = self._broker.run_many([calls.members(self._keys, self.root, at, 1) for at in places])
        due_ms = self._broker.run_many([batch_reads.due_since(self._keys, one) for some in taken for one in some])
        each, more = divmod(self.size, max(count, 1))
        return [(now_ms - due, each + (n < more)) for n, due in enumerate(due_ms) if due]

    def members(self, first: int, count: int) -> list[str]:
        """Ids of up to `count` members from position `first` on, in the order of the line.

        An item that was deleted meanwhile is among them, without a hash or with a `finished_at` in it: leave it out.
        """
        count = max(min(count, self.size - first), 0)
        if not count:
            return []
        return self._broker.run(calls.members(self._keys, self.root, self.first + first, count))

    def settle_size(self) -> None:
        """Asks for `size` when the reply to a fill was lost, and with it how many members came. That fill adds none
        after this call. Without it a decision would end members that no function has seen."""
        if not self._size_is_sure:
            self.size, self._ends_ms = self._broker.run(self._filled(0))
            self._size_is_sure = True

    def is_at_last_attempt(self) -> bool:
        """Whether its only item dies of one more failure that counts; False for a batch of several."""
        if self.size != 1:
            return False
        limit_of_member = batch_reads.max_attempts(self._keys, self.members(0, 1)[0])
        limit = self._broker.run_each([limit_of_member])[0]  # its hash may be damaged
        failures, stored = self._broker.run_many([batch_reads.failures(self._keys, self.id), settings(self._keys)])
        return is_spent(failures + 1, limit if isinstance(limit, int) else read_settings(stored).max_attempts)

    def renew(self) -> None:
        """The lease ends as long from now as it was asked for."""
        self._ends_ms = self._broker.run(calls.renew(self._keys, self.id, self.epoch, lease_ms=self._lease_ms))

    def confirm(self) -> None:
        """Returns once the batch and its members are as safe as the settings of the driver's connection ask for.

        Raises OutcomeUnknown when that is not confirmed in time: a failover could forget the batch then, and hand its
        members out under another id. Raises BatchLost also when a failover forgot that this lease was handed out and
        another holder got its epoch. After this call no other holder gets that epoch.
        """
        renewal = calls.renew(self._keys, self.id, self.epoch, lease_ms=self._lease_ms, claim=self._claim)
        self._ends_ms = self._broker.write([renewal])[0]

    def stage(self, nonce: str, words: Sequence[bytes | str], *, after: int | None = None) -> None:
        """As the call: rows of one writer, four words each. Raises UnknownMember too."""
        self._broker.run(calls.stage(self._keys, self.id, self.epoch, nonce, words, after=after))

    def decide(self, nonces: Sequence[str] | Mapping[str, int], *, rest: str, max_hops: int = 0) -> None:
        """Applies what is staged under `nonces`, no more. May be repeated. ServerRefused: counted rows are gone.

        `rest`: "succeeded" or "dropped", for members no row names. `max_hops`: an item that moves more often is dead.
        """
        if rest not in _RESTS:
            raise InvalidOption(f"rest={describe(rest)}: choose one of {', '.join(_RESTS)}")
        if not self.size:  # of a queue that may be new: the leader must know it should we die behind the decision
            self._broker.run_many(register(self._keys, [self.queue]))
        decided = calls.decide(self._keys, self.id, self.epoch, nonces, rest=rest, max_hops=max_hops)
        self._targets, self.state = self._broker.run(decided), "committed"

    def stage_all(self, nonce: str, words: Sequence[bytes | str], *, after: int) -> None:
        """Stages any number of rows, behind the `after` that are there, in calls that hold the server up shortly."""
        for part in self.batches.staging.portions(words):
            self.stage(nonce, part, after=after)
            after += len(part) // 4

    def advance(self, count: int | None = None) -> Advance:
        """Rolls it forward by one slice, of up to `count` rows and members.

        Any number may do so at once; needs no lease, only the decision.
        """
        if not self._is_announced and self._targets:
            self.batches.announce(self._targets)
        self._is_announced = True
        step = self.batches.advancing.run(
            lambda size: calls.advance(self._keys, self.id, count=size), lambda step: step.count, most=count
        )
        if step.done:
            self.state = "done"
        return step

    def fail(self, error: str, *, delay_s: float, fate: str = "failed") -> str:
        """Reports a failure. 'again': due after the delay; 'split': its parts are due now; 'dead': the item is dead.

        `fate`: as of the call: "failed"; "blamed" or "poison" for an error of a row; "divided" to split it uncounted. A
        batch without members is taken back ('dead').
        """
        end = self.end(fate, delay_ms=round(delay_s * 1000), reason=error)
        if end == "dead":
            self._advance_to_the_end()
        return end

    def release(self, *, delay_s: float = 0.0) -> None:
        """Returns the batch, due at once or after a delay; no failure is counted."""
        self.end("released", delay_ms=round(delay_s * 1000))

    def dissolve(self) -> int:
        """Takes members back to their places in line, and what was staged away. Returns how many there were."""
        self.end("dissolved")
        return self._advance_to_the_end()

    def end(self, fate: str, *, delay_ms: int = 0, reason: str = "") -> str:
        call = calls.failed_attempt(self._keys, self.id, self.epoch, fate=fate, delay_ms=delay_ms, reason=reason)
        while (word := self._broker.run(call)) == "more":
            pass
        return word

    def _advance_to_the_end(self) -> int:
        ended = 0
        while not (step := self.advance()).done:
            ended += step.ended
        return ended + step.ended

    def _fill(self, n: int) -> int:
        before, slices = self.size, self.batches.filling
        while (wanted := min(before + n - (had := self.size), slices.size)) > 0:
            self._size_is_sure = False
            self.size, self._ends_ms = slices.run(self._filled, lambda reply: reply[0] - self.size, most=wanted)
            self._size_is_sure = True
            if self.size - had < wanted:
                break
        return self.size - before

    def _filled(self, count: int) -> Call[tuple[int, float]]:
        self._fills += 1
        return calls.fill(
            self._keys, self.id, self.epoch, had=self.size, count=count, lease_ms=self._lease_ms, turn=self._fills
        )


def _milliseconds(lease_s: float) -> int:
    if not lease_s > 0:
        raise InvalidOption(f"lease_s={describe(lease_s)}: give more than 0")
    return max(round(lease_s * 1000), 1)


def _check_batch_id(batch_id: str) -> str:
    if check_name(batch_id, "batch id") in QueueKeys.__struct_fields__:
        raise InvalidName(f"batch id {batch_id!r} is reserved: it could be taken for a key of a queue; choose another")
    return batch_id
