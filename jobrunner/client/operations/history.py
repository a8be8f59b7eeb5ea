"""Finished items of a queue that keeps history, once for Queue and AsyncQueue: read them, replay one."""

from jobrunner.broker.calls import queues, tasks
from jobrunner.broker.keys import check_id
from jobrunner.client.encryption import decrypted_record, encrypted_task
from jobrunner.client.item import ItemRecord, item_record, read_headers, write_headers
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.operation import Durable, Operation, ask
from jobrunner.errors import TaskGone
from jobrunner.settings import check_whole
from jobrunner.task import Task, TaskRecord, new_id

REPLAYED_FROM = "replayed_from"
"""Header of a replayed item: the id of the first one."""


def history(line: QueueRef, limit: int) -> Operation[list[ItemRecord]]:
    """Returns records, the item that finished last first."""
    check_whole(limit, "limit", minimum=1, maximum=10_000)
    yield from ask(queues.counts(line.keys))  # trims what is too old
    found = yield from ask(queues.newest(line.keys, "done", count=limit))
    shown = yield [tasks.show(line.all_keys, task_id, queue=line.name) for task_id in found]
    return [item_record(decrypted_record(line.encryption, record)) for record in shown if record is not None]


def replay(line: QueueRef, task_id: str) -> Operation[str]:
    """Returns the id of the new item. Raises TaskGone for one that is not in the history, EncryptionError."""
    check_id(task_id)
    record, score = yield [
        tasks.show(line.all_keys, task_id, queue=line.name),
        queues.score(line.keys, "done", task_id),
    ]
    if record is None or score is None:
        raise TaskGone(f"no task {task_id} in the history of queue {line.name!r}: never was, or no longer kept")
    record = decrypted_record(line.encryption, record)
    if record.unread is not None:
        raise record.unread
    new = _again(line, record)
    yield queues.register(line.all_keys, [line.name])
    yield Durable([tasks.enqueue(line.keys, [encrypted_task(line.encryption, line.keys, new)])])
    return new.id


def _again(line: QueueRef, record: TaskRecord) -> Task:
    headers = {REPLAYED_FROM: record.id} | read_headers(record.fields.get("headers"))
    return Task(
        id=new_id(line.keys.tag),
        queue=line.name,
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
