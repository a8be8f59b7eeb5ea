"""One task: parameters, timeline, result, and the actions on it."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from jobrunner.broker.keys import check_id, tag_of_id
from jobrunner.client.client import broker_of, encryption_of, keys_of
from jobrunner.client.flow_results import decrypted_results, whole_results
from jobrunner.client.item import read_headers, read_payload
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.operations.task import TaskRef, cancel
from jobrunner.clock import from_ms
from jobrunner.encryption.envelope import claimed_encoding
from jobrunner.errors import EncryptionError, JobrunnerError, ServerUnavailable, TaskGone
from jobrunner.inspector.attempts import holder_of, timeline, with_begun_attempt
from jobrunner.inspector.flows import flow_id_of
from jobrunner.inspector.search import STATES
from jobrunner.inspector.shards import pipeline_of, queue_of
from jobrunner.redaction import DEEPEST, TOO_DEEP
from jobrunner.task import ENCRYPTED, TaskState
from jobrunner.task_record import Failure, TaskRecord
from jobrunner.tracebacks import short_traceback
from jobrunner.web.errors import NotThere, Refused
from jobrunner.web.operations import change, left_of, note_events
from jobrunner.web.pages.json_text import first_parts, json_text
from jobrunner.web.pages.task_edit import editable, edited
from jobrunner.web.routing import Action, Context, Done, Page, Values

_LONGEST = 20_000
_FACTS = (
    "attempts", "cancel_requested", "died_at", "expires_in_ms", "expiries", "finished_at", "hops", "keepalive_ms",
    "key", "max_attempts", "max_stalled", "outcomes", "run_ms", "started_at", "total_attempts",
)  # fmt: skip
"""Fields of the hash that are shown unchanged. Others may contain secrets."""


_FIELDS = ("queue",)
_SEEN = (*_FIELDS, "state")
"""Fields with the state that the page showed, as a worker or another operator may have changed it since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """The fields of a task on pages and in JSON answers: no payload, and no field outside the list above."""

    id: str
    type: str
    queue: str
    state: TaskState
    when: datetime | None
    enqueue_time: datetime
    attempts: int
    retry_count: int
    priority: int
    error: str
    failures: list[Failure]


def _task(context: Context) -> tuple[str, Values]:
    task_id, queue = context.path("task"), context.query.text("queue")
    record = _found(context, task_id, queue)
    seen = context.snapshot()
    text_of = context.redaction.text
    holder = holder_of(context.client, record, seen.look.workers)
    record = with_begun_attempt(record, holder)
    return "task.html", {
        "nav": seen.nav,
        "task": (visible := _shown(context, record)),
        "brief_error": short_traceback(visible.error),
        "encrypted": ENCRYPTED,
        "moments": [replace(one, text=text_of(one.text)) for one in timeline(record, seen.look.workers, holder)],
        "holder": holder,
        "payload": record.placeholder or shown(context, _decoded(record.payload, record)),
        "flow": flow_id_of(record),
        "pipeline": pipeline_of(record.queue),
        "editable": editable(context, record),
        "size": len(record.payload),
        "headers": shown(context, read_headers(record.fields.get("headers")) or None),
        "result": _result(context, record),
        "results": _results(context, record),
        "facts": _facts(context, record),
        "progress": _progress(context, record),
    }


def _shown(context: Context, record: TaskRecord) -> TaskView:
    hide = context.redaction.text
    return TaskView(
        id=record.id,
        type=record.type,
        queue=record.queue,
        state=record.state,
        when=record.when,
        enqueue_time=record.enqueue_time,
        attempts=record.attempts,
        retry_count=record.retry_count,
        priority=record.priority,
        error=hide(record.error),
        failures=[replace(one, error=hide(one.error)) for one in record.failures],
    )


def _results(context: Context, record: TaskRecord) -> str:
    """Results of previous steps that a flow passed to the task; '' for none."""
    raw = whole_results(record.fields)
    try:
        found = decrypted_results(encryption_of(context.client), raw, b"", None)
    except EncryptionError:
        return ENCRYPTED
    except (JobrunnerError, ValueError, RecursionError):
        return TOO_DEEP
    return shown(context, found) if found else ""


def _result(context: Context, record: TaskRecord) -> str:
    if record.has_encrypted_result:
        return ENCRYPTED
    return shown(context, _decoded(record.result, record)) if record.result is not None else ""


def shown(context: Context, value: Any) -> str:
    """A value for a page: as JSON, with secrets hidden, truncated if very long. '' for None."""
    if value is None:
        return ""
    first, is_all = first_parts(value, _LONGEST, DEEPEST)  # each part takes a character
    plain = context.redaction.shown(first)
    if isinstance(plain, str):
        text, is_whole = plain[:_LONGEST], len(plain) <= _LONGEST
    else:
        text, is_whole = json_text(plain, _LONGEST)
    return text if is_all and is_whole else f"{text}\n… cut here, as it is very long"


def _found(context: Context, task_id: str, queue: str) -> TaskRecord:
    if tag_of_id(task_id) is None and not queue:
        raise NotThere(f"task {task_id!r} has an id of its own: open it from its queue")
    try:
        record = context.client.task(task_id, queue=queue or None).record()
    except ServerUnavailable:
        raise
    except JobrunnerError as error:
        raise NotThere(str(error)) from error
    if record is None:
        raise NotThere(f"there is no task {task_id}: it ended and is no longer kept, was deleted, or never was")
    return record


def _decoded(raw: bytes | None, record: TaskRecord) -> Any:
    if raw is None:
        return None
    try:
        return read_payload(raw, claimed_encoding(record.fields.get("encoding")) or b"json")
    except RecursionError:
        return TOO_DEEP
    except (JobrunnerError, ValueError):
        return raw.decode("utf-8", "replace") if raw.isascii() else f"{len(raw):,} bytes: {raw[:200]!r}"


def _progress(context: Context, record: TaskRecord) -> dict[str, Any] | None:
    """The last progress report, its note redacted."""
    found = record.progress
    return None if found is None else found | {"note": context.redaction.text(found["note"])}


def _facts(context: Context, record: TaskRecord) -> list[tuple[str, Any]]:
    hide, fields = context.redaction.text, record.fields
    rest = [(name, hide(fields[name].decode("utf-8", "replace")[:300])) for name in _FACTS if name in fields]
    return [
        (name.replace("_", " "), from_ms(float(text)) if name.endswith("_at") and _is_number(text) else text)
        for name, text in rest
    ]


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit() and float(text) < 1e14


def _requeue(context: Context) -> Done:
    record = _existing(context)
    requeued = context.client.task(record.id, queue=record.queue).requeue()
    note_events(context.client, "requeue", {record.queue: int(requeued)})
    return _done(context, record, "goes back to its queue", changed=requeued)


def _edit(context: Context) -> Done:
    record = _existing(context)
    after, changed = edited(context, record)
    count = context.client.queue(record.queue).requeue_dead([record.id], payload=after)
    return _done(context, record, f"goes back to its queue, changed: {', '.join(changed)[:300]}", changed=count == 1)


def _cancel(context: Context) -> Done:
    found, client = context.form.one_of("state", STATES, ""), context.client
    record = _existing(context)
    outcome = "is asked to stop" if record.state is TaskState.PENDING else "is cancelled"
    place = TaskRef(keys_of(client), encryption_of(client), record.id, record.queue)
    changed = run_operation(broker_of(client), cancel(place, leave=left_of(found)))
    return _done(context, record, outcome, changed=changed)


def _delete(context: Context) -> Done:
    found = context.form.one_of("state", STATES, "")
    record = _existing(context)
    if not change(context.client, "delete", record.queue, [record.id], found=found):
        if found == "dead" != record.state:
            raise Refused(f"task {record.id} was dead and is {record.state} now: it is not deleted")
        raise Refused(f"task {record.id} is not deleted: a worker has it, or it is gone already")
    note_events(context.client, "delete", {record.queue: 1}, record.state)
    there = context.url("queue", queue=queue_of(record.queue)) or context.url("tasks")
    return Done(text=f"task {record.id} is deleted", to=there)


def _run_now(context: Context) -> Done:
    record = _existing(context)
    return _done(context, record, "waits now", changed=context.client.queue(record.queue).run_now(record.id))


def _replay(context: Context) -> Done:
    record = _existing(context)
    new_id = context.client.queue(record.queue).replay(record.id)
    there = context.url("task", task=new_id)
    return Done(text=f"task {record.id} runs again as {new_id}", to=there, values={"id": new_id})


def _existing(context: Context) -> TaskRecord:
    """The task of the path; an id that the user chose needs its queue. Raises NotThere, InvalidName."""
    task_id = check_id(context.path("task"))
    queue = context.form.text("queue") or context.query.text("queue") or None
    if queue is None and tag_of_id(task_id) is None:
        raise Refused(f"task id {task_id!r} was not made by jobrunner: name its queue too")
    try:
        return context.client.task(task_id, queue=queue).record()
    except TaskGone as error:
        raise NotThere(f"there is no task {task_id}, or no longer") from error


def _done(context: Context, record: TaskRecord, text: str, *, changed: bool) -> Done:
    if not changed:
        raise Refused(f"task {record.id} is {record.state}: nothing was changed")
    own = "" if tag_of_id(record.id) else f"?queue={record.queue}"
    there = context.url("task", task=record.id)
    return Done(text=f"task {record.id} {text}", to=there + own if there else context.url("tasks"))


pages: list[Page] = [
    Page(path="/tasks/{task}", name="task", endpoint=_task),
]
actions: list[Action] = [
    Action(path="/tasks/{task}/requeue", name="task.requeue", endpoint=_requeue, takes=_FIELDS, query=_FIELDS),
    Action(path="/tasks/{task}/edit", name="task.edit", endpoint=_edit, takes=(*_FIELDS, "params"), query=_FIELDS),
    Action(path="/tasks/{task}/cancel", name="task.cancel", endpoint=_cancel, takes=_SEEN, query=_FIELDS),
    Action(path="/tasks/{task}/delete", name="task.delete", endpoint=_delete, takes=_SEEN, query=_FIELDS),
    Action(path="/tasks/{task}/run-now", name="task.run-now", endpoint=_run_now, takes=_FIELDS, query=_FIELDS),
    Action(path="/tasks/{task}/replay", name="task.replay", endpoint=_replay, takes=_FIELDS, query=_FIELDS),
]
