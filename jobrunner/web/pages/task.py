"""One task: what it is, what happened to it, what came of it, and what can be done about it."""

import json
from typing import Any

from jobrunner.broker.keys import tag_of_id
from jobrunner.client.item import read_headers, read_payload
from jobrunner.clock import from_ms
from jobrunner.errors import JobrunnerError
from jobrunner.inspector.holders import holder_of
from jobrunner.inspector.timeline import timeline
from jobrunner.task import ENCRYPTED, TaskRecord
from jobrunner.web.context import Context
from jobrunner.web.refusals import NotThere
from jobrunner.web.routing import Page, Values

_LONGEST = 20_000
_SHOWN_ELSEWHERE = frozenset(
    ("id", "type", "queue", "payload", "result", "error", "headers", "failures", "encoding", "enqueue_time", "outcome",
     "progress", "more", "place", "retry_count", "priority")
)


def _task(context: Context) -> tuple[str, Values]:
    task_id, queue = context.path("task"), context.query.text("queue")
    record = _found(context, task_id, queue)
    seen = context.glance()
    return "task.html", {
        "nav": seen.nav,
        "task": record,
        "moments": timeline(record, seen.look.workers),
        "holder": holder_of(context.client, record, seen.look.workers),
        "payload": ENCRYPTED if record.is_encrypted else shown(context, _decoded(record.payload, record)),
        "size": len(record.payload),
        "headers": shown(context, read_headers(record.fields.get("headers")) or None),
        "result": _result(context, record),
        "facts": _facts(record),
        "progress": _progress(record),
    }


def _result(context: Context, record: TaskRecord) -> str:
    if record.has_encrypted_result:
        return ENCRYPTED
    return shown(context, _decoded(record.result, record)) if record.result is not None else ""


def shown(context: Context, value: Any) -> str:
    """A value for a person: as JSON, with secrets hidden, cut where it is very long. '' for None."""
    if value is None:
        return ""
    plain = context.redaction.shown(value)
    text = plain if isinstance(plain, str) else json.dumps(plain, indent=2, ensure_ascii=False, default=repr)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n… {len(text) - _LONGEST:,} more characters"


def _found(context: Context, task_id: str, queue: str) -> TaskRecord:
    if tag_of_id(task_id) is None and not queue:
        raise NotThere(f"task {task_id!r} has an id of its own: open it from its queue")
    try:
        record = context.client.task(task_id, queue=queue or None).record()
    except JobrunnerError as error:
        raise NotThere(str(error)) from error
    if record is None:
        raise NotThere(f"there is no task {task_id}: it ended and is no longer kept, was deleted, or never was")
    return record


def _decoded(raw: bytes | None, record: TaskRecord) -> Any:
    if raw is None:
        return None
    try:
        return read_payload(raw, record.fields.get("encoding", b"").partition(b" ")[0] or b"json")
    except (JobrunnerError, ValueError):
        return raw.decode("utf-8", "replace") if raw.isascii() else f"{len(raw):,} bytes: {raw[:200]!r}"


def _progress(record: TaskRecord) -> dict[str, Any] | None:
    """What the run last said: done, total, note."""
    try:
        said = json.loads(record.fields["progress"])
        return {"done": float(said["done"]), "total": float(said["total"]), "note": str(said.get("note", ""))}
    except (KeyError, TypeError, ValueError):
        return None


def _facts(record: TaskRecord) -> list[tuple[str, Any]]:
    rest = [(name, raw.decode("utf-8", "replace")) for name, raw in sorted(record.fields.items())]
    return [
        (name.replace("_", " "), from_ms(float(text)) if name.endswith("_at") and _is_number(text) else text[:300])
        for name, text in rest
        if name not in _SHOWN_ELSEWHERE
    ]


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit() and float(text) < 1e14


routes = [Page(path="/tasks/{task}", name="task", endpoint=_task)]
