"""Calls about batches: fill, begin, claim, renew, stage, decide, advance, fail.

A batch is a set of items of a queue in `pending` under one lease, which a driver holds. Their outcomes are staged as
rows, which stay invisible until the batch is decided, in one step whatever its size; then any process rolls it forward
in slices. A row is four words:

========= =============================================================================================================
word      content
========= =============================================================================================================
id        of a member; or with `new` of an item to create unless it exists
to        short name of the queue it goes to; '' = it dies, and `payload` is the reason
payload   as it is stored, JSON
more      '' or a JSON object with any of `new` (1), `parent` (member whose hops and headers a new item inherits, made
          only while that is a member), `priority`, `delay_ms`, `headers` (added to those it has), `type`,
          `over` (1: it goes in although the queue is full); of a new item also `key`, `at_ms` (due then, Unix ms)
========= =============================================================================================================
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from jobrunner.attempt import number_from
from jobrunner.broker.call import Call, ScriptCommand, command, text, texts
from jobrunner.broker.keys import QueueKeys, check_name
from jobrunner.broker.resp import Arg
from jobrunner.errors import BatchLost, InvalidName, InvalidOption, ServerRefused, UnknownMember

T = TypeVar("T")
ROWS_AT_ONCE = 500
"""The most rows one call stages, as a script blocks the server."""
ADVANCED_AT_ONCE = 250
"""Rows and members of one slice when rolling forward, and members of one slice when filling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A batch as it was handed out. `state`: open, or committed for a batch that only has to be rolled forward."""

    id: str
    root: str
    """Id of the batch whose list has the members: its own id, or for a part the id of the batch that was split."""
    epoch: int = 1
    state: str = "open"
    ends_ms: float = 0.0
    size: int = 0
    failures: int = 0
    first: int = 0
    error: str = ""
    targets: tuple[str, ...] = ()
    """Short names of the queues that staged rows go to."""
    others_worked: bool = False
    """Whether another part of the same root was decided: then the root's error does not come from every item."""
    rest: str = ""
    """The fate of members that no row names, once the batch is decided: succeeded, dropped, back (to the queue) or
    dead. For the last two no driver ran the batch to its end."""
    claim: str = ""
    """The name of the claim that handed the batch out; empty for a batch that its holder filled."""
    rows: int | None = None
    """How many rows a write has that was decided before. None for other batches, and for a write by an earlier
    version."""


@dataclass(frozen=True, slots=True)
class Advance:
    """The result of rolling a batch forward by one slice. `full`: a target queue (short name) at its max_size; try
    later.

    `ended`: members that no row names, and those put back; `skipped`: rows whose item left meanwhile, or exists.
    """

    done: bool
    moved: int
    new: int
    dead: int
    ended: int
    skipped: int
    full: str | None

    @property
    def count(self) -> int:
        """How many rows and members the slice had."""
        return self.moved + self.new + self.dead + self.ended + self.skipped


def _texts(words: Iterable[bytes]) -> tuple[str, ...]:
    return tuple(word.decode() for word in words)


def _advanced(reply: list[Any]) -> Advance:
    return Advance(*[reply[0] == b"done", *reply[1:6], reply[6].decode() or None])


def _filled(reply: list[Any]) -> tuple[int, float, bool]:
    return reply[0], float(reply[1] or 0), reply[2] == 1


_fill = ScriptCommand("batch_fill", _filled)
_begin: ScriptCommand[Any] = ScriptCommand("batch_begin", lambda reply: reply)
_claim: ScriptCommand[Any] = ScriptCommand("batch_claim", lambda reply: reply)
_renew = ScriptCommand("batch_renew", float)
_stage: ScriptCommand[Any] = ScriptCommand("batch_stage", lambda reply: reply)
_decide: ScriptCommand[Any] = ScriptCommand("batch_decide", lambda reply: reply)
_failed_attempt = ScriptCommand("batch_fail", text)
_advance = ScriptCommand("batch_advance", _advanced)


def _with_batch(
    verb: ScriptCommand[T], keys: QueueKeys, batch_id: str, /, *, rest: Iterable[Arg] = (), **args: Arg
) -> Call[T]:
    """A call on one batch; its reader raises BatchLost."""
    batch = keys.batch + batch_id.encode()
    script_keys = tuple(batch if name == "batch" else getattr(keys, name) for name in verb.script.keys)
    call = verb.with_keys(script_keys, rest=rest, id=batch_id, **args)
    return replace(call, read=partial(_unless_lost, batch_id, call.read))


def _unless_lost(batch_id: str, read: Callable[[Any], T], reply: Any) -> T:
    word = reply[0] if isinstance(reply, list) and reply else reply
    if word == b"half":
        raise BatchLost(
            f"batch {batch_id} is a part of a batch that failed and was split: it takes no more items; "
            "run it with the members that it has"
        )
    if word == b"lost":
        raise BatchLost(
            f"batch {batch_id} is held by another driver, its lease ended, or it is decided; this changed nothing"
        )
    return read(reply)


def fill(
    keys: QueueKeys, batch_id: str, epoch: int, *, had: int, count: int, lease_ms: int, turn: int
) -> Call[tuple[int, float, bool]]:
    """Adds up to `count` members, first in line, to a batch that has `had` members; with `had` 0 the batch is new.
    `turn` counts the calls for the batch from 1.

    Reply: how many members the batch has; the end of its lease, Unix ms; and whether more tasks may wait behind those
    that the call looked at. The first two are 0 for a batch that does not exist because the call found no task. In a
    batch that exists a repeated call changes nothing, however late it arrives. Raises BatchLost, also for a part of a
    batch: a part never gets other members.
    """
    return _with_batch(
        _fill, keys, batch_id, tasks=keys.tasks, queue=keys.name, epoch=epoch, had=had, count=count,
        lease=number_from(batch_id), lease_ms=lease_ms, turn=turn,
    )  # fmt: skip


def begin(
    keys: QueueKeys, batch_id: str, *, lease_ms: int, shared: Mapping[str, Arg], attempt: str = ""
) -> Call[Claimed]:
    """Opens a batch without members, for writes, or takes an undecided batch over. Every new item gets the `shared`
    fields.

    Calls with the same `attempt` share the batch instead; the server remembers such a batch for 30 days after its end.
    """
    words = [word for pair in shared.items() for word in pair]
    call = _with_batch(_begin, keys, batch_id, rest=words, queue=keys.name, lease_ms=lease_ms, attempt=attempt)
    return replace(call, read=partial(_begun, batch_id))


def _begun(batch_id: str, reply: list[Any]) -> Claimed:
    epoch, state, ends, rows, *targets = reply
    return Claimed(
        id=batch_id, root=batch_id, epoch=epoch, state=state.decode(), ends_ms=float(ends), targets=_texts(targets),
        rows=None if rows < 0 else rows,
    )  # fmt: skip


def foremost(keys: QueueKeys, index: str, count: int) -> Call[list[str]]:
    """Ids of the batches that are due first. `index`: 'batches', or 'finishing' for batches that need no driver."""
    return command("ZRANGE", getattr(keys, index), 0, count - 1, read=texts)


def claim(keys: QueueKeys, batch_id: str, *, lease_ms: int, name: str = "") -> Call[Claimed | bool]:
    """Takes a batch under a new epoch; False when it is not due yet; True when it is gone, and another may be due.

    `name` identifies this claim. The epoch does not: a failover may forget a claim, and the next claim gets its epoch.
    With a name the call may be sent again, with the same reply.
    """
    call = _with_batch(_claim, keys, batch_id, tasks=keys.tasks, lease_ms=lease_ms, claim=name)
    return replace(call, read=partial(_claimed, batch_id, name), repeatable=name != "")


def _claimed(batch_id: str, claim: str, reply: list[Any]) -> Claimed | bool:
    if len(reply) < 2:
        return bool(reply)
    epoch, state, ends, size, failures, root, first, error, others, rest, *targets = reply
    return Claimed(
        id=batch_id, root=root.decode(), epoch=epoch, state=state.decode(), ends_ms=float(ends), size=size,
        failures=failures, first=first, error=error.decode("utf-8", "replace"), targets=_texts(targets), claim=claim,
        others_worked=bool(others), rest=rest.decode(),
    )  # fmt: skip


def renew(keys: QueueKeys, batch_id: str, epoch: int, *, lease_ms: int, claim: str = "") -> Call[float]:
    """Extends the lease to `lease_ms` from now. Reply: its end, Unix ms. Raises BatchLost.

    With the name of a `claim` it also raises BatchLost when another claim has this epoch.
    """
    return _with_batch(_renew, keys, batch_id, epoch=epoch, lease_ms=lease_ms, claim=claim)


def stage(
    keys: QueueKeys, batch_id: str, epoch: int, nonce: str, words: Sequence[bytes | str], *, after: int | None = None
) -> Call[None]:
    """Appends rows, four words each, up to ROWS_AT_ONCE, to the rows that the writer with this nonce has staged.

    `after` is the number of rows staged so far, so that the call may be sent again when its reply was lost; without it
    a writer that meets OutcomeUnknown must begin anew with another nonce. Raises BatchLost, and UnknownMember for a row
    whose item is not in the batch: then the call staged nothing.
    """
    if len(words) % 4 or len(words) > 4 * ROWS_AT_ONCE:
        raise InvalidOption(f"{len(words)} words: give four for each row, and up to {ROWS_AT_ONCE} rows at once")
    _check_targets(keys, {to if isinstance(to, str) else to.decode() for to in set(words[1::4])})
    given: Arg = "" if after is None else after
    call = _with_batch(_stage, keys, batch_id, rest=words, epoch=epoch, nonce=nonce, after=given)
    return replace(call, read=partial(_unless_lost, batch_id, partial(_staged, batch_id)), repeatable=after is not None)


def _check_targets(keys: QueueKeys, targets: set[str]) -> None:
    for to in targets - {""}:
        check_name(to, "queue name")
        if "/" not in keys.name and to != keys.name:
            raise InvalidName(f"queue {to!r}: {keys.name!r} is of no pipeline, so what is in it goes to no other queue")


def _staged(batch_id: str, reply: list[bytes]) -> None:
    if reply:
        raise UnknownMember(
            f"item {reply[1].decode('utf-8', 'replace')!r} is no member of batch {batch_id}: nothing was staged; "
            "mark rows that are new items as new, those of a station on Spark by emits_new=True and a null _id"
        )


def decide(
    keys: QueueKeys, batch_id: str, epoch: int, nonces: Sequence[str] | Mapping[str, int], *, rest: str,
    max_hops: int = 0,
) -> Call[tuple[str, ...]]:  # fmt: skip
    """Decides that the rows staged under these nonces are applied. Raises BatchLost.

    Reply: short names of the queues that the rows go to.

    `nonces` may map each nonce to its number of staged rows: the call then raises ServerRefused, and decides nothing,
    when a restart or a failover lost some of these rows. `rest`: 'succeeded' or 'dropped', for members that no row
    names. An item that moves more than `max_hops` times in its life is dead (0: no limit).
    """
    rows = nonces if isinstance(nonces, Mapping) else dict.fromkeys(nonces, "")
    words: list[Arg] = [word for pair in rows.items() for word in pair]
    call = _with_batch(_decide, keys, batch_id, rest=words, epoch=epoch, max_hops=max_hops, remainder=rest)
    return replace(call, read=partial(_unless_lost, batch_id, partial(_decided, batch_id)))


def _decided(batch_id: str, reply: list[bytes]) -> tuple[str, ...]:
    if reply[0] == b"missing":
        raise ServerRefused(rows_lost(batch_id))
    return _texts(reply[1:])


def rows_lost(batch_id: str) -> str:
    """The error message for a batch whose staged rows a restart or a failover of the server lost."""
    return (
        f"batch {batch_id}: the server restarted or failed over since its rows were staged, and may have lost some of "
        "them; nothing was decided, and the batch is to be run again"
    )


def advance(keys: QueueKeys, batch_id: str, *, count: int = ADVANCED_AT_ONCE) -> Call[Advance]:
    """Rolls a decided batch forward by up to `count` rows and members. Raises BatchLost when it is not decided."""
    return _with_batch(_advance, keys, batch_id, tasks=keys.tasks, queue=keys.name, finished=keys.finished, count=count)


def failed_attempt(
    keys: QueueKeys, batch_id: str, epoch: int, *, fate: str, delay_ms: int = 0, reason: str = ""
) -> Call[str]:
    """Ends an attempt without a decision: 'failed' (counts; a batch that failed twice is split), 'blamed' (counts, and
    is split at once), 'poison' (as that, and final for a member that is alone), 'divided' (is split, and does not
    count; a single member is released), 'released' (does not count), 'dissolved' (members go back).

    Reply: 'again', 'split', 'dead' or 'dissolved' (both are to be rolled forward), 'more' (call again). Raises
    BatchLost.
    """
    return _with_batch(
        _failed_attempt, keys, batch_id, tasks=keys.tasks, epoch=epoch, fate=fate, delay_ms=delay_ms, reason=reason
    )


def members(keys: QueueKeys, root: str, first: int, count: int) -> Call[list[str]]:
    """Ids of members by their position in the list of batch `root`."""
    return command("LRANGE", member_list(keys, root), first, first + count - 1, read=texts)


def member_list(keys: QueueKeys, batch_id: str) -> bytes:
    """The key of the list of members of a batch that is no part."""
    return part_key(keys, batch_id, ":members")


def part_key(keys: QueueKeys, batch_id: str, of: str) -> bytes:
    """The key of one of the lists and sets of a batch."""
    return keys.batch + (batch_id + of).encode()
