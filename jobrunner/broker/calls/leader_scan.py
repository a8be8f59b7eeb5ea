"""The call by which the leader finds queues that need maintenance: one for a hundred queues and all workers."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from jobrunner.broker.call import Call, ScriptCommand
from jobrunner.broker.keys import Keys
from jobrunner.broker.replies import texts, whole

MOST_AT_ONCE = 100
"""Queues of one call, which then blocks the server for about half a millisecond."""
_IN_WORK = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanReply:
    """The work for the leader. A queue that cannot be read is left out."""

    posted: list[str] = field(default_factory=list)
    """Hash tags with ends of tasks in their outbox, in the order in which their queues were asked for."""
    finishing: list[str] = field(default_factory=list)
    """Queues with batches that need no driver to finish, due or not."""
    dead: dict[str, int] = field(default_factory=dict)
    """How many tasks of each queue died since it exists."""
    silent: list[str] = field(default_factory=list)
    """Ids of workers whose heartbeats stopped and that did not retire."""
    totals: dict[str, int] = field(default_factory=dict)
    """The sum of the totals of each queue, which changes whenever anything happens there."""
    changed: list[str] = field(default_factory=list)
    """Queues whose totals changed since the scan before, or that are new. The caller fills this in."""
    due: dict[str, float] = field(default_factory=dict)
    """When queues next need maintenance, Unix ms; without those where nothing is foreseen."""
    holding: list[str] = field(default_factory=list)
    """Queues that hold anything."""
    in_work: list[str] = field(default_factory=list)
    """Those of them with tasks or batches in progress."""
    unmarked: list[str] = field(default_factory=list)
    """Queues that hold nothing and do not count as unused yet."""
    unused: list[str] = field(default_factory=list)
    """Queues that were unused for so long that they may be forgotten."""


_leader_scan: ScriptCommand[Any] = ScriptCommand("leader_scan", lambda reply: reply, divisible=True)


def leader_scan(
    keys: Keys, queues: Sequence[str], *, with_workers: bool = True, unused_ms: int = 0
) -> list[Call[ScanReply]]:
    """Calls that together scan all queues, the first of them also the workers."""
    slices = [queues[at : at + MOST_AT_ONCE] for at in range(0, len(queues), MOST_AT_ONCE)]
    if with_workers:
        slices = slices or [()]
    workers = (keys.workers,) if with_workers else ()
    return [_at(keys, some, () if n else workers, unused_ms) for n, some in enumerate(slices)]


def _at(keys: Keys, queues: Sequence[str], workers: tuple[bytes, ...], unused_ms: int) -> Call[ScanReply]:
    def read(reply: list[Any]) -> ScanReply:
        found = ScanReply()
        for ids in reply[: len(workers)]:
            found.silent.extend(texts(ids) if isinstance(ids, list) else ())
        for name, one in zip(queues, reply[len(workers) :], strict=True):
            if isinstance(one, int):
                found.totals[name], found.dead[name] = one, 0
            elif isinstance(one, list):
                _take(found, name, one)
        return found

    call = _leader_scan.with_keys((*workers, *map(keys.counters, queues)), unused_ms=unused_ms)
    return replace(call, read=read)


def _take(found: ScanReply, name: str, said: list[Any]) -> None:
    posted, finishing, dead, total, due, holds, unused = said
    tag = name.partition("/")[0]
    if posted and tag not in found.posted[-1:]:
        found.posted.append(tag)
    if finishing:
        found.finishing.append(name)
    if dead is not None:
        found.dead[name], found.totals[name] = whole(dead), total
    if due:
        found.due[name] = float(due)
    if holds:
        found.holding.append(name)
    if holds == _IN_WORK:
        found.in_work.append(name)
    if unused:
        (found.unused if unused == b"unused" else found.unmarked).append(name)


def together(parts: Collection[ScanReply]) -> ScanReply:
    """Merges the replies of several calls."""
    return ScanReply(
        posted=list(dict.fromkeys(tag for part in parts for tag in part.posted)),
        finishing=[name for part in parts for name in part.finishing],
        dead={name: total for part in parts for name, total in part.dead.items()},
        silent=[worker for part in parts for worker in part.silent],
        totals={name: total for part in parts for name, total in part.totals.items()},
        due={name: at for part in parts for name, at in part.due.items()},
        holding=[name for part in parts for name in part.holding],
        in_work=[name for part in parts for name in part.in_work],
        unmarked=[name for part in parts for name in part.unmarked],
        unused=[name for part in parts for name in part.unused],
    )
