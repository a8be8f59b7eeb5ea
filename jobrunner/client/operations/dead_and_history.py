"""Operations on dead items (requeue) and on the history of a queue (read, replay), shared by Queue and AsyncQueue."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from jobrunner.broker.call import SLICE_BYTES
from jobrunner.broker.calls import events, new_tasks, queues, tasks
from jobrunner.broker.keys import Keys, QueueKeys, check_id
from jobrunner.broker.shards import whole_queue
from jobrunner.client.encryption import decrypted_record, encrypted_payload, encrypted_task
from jobrunner.client.item import read_headers, write_headers, write_payload
from jobrunner.client.item_record import ItemRecord, item_record
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.operation import Durable, InThread, Operation, ask, noting
from jobrunner.client.operations.queue import is_still
from jobrunner.client.operations.task import changed_by, opened
from jobrunner.encryption.cipher import EncryptionContext
from jobrunner.errors import InvalidOption, TaskGone, UsageError
from jobrunner.formatting import describe
from jobrunner.payload_store.stored_payloads import without_store
from jobrunner.settings import check_whole
from jobrunner.task import Task, new_id
from jobrunner.task_record import TaskRecord

_AT_ONCE = 500
_READ_AT_ONCE = 1000


def requeue_dead(
    ref: QueueRef, chosen: Iterable[str] | None, payload: Any, *, start_ms: float = 0.0, step_ms: float = 0.0
) -> Operation[int]:
    """Returns the number of requeued items: the first is due in `start_ms`, each further item `step_ms` later. An item
    that is no longer dead after a lost reply counts as requeued."""
    if isinstance(chosen, (str, bytes)) or not isinstance(chosen, Iterable | None):
        raise InvalidOption(f"ids={describe(chosen)}: give a list of ids")
    rest = map(check_id, chosen) if chosen is not None else iter((yield from dead_ids(ref.keys)))
    done = 0
    at_once = _at_once(ref, payload)
    while batch := list(itertools.islice(rest, at_once)):
        fields = yield from _fields(ref, payload, batch[0])
        call = tasks.requeue(ref.keys, batch, start_ms=start_ms + done * step_ms, step_ms=step_ms, fields=fields)
        done += changed_by((yield from ask(call)))
    if done:
        yield from noting(events.dead_requeued(ref.all_keys, ref.whole_name, done))
    return done


def note_changes(keys: Keys, action: str, changed: Mapping[str, int], state: str = "") -> Operation[None]:
    """Writes an event for each queue whose tasks were changed one by one, if the action has an event: 'requeue',
    'delete', and 'cancel' of dead tasks, which deletes them. `changed`: the number of tasks by queue or shard; `state`:
    the state of the deleted or cancelled tasks, '' for any."""
    deletes = action == "delete" or (action == "cancel" and state == "dead")
    by_queue: Counter[str] = Counter()
    for name, count in changed.items():
        by_queue[whole_queue(name)] += count
    for name, count in by_queue.items():
        if count and action == "requeue":
            yield from noting(events.dead_requeued(keys, name, count))
        elif count and deletes:
            yield from noting(events.queue_purged(keys, name, state, count))


def _at_once(ref: QueueRef, payload: Any) -> int:
    if payload is msgspec.UNSET:
        return _AT_ONCE
    if ref.encryption is not None:
        return 1
    raw, _ = write_payload(payload, ref.payload_limit)  # the server copies it for each item
    return min(SLICE_BYTES // max(len(raw), 1) or 1, _AT_ONCE)


def step_of(rate: float | None) -> float:
    """Milliseconds between two items at `rate` items per second; 0 for None. Raises InvalidOption."""
    if rate is None:
        return 0.0
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0.001 <= rate <= 1_000_000:
        raise InvalidOption(f"rate={describe(rate)}: give items per second, from 0.001 to 1 000 000")
    return 1000 / rate


def _fields(ref: QueueRef, payload: Any, first: str) -> Operation[list[bytes | str]]:
    if payload is msgspec.UNSET:
        return []
    raw, encoding = write_payload(payload, ref.payload_limit)
    if ref.encryption is not None:  # a payload is encrypted for one task, so the batch is one task
        record = yield from ask(tasks.show(ref.all_keys, first, queue=ref.name))
        if record is not None:
            if without_store(ref.encryption) is not None:
                record = yield from opened(ref.encryption, record)
            if record.unread is not None:  # encrypting anew would accept a forged job or headers
                raise record.unread
            headers, then = (record.fields.get(name, b"") for name in ("headers", "then"))
            context = EncryptionContext(first, record.type, ref.keys.tag, ref.name, headers, then)
            encrypt = partial(encrypted_payload, ref.encryption, raw, encoding, context, after=record.after)
            raw, encoding = yield InThread(encrypt)
    return ["payload", raw, "encoding", encoding]


def dead_ids(keys: QueueKeys) -> Operation[list[str]]:
    """Returns the ids of all dead items of a shard, the longest dead first. Each page begins after the last score, not
    at a rank: with ranks, items that expire meanwhile would make a page skip others."""
    total = (yield from ask(queues.counts(keys))).dead
    found: list[str] = []
    score, skipped = "-inf", 0
    while len(found) < total:
        call = queues.ids_from(keys, "dead", score=score, skipped=skipped, count=_READ_AT_ONCE)
        page = yield from ask(call)
        if not page:
            break
        found += [task_id for task_id, _ in page]
        last = page[-1][1]
        skipped = sum(one == last for _, one in page) + (skipped if last == score else 0)
        score = last
    return found[:total]


REPLAYED_FROM = "replayed_from"
"""Header of a replayed item: the id of the original item."""
_OF_A_FLOW = frozenset(("results", "outcomes", "parts"))
"""Fields of a task that got the results of other tasks; very many or large results are in `parts`."""


def history(ref: QueueRef, limit: int) -> Operation[list[ItemRecord]]:
    """Returns records of finished items, the last finished first."""
    check_whole(limit, "limit", minimum=1, maximum=10_000)
    yield from ask(queues.counts(ref.keys))  # trims items that are too old
    found = yield from ask(queues.newest(ref.keys, "done", count=limit))
    shown = yield [tasks.show(ref.all_keys, task_id, queue=ref.name) for task_id in found]
    ended = [record for record in shown if record is not None and is_still(record, "done")]
    return [item_record(decrypted_record(ref.encryption, record, fetches=False)) for record in ended]


def replay(ref: QueueRef, task_id: str) -> Operation[str]:
    """Returns the id of the new item. Raises TaskGone for an item that is not in the history, EncryptionError, and
    UsageError for a step of a flow that got results of other steps."""
    check_id(task_id)
    record, score = yield [
        tasks.show(ref.all_keys, task_id, queue=ref.name),
        queues.score(ref.keys, "done", task_id),
    ]
    if record is None or score is None or not is_still(record, "done"):
        raise TaskGone(f"no task {task_id} in the history of queue {ref.name!r}: never was, or no longer kept")
    record = yield from opened(ref.encryption, record)
    if record.unread is not None:
        raise record.unread
    if not _OF_A_FLOW.isdisjoint(record.fields):
        raise UsageError(
            f"task {task_id} of queue {ref.name!r} was given the results of the steps before it in its flow, which a "
            "replay does not have; enqueue the flow again"
        )
    new = _again(ref, record)
    yield queues.register(ref.all_keys, [ref.name])
    sent = yield InThread(partial(encrypted_task, ref.encryption, ref.keys, new))  # a store gets a new object
    yield Durable([new_tasks.enqueue(ref.keys, [sent])])
    return new.id


def _again(ref: QueueRef, record: TaskRecord) -> Task:
    headers = {REPLAYED_FROM: record.id} | read_headers(record.fields.get("headers"))
    return Task(
        id=new_id(ref.keys.tag),
        queue=ref.name,
        type=record.type,
        payload=record.payload,
        encoding=record.fields.get("encoding", b"").decode("utf-8", "replace"),
        headers=write_headers(headers),
        key=record.fields["key"].decode("utf-8", "replace") if "key" in record.fields else None,
        priority=record.priority if "priority" in record.fields else None,
        keepalive_ms=_whole(record, "keepalive_ms"),
        max_attempts=_whole(record, "max_attempts"),
        max_stalled=_whole(record, "max_stalled"),
    )


def _whole(record: TaskRecord, field: str) -> int | None:
    raw = record.fields.get(field, b"")
    return int(raw) if raw.isdigit() else None
