"""Reads the server for a soak: the final audit (contents of the sets, totals against a recount, left-over keys), and
samples while it runs (work, waits, faults, memory and descriptors of processes, keys)."""

import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call, command
from jobrunner.broker.calls.server import facts
from jobrunner.broker.keys import QueueKeys
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.inspector.snapshot import counted_queues
from jobrunner.soak.jobs import LIMITED, QUEUES, SINGLE

STATES = ("waiting", "scheduled", "pending", "dead")
WAYS_OUT = ("succeeded", "cancelled", "dropped", "orphaned", "purged", "trimmed", "moved_out")
_KNOWN = ("queues", "format", "pipelines", "events", "operations", "audit", "job:")
_KNOWN_SHARED = ("{/",)
OWN = ("waiting", "scheduled", "pending", "dead", "done", "deaths", "leases", "settings", "bucket", "counters", "types",
       "arrival", "wake", "capacity", "batches", "finishing", "blocked",
       "unsure", "holders", "inflight", "declared", "errors")  # fmt: skip
OWN_OF_KEYS = ("bucket:", "partition:", "rotation:", "periodic:", "errors:")
_OF_TAG = ("task:", "unique:", "join:", "batch:", "sent:", "outbox", "waiters")
_PIECE = 500
_DELETED_AT_ONCE = 1000


def all_keys(client: Client) -> Iterator[bytes]:
    """Every key below the prefix of the client. Scans the whole key space of the server."""
    for node in broker_of(client).nodes():
        yield from _keys_of(node, keys_of(client).prefix)


def delete_all(client: Client) -> int:
    """Deletes every key below the prefix of the client; returns the number of keys."""
    gone = 0
    for some in in_pieces(all_keys(client), _DELETED_AT_ONCE):
        gone += sum(broker_of(client).run_many([command("UNLINK", key, read=int) for key in some]))
    return gone


def problems(client: Client, queue: str) -> list[str]:
    """Inconsistencies of a queue at rest; empty when there are none.

    No id is in two sets, every member has a hash, only pending tasks have leases, and the totals balance: enqueued +
    moved in = left the queue + still in it.
    """
    keys = keys_of(client).queue(queue)
    sets = {state: _members(client, getattr(keys, state)) for state in STATES}
    ids = [task for members in sets.values() for task in members]
    found = []
    if twice := [task for task, times in Counter(ids).items() if times > 1]:
        found.append(f"{queue}: {len(twice)} ids are in two sets ({_some(twice)})")
    if without := _without_hash(client, keys, ids):
        found.append(f"{queue}: {len(without)} members have no hash ({_some(without)})")
    if idle := set(_members(client, keys.leases)) - set(sets["pending"]):
        found.append(f"{queue}: {len(idle)} leases of tasks that are not pending ({_some(idle)})")
    totals = client.queue(queue).totals()
    entered = sum(totals.get(name, 0) for name in ("enqueued", "moved_in"))
    left = sum(totals.get(name, 0) for name in WAYS_OUT)
    if entered != left + len(ids):
        found.append(f"{queue}: {entered} entered, but {left} left and {len(ids)} are there")
    return found


def strays(client: Client, queues: Iterable[str], *, kept: Iterable[str]) -> list[str]:
    """Keys that should be gone when only dead tasks are left: keys of an unknown kind, and tasks that are not in
    `kept`.

    Keys that expire are not listed.
    """
    known, tasks = set(kept), {keys_of(client).queue(name).tasks for name in queues}
    own = {name: keys_of(client).queue(name).waiting.removesuffix(b"waiting") for name in queues}
    bases = {keys_of(client).queue(name).base for name in queues}
    found = []
    for key in all_keys(client):
        if any(key.startswith(base) for base in tasks):
            is_known = key.rpartition(b"task:")[2].decode() in known
        else:
            is_known = _is_known(key, keys_of(client).prefix, own.values(), bases)
        if not is_known and broker_of(client).run(command("PTTL", key, read=int)) in (-1,):
            found.append(key.decode(errors="backslashreplace"))
    return found


def _is_known(key: bytes, prefix: str, own: Iterable[bytes], bases: Iterable[bytes]) -> bool:
    for start in own:
        rest = key.removeprefix(start).decode(errors="replace")
        if key.startswith(start) and (rest in OWN or rest.startswith(OWN_OF_KEYS)):
            return True
    for base in bases:
        if key.startswith(base):
            rest = key.removeprefix(base).decode(errors="replace")
            return rest.startswith(_OF_TAG) and not rest.startswith(("unique:", "join:", "task:"))
    return key.removeprefix(prefix.encode() + b":").decode(errors="replace").startswith((*_KNOWN, *_KNOWN_SHARED))


def _keys_of(node: Broker, prefix: str) -> Iterator[bytes]:
    cursor = b"0"
    while True:
        cursor, keys = node.run(_scan(prefix, cursor))
        yield from keys
        if cursor == b"0":
            return


def _scan(prefix: str, cursor: bytes) -> Call[tuple[bytes, list[bytes]]]:
    words = ("SCAN", cursor, "MATCH", f"{prefix}:*", "COUNT", _DELETED_AT_ONCE)
    return command(*words, read=lambda reply: (reply[0], reply[1]))


def _members(client: Client, key: bytes) -> list[str]:
    return broker_of(client).run(command("ZRANGE", key, 0, -1, read=lambda reply: [one.decode() for one in reply]))


def _without_hash(client: Client, keys: QueueKeys, ids: list[str]) -> list[str]:
    found: list[str] = []
    for some in in_pieces(ids, _PIECE):
        there = broker_of(client).run_many([command("EXISTS", keys.task(task), read=int) for task in some])
        found += [task for task, is_there in zip(some, there, strict=True) if not is_there]
    return found


def in_pieces(values: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of up to `size` values."""
    piece: list[Any] = []
    for value in values:
        piece.append(value)
        if len(piece) == size:
            yield piece
            piece = []
    if piece:
        yield piece


def _some(ids: Iterable[str]) -> str:
    return ", ".join(sorted(ids)[:3])


_WINDOW_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakSample:
    """The measurements at one instant. Times in seconds, sizes in bytes; None where a measurement failed."""

    at_s: float
    acked: int = 0
    finished: int = 0
    open: int = 0
    in_flight: int | None = None
    retries: int = 0
    dead: int | None = None
    extra: int = 0
    oldest_s: float = 0.0
    per_s: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None
    faults: Mapping[str, int] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    """Resident bytes by the name of the worker."""
    descriptors: Mapping[str, int] = field(default_factory=dict)
    server_memory: int | None = None
    keys: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSample:
    """The contents of the queues at one poll."""

    in_flight: int
    dead: int
    limited: int
    """Pending tasks of the limited queue."""
    singles: int
    """Unique tasks that exist."""
    left: int
    """Tasks that are waiting, scheduled or pending."""


def server_side(client: Client) -> QueueSample:
    """Polls the queues in one round trip. Raises ServerError."""
    seen = counted_queues(client, QUEUES)
    left = {name: queue.open for name, queue in seen.items()}
    return QueueSample(
        in_flight=sum(queue.pending for queue in seen.values()),
        dead=sum(queue.totals.get("dead", 0) for queue in seen.values()),
        limited=seen[LIMITED].pending,
        singles=left[SINGLE],
        left=sum(left.values()),
    )


def key_count(client: Client) -> int:
    """The number of keys below the prefix, without minute and hour statistics, which are kept for a fixed time."""
    figures = keys_of(client).stats_total.removesuffix(b"total")
    return sum(not key.startswith(figures) for key in all_keys(client))


def used_memory(client: Client) -> int:
    """Bytes that the whole server uses."""
    return broker_of(client).run(facts()).used_memory


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process; None when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return None if Path("/proc").is_dir() else _resident_by_ps(pid)
    except (OSError, IndexError):
        return None


def descriptors(pid: int) -> int | None:
    """The number of open descriptors of a process; None where it cannot be read."""
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return None


def share(ordered: list[float], part: float) -> float | None:
    """The quantile `part` of ordered values; None when there are none."""
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else None


def waits_since(waits: list[tuple[float, float]], since: float) -> list[float]:
    """The waits of tasks that began since `since`, ordered, in ms."""
    return sorted(wait * 1000 for at, wait in waits if at >= since)


def _resident_by_ps(pid: int) -> int | None:
    completed = subprocess.run(  # noqa: S603 - the only argument is a number
        ["/bin/ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return int(completed) * 1024 if completed.isdigit() else None
