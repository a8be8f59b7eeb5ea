"""Reads lists of tasks: rows for tables, and full records."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from jobrunner.broker.call import Call
from jobrunner.broker.calls import tasks
from jobrunner.broker.calls.search import LONGEST_PAYLOAD, SearchChunk, search_state
from jobrunner.broker.keys import tag_of_id
from jobrunner.client.client import Client, broker_of, encryption_of, keys_of
from jobrunner.client.encryption import decrypted_record
from jobrunner.client.operations.dead_and_history import dead_ids as read_dead_ids
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.operations.task import TaskRef, find
from jobrunner.clock import from_ms, read_instant
from jobrunner.encryption.cipher import is_encrypted
from jobrunner.encryption.envelope import claimed_encoding
from jobrunner.error_groups import telling_line
from jobrunner.formatting import cut
from jobrunner.inspector.shards import with_shards
from jobrunner.payload_store.reference import stored_note
from jobrunner.redaction import Redaction
from jobrunner.task import ENCRYPTED
from jobrunner.task_record import TaskRecord, whole_number

STATES = ("pending", "waiting", "scheduled", "dead")
LATEST_FIRST = ("dead", "done")
"""States that lists show newest first."""
_LONGEST_PARAMS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPosition:
    """A task and its position: `score` is its due time, the end of its lease or its time of death (Unix ms), by
    state."""

    queue: str
    state: str
    id: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task as one row of a list."""

    id: str
    type: str
    queue: str
    state: str
    when: datetime | None
    """Due time, end of lease or time of death, by state; None for a waiting task."""
    attempt: int | None
    """The number of the last attempt that began; None when none has begun."""
    started: datetime | None
    """When the last attempt was handed out, before it waited in its worker; None unless the queue keeps history."""
    enqueued: datetime
    error: str
    """The most telling line of the last error."""
    lost: int = 0
    """The number of its leases that ended without a report: the worker died, hung or lost its connection."""
    is_suspect: bool = False
    """Whether it may have caused that: it runs alone the next time."""
    run_s: float | None = None
    """How long the last attempt ran, by its worker's clock; None unless a worker ran it and the queue keeps history."""
    params: str = ""
    """The parameters on one line, redacted and truncated; empty when the list does not read them."""


_MOST_READ = 2000
"""Most rows read of one state of a queue with many shards, divided among the shards."""


def first_lines(client: Client, queue: str, state: str, *, count: int, newest: bool = False) -> Call[list[TaskRow]]:
    """The rows of up to `count` tasks of one state, in one command, in queue order; with `newest` of the last tasks, in
    reverse order. Damaged tasks are omitted."""

    redaction = client.redaction()

    def read(sifted: SearchChunk) -> list[TaskRow]:
        return [
            line_of(TaskPosition(queue=queue, state=state, id=task_id, score=score), fields, redaction)
            for task_id, score, fields in sifted.tasks
        ]

    found = search_state(keys_of(client).queue(queue), state, count=count, most=count, newest=newest)
    return replace(found, read=lambda reply: read(found.read(reply)))  # type: ignore[arg-type]


def some_lines(
    client: Client, shards: Sequence[str], state: str, *, count: int, newest: bool = False
) -> list[Call[list[TaskRow]]]:
    """Calls that read `count` tasks of a queue, or a few more, as `first_lines` does: equally many of each shard."""
    each = -(-count // max(len(shards), 1))
    return [first_lines(client, shard, state, count=each, newest=newest) for shard in shards]


def first_rows(client: Client, queue: str, states: Iterable[str], *, count: int) -> dict[str, list[TaskRow]]:
    """The first tasks of each of these states in one round trip, newest first in states of LATEST_FIRST; empty states
    are omitted."""
    names = with_shards(client, [queue])
    asked = [(state, name) for state in states for name in names]
    each = min(count, -(-_MOST_READ // len(names)))
    calls = [first_lines(client, name, state, count=each, newest=state in LATEST_FIRST) for state, name in asked]
    rows: dict[str, list[TaskRow]] = {}
    for (state, _), found in zip(asked, broker_of(client).run_many(calls) if calls else (), strict=True):
        rows.setdefault(state, []).extend(found)
    if len(names) > 1:
        for state, some in rows.items():
            some.sort(key=lambda row: row.when or row.enqueued, reverse=state in LATEST_FIRST)
    return {state: some[:count] for state, some in rows.items() if some}


def line_of(place: TaskPosition, fields: dict[str, str], redaction: Redaction) -> TaskRow:
    """The row of a task whose fields a search returned."""
    failures = whole_number(fields["retry_count"])
    begun = failures + (place.state == "pending")
    if place.state == "done":
        begun = whole_number(fields["attempts"]) or failures + 1
    return TaskRow(
        id=place.id,
        type=fields["type"],
        queue=place.queue,
        state=place.state if place.state != "done" else fields["outcome"] or "succeeded",
        when=read_instant(place.score) if place.state != "waiting" else None,
        attempt=begun or None,
        started=read_instant(fields["started_at"]),
        enqueued=read_instant(fields["enqueue_time"]) or from_ms(0),
        error=telling_line(redaction.text(fields["error"])),
        lost=whole_number(fields["expiries"]),
        is_suspect=bool(fields["suspect"]),
        run_s=whole_number(fields["run_ms"]) / 1000 if fields["run_ms"] else None,
        params=params_line(fields["payload"], fields["encoding"], redaction),
    )


def params_line(payload: str, encoding: str, redaction: Redaction) -> str:
    """Parameters for a column: `user="ada" n=5`, with hidden values replaced, and truncated."""
    if not payload:
        return ""
    if encoding and is_encrypted(encoding.encode()):
        return ENCRYPTED
    if encoding and (stored := stored_note(payload.encode(), encoding.encode())):
        return stored
    if len(payload) > LONGEST_PAYLOAD:
        return "(above 16 KiB: open the task)"  # truncated JSON cannot be parsed and redacted
    if claimed_encoding(encoding.encode()) not in (b"", b"json"):
        return f"({len(payload):,} bytes)"
    try:
        value = redaction.shown(msgspec.json.decode(payload))
    except (msgspec.MsgspecError, RecursionError):
        if not payload.isprintable():
            return f"({len(payload):,} bytes)"
        return cut(redaction.text(" ".join(payload.split())), _LONGEST_PARAMS)
    if isinstance(value, dict):
        return cut(" ".join(f"{name}={_as_json(part)}" for name, part in value.items()), _LONGEST_PARAMS)
    return cut(_as_json(value), _LONGEST_PARAMS)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=repr)


def list_tasks(client: Client, queue: str, state: str | None = None, *, limit: int = 100) -> list[TaskRecord]:
    """Tasks of one state, or of all four, in queue order; at most `limit`. Raises InvalidName, InvalidOption."""
    asked = client.queue(queue)
    ids: list[str] = []
    for one in STATES if state is None else (state,):
        if len(ids) < limit:
            ids += asked.ids(one, limit=limit - len(ids))
    return read_tasks(client, [(queue, task_id) for task_id in ids])


def read_tasks(client: Client, places: Sequence[tuple[str, str]]) -> list[TaskRecord]:
    """The records of these tasks (queue, id) in one round trip, without those that are gone."""
    if not places:
        return []
    calls = [tasks.show(keys_of(client), task_id, queue=queue) for queue, task_id in places]
    found = broker_of(client).run_each(calls)
    encryption = encryption_of(client)
    for place, (queue, task_id) in enumerate(places):
        if found[place] is None and tag_of_id(task_id) is None:  # it may be in a shard, which its id does not name
            found[place] = run_operation(broker_of(client), find(TaskRef(keys_of(client), encryption, task_id, queue)))
    return [decrypted_record(encryption, record, fetches=False) for record in found if isinstance(record, TaskRecord)]


def dead_ids(client: Client, queue: str) -> list[str]:
    """Ids of all dead tasks, oldest death first within each shard. Raises InvalidName."""
    keys, broker = keys_of(client), broker_of(client)
    shards = with_shards(client, [queue])
    return [one for shard in shards for one in run_operation(broker, read_dead_ids(keys.queue(shard)))]
