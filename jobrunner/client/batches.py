"""Batches: many items of a queue under one lease, committed, retried or split in one step.

The life of a batch: taken → (rows are staged) → decided → rolled forward, slice by slice → done. Whichever process dies
in between, each member is in exactly one place, and

1. other queues show nothing of the batch before the decision;
2. any process can carry a decided batch out to its end, each row once;
3. a batch that was not decided is handed out again when its lease has ended, with the same members under the same id,
   and calls of the earlier holder are refused (BatchLost).

docs/how-batches-work.md explains how. Executors need only `stage` in broker/calls/batches.py.
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
    """The batches of one queue. Safe to use from several threads. Keep the object: it learns the sizes of slices."""

    def __init__(self, broker: Broker, keys: QueueKeys) -> None:
        self.broker = broker
        self.keys = keys
        self.filling, self.advancing = (AdaptiveSlice(broker, calls.ADVANCED_AT_ONCE) for _ in range(2))
        self.staging = AdaptiveSlice(broker, calls.ROWS_AT_ONCE)
        self._announcements: dict[tuple[str, ...], list[Any]] = {}
        self._unanswered: BatchLease | None = None
        """A new batch that may have members, as the reply to its first fill was lost."""

    def take(self, n: int, *, lease_s: float) -> "BatchLease | None":
        """Takes a batch that is due again, else a new batch with up to `n` items (0: no new batch); None without
        either.

        A batch with `state` "committed" is decided: it only has to be rolled forward (`advance`). Batches whose members
        go back into the queue, and abandoned writes, are rolled forward by this call: no driver ran them to an end.
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
        """Takes a new batch with up to `n` items; None when no item waits. Leaves batches that are due to other
        drivers. A batch whose first reply was lost comes first."""
        lease_ms = _milliseconds(lease_s)
        if (answered := self._answered()) is not None:
            return answered
        batch_id = new_id(self.keys.tag)
        lease = BatchLease(self, Claimed(id=batch_id, root=batch_id), lease_ms)
        try:
            self.top_up(lease, n)
        except ServerError:  # the attempt with the members so far will get this error, too, and release them
            if not lease.size:
                self._unanswered = lease  # else its members would wait for the lease to expire, a counted failure
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
        """Adds up to `n` items to a batch that is new (`lease.is_new`) and has no staged rows.

        Returns how many were added. Raises BatchLost for a part of a batch.
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
        """Opens a batch without members, for writes. Every new item gets the `shared` fields (SHARED).

        The `batch_id` of an earlier batch opens that batch again: an undecided batch begins anew (its other writer is
        fenced off, and that writer's rows are removed), `state` "committed" means to roll it forward, and "done" is
        known for a day after its end. Callers with the same `attempt` of one `batch_id` share the batch, and it is
        remembered for 30 days: for many writers that may come back late.
        """
        if unknown := set(shared or {}) - set(SHARED):
            raise InvalidOption(f"shared fields {sorted(unknown)} are not known: choose of {', '.join(SHARED)}")
        batch_id = new_id(self.keys.tag) if batch_id is None else _check_batch_id(batch_id)
        lease_ms = _milliseconds(lease_s)
        begun = calls.begin(self.keys, batch_id, lease_ms=lease_ms, shared=shared or {}, attempt=attempt)
        return BatchLease(self, self.broker.run(begun), lease_ms)

    def resume(self, batch_id: str, epoch: int, *, lease_s: float) -> "BatchLease":
        """The lease of a batch without members that another process opened under this epoch. Sends nothing."""
        return BatchLease(self, Claimed(id=batch_id, root=batch_id, epoch=epoch), _milliseconds(lease_s))

    def announce(self, targets: tuple[str, ...]) -> None:
        """Adds queues to the registry before their first item arrives, so that the leader maintains them. Called before
        each batch, as a queue may have been deleted meanwhile."""
        if targets not in self._announcements:
            names = [f"{self.keys.tag}/{to}" if "/" in self.keys.name else to for to in targets]
            self._announcements[targets] = register(self.keys, names)
        self.broker.run_many(self._announcements[targets])

    def claim(self, indexes: Sequence[str], lease_ms: int) -> Claimed | None:
        """Takes the first batch that is due in one of these indexes of the queue, under a new epoch."""
        for index in indexes:
            if found := self._claim_first(index, lease_ms):
                return found
        return None

    def _claim_first(self, index: str, lease_ms: int) -> Claimed | None:
        """Reads the index again while all batches found are gone: a batch that was split leaves parts that are due."""
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
    """A driver's lease of one batch. Every method that writes raises BatchLost when another driver has the batch."""

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
        """The batch's id, the same at each hand-out of the same members; parts of a batch have ids of their own."""
        self.queue = batches.keys.name
        """Full name of the queue."""
        self.epoch = found.epoch
        """Counts the hand-outs of the batch; reports of an earlier holder are refused."""
        self.size = found.size
        """How many members the batch has, with those that were deleted or cancelled since."""
        self.root, self.first = found.root, found.first
        """Id of the batch whose list has the members (its own id, or for a part the id of the batch that was split),
        and the position of the first member in that list."""
        self.failures, self.error = found.failures, found.error
        """How many failures were reported before, and the error of the last failure, empty without one."""
        self.others_worked = found.others_worked
        """Whether another part of the same root was decided before this part was taken."""
        self.is_dead = found.rest == "dead"
        """Whether it was decided before this hand-out that its last member is dead, as attempts are spent."""
        self.state = found.state
        """open, committed or done, as far as this lease knows."""
        self.rows_before = found.rows
        """How many rows a write had that was decided before it was opened. None for other batches, or if unknown."""
        self.taken_s = monotonic()
        """When this hand-out was taken, by the monotonic clock of this process."""

    @property
    def is_new(self) -> bool:
        """Whether this batch was never worked on before: then it may be topped up, or dissolved at no cost.

        A part of a batch is not new, though its first hand-out has epoch 1: its members failed together before.
        """
        return self.state == "open" and self.epoch == 1 and self.root == self.id

    @property
    def deadline(self) -> datetime:
        """The end of the lease, by the server's clock."""
        return from_ms(self._ends_ms)

    def headers(self, count: int) -> list[bytes | None]:
        """The headers of the first members, `count` at most, as they are stored."""
        return self._broker.run_many([tasks.headers(self._keys, one) for one in self.members(0, count)])

    def waits_ms(self, most: int) -> list[tuple[float, int]]:
        """Samples how long members had been due when the lease began or was last renewed: ms, and how many members the
        sample stands for, of up to `most` members at even distances. Two round trips, whatever the size."""
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
        """Reads `size` from the server when the reply to a fill was lost; that fill adds no members after this call.
        Otherwise a decision would end members that no function has processed."""
        if not self._size_is_sure:
            self.size, self._ends_ms, _ = self._broker.run(self._filled(0))
            self._size_is_sure = True

    def is_at_last_attempt(self) -> bool:
        """Whether the only item dies of one more counted failure; False for a batch with several items."""
        if self.size != 1:
            return False
        limit_of_member = batch_reads.max_attempts(self._keys, self.members(0, 1)[0])
        limit = self._broker.run_each([limit_of_member])[0]  # its hash may be damaged
        failures, stored = self._broker.run_many([batch_reads.failures(self._keys, self.id), settings(self._keys)])
        return is_spent(failures + 1, limit if isinstance(limit, int) else read_settings(stored).max_attempts)

    def renew(self) -> None:
        """Extends the lease by its full length from now."""
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
        """Stages rows of one writer, four words each, as `stage` in broker/calls/batches.py. Also raises
        UnknownMember."""
        self._broker.run(calls.stage(self._keys, self.id, self.epoch, nonce, words, after=after))

    def decide(self, nonces: Sequence[str] | Mapping[str, int], *, rest: str, max_hops: int = 0) -> None:
        """Decides that only the rows staged under `nonces` apply. May be repeated. ServerRefused: counted rows are
        gone.

        `rest`: "succeeded" or "dropped", for members no row names. `max_hops`: an item that moves more often is dead.
        """
        if rest not in _RESTS:
            raise InvalidOption(f"rest={describe(rest)}: choose one of {', '.join(_RESTS)}")
        if not self.size:  # the queue may be new: if this process dies after the decision, the leader must find it
            self._broker.run_many(register(self._keys, [self.queue]))
        decided = calls.decide(self._keys, self.id, self.epoch, nonces, rest=rest, max_hops=max_hops)
        self._targets, self.state = self._broker.run(decided), "committed"

    def stage_all(self, nonce: str, words: Sequence[bytes | str], *, after: int) -> None:
        """Stages any number of rows after the `after` rows already staged, in calls that block the server only
        shortly."""
        for part in self.batches.staging.portions(words):
            self.stage(nonce, part, after=after)
            after += len(part) // 4

    def advance(self, count: int | None = None) -> Advance:
        """Rolls the batch forward by one slice, of up to `count` rows and members.

        Any number of processes may do so at once; it needs no lease, only the decision.
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
        """Returns members to their places in line and removes staged rows. Returns how many members there were."""
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
            found = slices.run(self._filled, lambda reply: reply[0] - self.size, most=wanted)
            self.size, self._ends_ms, is_cut_short = found
            self._size_is_sure = True
            if self.size - had < wanted and not is_cut_short:
                break
        return self.size - before

    def _filled(self, count: int) -> Call[tuple[int, float, bool]]:
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
