"""Calls about batches: fill, begin, claim, renew, stage, decide, advance, setback.

A batch is what a driver holds of a queue: items that stand in `pending`, under one lease. What becomes of them is
staged as rows where nobody sees it, decided in one step whatever the size, and rolled forward in slices by whoever
comes. A row is four words:

========= =============================================================================================================
word      content
========= =============================================================================================================
id        of a member; or with `new` of an item that is made unless there is one
to        short name of the queue it goes to; '' = it is dead, and `payload` says why
payload   bytes as they are stored, JSON
more      '' or a JSON object with any of `new` (1), `parent` (member whose hops and headers a new item takes over, made
          only while that is a member), `priority`, `delay_ms`, `headers` (laid over those it has), `type`,
          `over` (1: it goes in although the queue is full); of a new item also `key`, `at_ms` (due then, Unix ms)
========= =============================================================================================================
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from jobrunner.broker.call import Call, Verb, Word, command
from jobrunner.broker.keys import QueueKeys, check_name
from jobrunner.broker.replies import texts
from jobrunner.errors import BatchLost, InvalidName, InvalidOption, UnknownMember
from jobrunner.holder import number_from

ROWS_AT_ONCE = 500
"""So many rows a call stages at most: the server does nothing else meanwhile."""
ADVANCED_AT_ONCE = 250
"""So many rows and members a slice of rolling forward takes, and so many members one of filling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A batch as it was handed out. `state`: open, or committed, when all that is left is to roll it forward."""

    id: str
    epoch: int
    state: str
    ends_ms: float
    size: int
    failures: int
    root: str
    """Id of the batch whose list its members are in: its own, unless it is the half of another."""
    first: int
    error: str
    targets: tuple[str, ...]
    """Short names of the queues that staged rows go to."""


@dataclass(frozen=True, slots=True)
class Advance:
    """What one slice of rolling forward did. `full` is the queue (short name) that has no room: come again later.

    `ended`: members no row named, and those put back; `skipped`: rows whose item left meanwhile or was there before.
    """

    done: bool
    moved: int
    new: int
    dead: int
    ended: int
    skipped: int
    full: str | None


def _texts(words: Iterable[bytes]) -> tuple[str, ...]:
    return tuple(word.decode() for word in words)


def _claimed(batch_id: str, reply: list[Any]) -> Claimed | bool:
    if len(reply) < 2:
        return bool(reply)
    epoch, state, ends, size, failures, root, first, error, *targets = reply
    return Claimed(
        id=batch_id,
        epoch=epoch,
        state=state.decode(),
        ends_ms=float(ends),
        size=size,
        failures=failures,
        root=root.decode(),
        first=first,
        error=error.decode("utf-8", "replace"),
        targets=_texts(targets),
    )


_fill = Verb("fill", lambda reply: reply)
_begin = Verb("begin", lambda reply: reply)
_claim = Verb("claim", lambda reply: reply, repeatable=False)
_renew = Verb("renew", lambda reply: reply)
_stage = Verb("stage", lambda reply: reply)
_decide = Verb("decide", lambda reply: reply)
_advance = Verb("advance", lambda reply: reply)
_setback = Verb("setback", lambda reply: reply)


def lost(batch_id: str) -> BatchLost:
    """The error for what came too late."""
    return BatchLost(
        f"batch {batch_id} is held by another driver, its lease ended, or it is decided; this changed nothing"
    )


def _keys_of(keys: QueueKeys, batch_id: str, *names: str) -> tuple[bytes, ...]:
    return tuple(keys.batch + batch_id.encode() if name == "batch" else getattr(keys, name) for name in names)


def _with_batch(verb: Verb[Any], keys: QueueKeys, batch_id: str, /, *, rest: Iterable[Word] = (), **args: Word) -> Any:
    return verb.with_keys(_keys_of(keys, batch_id, *verb.script.keys), rest=rest, id=batch_id, **args)


def fill(
    keys: QueueKeys, batch_id: str, epoch: int, *, had: int, count: int, lease_ms: int
) -> Call[tuple[int, float]]:
    """Up to `count` more members, first in line, for a batch that has `had`; with 0 the batch is new.

    Reply: how many it has, and the end of its lease, Unix ms; (0, 0.0) when nothing was there and the batch is not
    either. Sent again it changes nothing. Raises BatchLost.
    """
    call = _with_batch(
        _fill,
        keys,
        batch_id,
        tasks=keys.tasks,
        queue=keys.name,
        epoch=epoch,
        had=had,
        count=count,
        lease=number_from(batch_id),
        lease_ms=lease_ms,
    )
    return replace(call, read=partial(_filled, batch_id))


def _filled(batch_id: str, reply: list[Any]) -> tuple[int, float]:
    if reply[0] == b"lost":
        raise lost(batch_id)
    return reply[0], float(reply[1] or 0)


def begin(
    keys: QueueKeys, batch_id: str, *, lease_ms: int, shared: Mapping[str, Word], attempt: str = ""
) -> Call[Claimed]:
    """A batch without members, for writes; `shared` are fields of every new item. Takes an undecided one over.

    Those who name the same `attempt` share it instead, and such a batch is remembered for 30 days behind its end.
    """
    words = [word for pair in shared.items() for word in pair]
    call = _with_batch(_begin, keys, batch_id, rest=words, queue=keys.name, lease_ms=lease_ms, attempt=attempt)
    return replace(call, read=partial(_begun, batch_id))


def _begun(batch_id: str, reply: list[Any]) -> Claimed:
    epoch, state, ends, *targets = reply
    return Claimed(
        id=batch_id,
        epoch=epoch,
        state=state.decode(),
        ends_ms=float(ends),
        size=0,
        failures=0,
        root=batch_id,
        first=0,
        error="",
        targets=_texts(targets),
    )



def foremost(keys: QueueKeys, index: str, count: int) -> Call[list[str]]:
    """Ids of the batches that are due first. `index`: 'batches', or 'closing' for what needs no driver to finish."""
    return command("ZRANGE", getattr(keys, index), 0, count - 1, read=texts)


def claim(keys: QueueKeys, batch_id: str, *, lease_ms: int) -> Call[Claimed | bool]:
    """A batch under a new epoch; False when it is not due yet; True when it is gone, and another may be due."""
    call = _with_batch(_claim, keys, batch_id, tasks=keys.tasks, lease_ms=lease_ms)
    return replace(call, read=partial(_claimed, batch_id))


def renew(keys: QueueKeys, batch_id: str, epoch: int, *, lease_ms: int) -> Call[float]:
    """The lease ends `lease_ms` from now. Reply: its end, Unix ms. Raises BatchLost."""
    call = _with_batch(_renew, keys, batch_id, tasks=keys.tasks, epoch=epoch, lease_ms=lease_ms)
    return replace(call, read=partial(_renewed, batch_id))


def _renewed(batch_id: str, reply: bytes) -> float:
    if reply == b"lost":
        raise lost(batch_id)
    return float(reply)


def stage(
    keys: QueueKeys, batch_id: str, epoch: int, nonce: str, words: Sequence[bytes | str], *, after: int | None = None
) -> Call[None]:
    """Appends rows, four words each, up to ROWS_AT_ONCE, to what the writer with this nonce has staged.

    `after` says how many rows that is by now, so that the call may be sent again when its reply was lost; without it
    a writer that meets OutcomeUnknown must begin anew with another nonce. Raises BatchLost, and UnknownMember for a row
    whose item is none of the batch: nothing of the call was staged then.
    """
    if len(words) % 4 or len(words) > 4 * ROWS_AT_ONCE:
        raise InvalidOption(f"{len(words)} words: give four for each row, and up to {ROWS_AT_ONCE} rows at once")
    _check_targets(keys, {to if isinstance(to, str) else to.decode() for to in set(words[1::4])})
    given: Word = "" if after is None else after
    call = _with_batch(
        _stage, keys, batch_id, rest=words, tasks=keys.tasks, epoch=epoch, nonce=nonce, after=given
    )
    return replace(call, read=partial(_staged, batch_id), repeatable=after is not None)


def _check_targets(keys: QueueKeys, targets: set[str]) -> None:
    for to in targets - {""}:
        check_name(to, "queue name")
        if "/" not in keys.name and to != keys.name:
            raise InvalidName(f"queue {to!r}: {keys.name!r} is of no pipeline, so what is in it goes to no other queue")


def _staged(batch_id: str, reply: list[bytes]) -> None:
    if not reply:
        return
    if reply[0] == b"lost":
        raise lost(batch_id)
    raise UnknownMember(
        f"item {reply[1].decode('utf-8', 'replace')!r} is no member of batch {batch_id}: nothing was staged; mark rows "
        "that are new items as new"
    )


def decide(
    keys: QueueKeys, batch_id: str, epoch: int, nonces: Sequence[str], *, rest: str, max_hops: int = 0
) -> Call[tuple[str, ...]]:
    """What was staged under these nonces happens. Reply: short names of the queues it goes to. Raises BatchLost.

    `rest`: 'succeeded' or 'dropped', for members that no row names. An item that moves more than `max_hops` times in
    its life is dead (0: no limit).
    """
    call = _with_batch(_decide, keys, batch_id, rest=nonces, epoch=epoch, max_hops=max_hops, remainder=rest)
    return replace(call, read=partial(_decided, batch_id))


def _decided(batch_id: str, reply: list[bytes]) -> tuple[str, ...]:
    if reply[0] == b"lost":
        raise lost(batch_id)
    return _texts(reply[1:])


def advance(keys: QueueKeys, batch_id: str, *, count: int = ADVANCED_AT_ONCE) -> Call[Advance]:
    """Rolls a decided batch forward by up to `count` rows and members. Raises BatchLost when it is not decided."""
    call = _with_batch(
        _advance, keys, batch_id, tasks=keys.tasks, queue=keys.name, finished=keys.finished, count=count
    )
    return replace(call, read=partial(_advanced, batch_id))


def _advanced(batch_id: str, reply: list[Any]) -> Advance:
    word, moved, new, dead, ended, skipped, full = reply
    if word == b"lost":
        raise lost(batch_id)
    return Advance(word == b"done", moved, new, dead, ended, skipped, full.decode() or None)


def setback(
    keys: QueueKeys, batch_id: str, epoch: int, *, fate: str, delay_ms: int = 0, reason: str = ""
) -> Call[str]:
    """No decision: 'failed' (counts), 'released' (does not), or 'dissolved' (members go back to their places).

    Reply: 'again', 'split', 'dead' or 'dissolved' (both are to be rolled forward), 'more' (call again). Raises
    BatchLost.
    """
    call = _with_batch(
        _setback, keys, batch_id, tasks=keys.tasks, epoch=epoch, fate=fate, delay_ms=delay_ms, reason=reason
    )
    return replace(call, read=partial(_set_back, batch_id))


def _set_back(batch_id: str, reply: bytes) -> str:
    if reply == b"lost":
        raise lost(batch_id)
    return reply.decode()


def members(keys: QueueKeys, root: str, first: int, count: int) -> Call[list[str]]:
    """Ids of members by their position in the list of batch `root`."""
    key = keys.batch + root.encode() + b":members"
    return command(
        "LRANGE", key, first, first + count - 1, read=texts
    )
