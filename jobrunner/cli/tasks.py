"""`jobrunner tasks`: list, show, cancel, run-now, enqueue."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import click

from jobrunner.broker.keys import check_id, tag_of_id
from jobrunner.cli.enqueue import enqueue
from jobrunner.cli.events import note
from jobrunner.cli.main import CommandGroup
from jobrunner.cli.options import CommonOptions, connected, with_shared_options
from jobrunner.cli.output import Refusal, answer_json, echo, exactly, facts, readable, table, talk, when
from jobrunner.cli.suggestions import queue_names
from jobrunner.client.client import Client
from jobrunner.client.records import WorkerRecord
from jobrunner.client.task_handle import TaskHandle
from jobrunner.errors import InvalidName, TaskGone
from jobrunner.inspector.attempts import LeaseHolder, holder_of, who_failed
from jobrunner.inspector.task_rows import STATES, list_tasks
from jobrunner.redaction import TOO_DEEP, Redaction
from jobrunner.task import ENCRYPTED, Failure, TaskRecord, TaskState

_EXAMPLES = """\b
Examples:
  jobrunner tasks list mail --state pending
  jobrunner tasks show 01a1fe85769b0000c6650a2fcc89-mail
"""
_SHOWN = ("retry_count", "attempts", "priority")
_TOLD_APART = frozenset(
    {"id", "type", "queue", "enqueue_time", "payload", "result", "error", "headers", "progress", "failures", *_SHOWN}
)
_LONGEST = 60
_INSTEAD = {
    TaskState.DEAD: "; to try a dead one again: jobrunner dead requeue QUEUE --id ID",
}


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def tasks() -> None:
    """List, show, enqueue, cancel and requeue tasks."""


tasks.add_command(enqueue)


@tasks.command("list", epilog="Example:  jobrunner tasks list mail --state dead --limit 20")
@click.argument("queue", shell_complete=queue_names)
@click.option("--state", type=click.Choice(STATES), help="Only tasks in this state; default: all four, pending first.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Most tasks to print.")
@with_shared_options
def list_(shared: CommonOptions, queue: str, state: str | None, limit: int) -> None:
    """List tasks of QUEUE in the order in which they are handed out."""
    with connected(shared) as client:
        found = list_tasks(client, queue, state, limit=limit)
        hides = client.redaction()
    show_list(shared, hides, found, f"queue {queue} has no {state + ' ' if state else ''}tasks")


@tasks.command(epilog="Example:  jobrunner tasks show my-own-id --queue mail")
@click.argument("task_id", metavar="ID")
@click.option("--queue", metavar="NAME", shell_complete=queue_names,
              help="Queue of the task; required for an id that jobrunner did not generate.")  # fmt: skip
@with_shared_options
def show(shared: CommonOptions, task_id: str, queue: str | None) -> None:
    """Show one task: state, holder, parameters, attempts, errors."""
    with connected(shared) as client:
        record = _task(client, task_id, queue).record()
        workers = client.workers()
        holder = holder_of(client, record, workers)
        hides = client.redaction()
    if shared.as_json:
        ran_by = [who_failed(failure, workers) for failure in record.failures]
        failures = [
            replace(one, worker=name, error=hides.text(one.error))
            for one, name in zip(record.failures, ran_by, strict=True)
        ]
        answer_json(task_value(record, hides) | {"holder": _holder_value(holder), "failures": failures})
    else:
        held = [("held by", _told_holder(holder))] if holder is not None else []
        echo(facts([*_all_of(record, hides), *held]))
        if record.failures:
            echo("")
        for failure in record.failures:
            echo(hides.text(_told_failure(failure, workers)))
        if record.error:
            echo(f"\n{hides.text(record.error.rstrip())}")


@tasks.command(epilog="Example:  jobrunner tasks cancel 01a1fe85769b0000c6650a2fcc89-mail")
@click.argument("task_id", metavar="ID")
@click.option("--queue", metavar="NAME", shell_complete=queue_names,
              help="Queue of the task; required for an id that jobrunner did not generate.")  # fmt: skip
@with_shared_options
def cancel(shared: CommonOptions, task_id: str, queue: str | None) -> None:
    """Cancel a task; a running one is asked to stop."""
    with connected(shared, starts=True) as client:
        task = _task(client, task_id, queue)
        if not task.cancel():
            raise Refusal(f"task {task_id} is finished or gone already")
        running = _is_pending(task)
        note(client, "task.cancel", task_id, "asked to stop" if running else "cancelled")
    if shared.as_json:
        answer_json({"id": task_id, "state": "asked to stop" if running else "cancelled"})
    else:
        echo(f"task {task_id} {'runs and is asked to stop' if running else 'is cancelled'}")


@tasks.command("run-now", epilog="Example:  jobrunner tasks run-now 01a1fe85769b0000c6650a2fcc89-mail")
@click.argument("task_id", metavar="ID")
@click.option("--queue", metavar="NAME", shell_complete=queue_names,
              help="Queue of the task; required for an id that jobrunner did not generate.")  # fmt: skip
@with_shared_options
def run_now(shared: CommonOptions, task_id: str, queue: str | None) -> None:
    """Run a scheduled task now, also one that waits for a retry.

    It goes to the end of the tasks that wait."""
    with connected(shared, starts=True) as client:
        task = _task(client, task_id, queue)
        if not task.run_now():
            state = task.record().state
            raise Refusal(f"task {task_id} is {state}: only a scheduled task can be run now{_INSTEAD.get(state, '')}")
        note(client, "task.run-now", task_id, "waits now")
    if shared.as_json:
        answer_json({"id": task_id, "state": "waiting"})
    else:
        echo(f"task {task_id} waits now")


def show_list(shared: CommonOptions, hides: Redaction, found: list[TaskRecord], nothing: str) -> None:
    """Answers with tasks, one line each, or says that there are none."""
    if shared.as_json:
        answer_json([task_value(record, hides) for record in found])
    elif found:
        columns = ("ID", "JOB", "STATE", "WHEN", "ATTEMPTS", "ENQUEUED", "ERROR OR PAYLOAD")
        echo(table(columns, [_line(record, hides) for record in found]))
    else:
        talk(nothing)


def task_value(record: TaskRecord, hides: Redaction) -> dict[str, Any]:
    """A task as JSON: its record, and the other fields of its hash as text, redacted."""
    shown = hides.shown
    known = {name: getattr(record, name) for name in ("id", "type", "queue", "state", "when", "enqueue_time", *_SHOWN)}
    return {
        **known,
        "error": hides.text(record.error),
        "payload": ENCRYPTED if record.is_encrypted else shown(readable(record.payload)),
        "result": _result(record, shown),
        "headers": shown(readable(record.fields.get("headers", b"{}"))),
        "progress": shown(readable(record.fields.get("progress", b"null"))),
        "fields": {name: _field(value, hides) for name, value in record.fields.items() if name not in _TOLD_APART},
    }


def _result(record: TaskRecord, shown: Callable[[Any], Any]) -> Any:
    if record.result is None:
        return None
    return ENCRYPTED if record.has_encrypted_result else shown(readable(record.result))


def _field(raw: bytes, hides: Redaction) -> str:
    value = readable(raw)
    if isinstance(value, str) and value is TOO_DEEP:
        return TOO_DEEP
    if isinstance(value, dict | list):
        return json.dumps(hides.shown(value))
    return hides.text(raw.decode("utf-8", "replace"))


def _task(client: Client, task_id: str, queue: str | None) -> TaskHandle[Any]:
    if queue is None and tag_of_id(check_id(task_id)) is None:
        raise InvalidName(f"task id {task_id!r} was not made by jobrunner; name its queue too: --queue NAME")
    return client.task(task_id, queue=queue)


def _is_pending(task: TaskHandle[Any]) -> bool:
    try:
        return task.state is TaskState.PENDING
    except TaskGone:
        return False


def _line(record: TaskRecord, hides: Redaction) -> tuple[object, ...]:
    told = hides.text(record.error.partition("\n")[0]) or _short(hides.shown(readable(record.payload)))
    return (
        *(record.id, record.type, record.state, when(record.when), record.attempts),
        *(when(record.enqueue_time), told if len(told) <= _LONGEST else told[: _LONGEST - 1] + "…"),
    )


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={part}" for name, part in value.items())
    return str(value)


def _all_of(record: TaskRecord, hides: Redaction) -> list[tuple[str, object]]:
    value = task_value(record, hides)
    found: list[tuple[str, object]] = [
        ("id", record.id),
        ("job", record.type),
        ("queue", record.queue),
        ("state", record.state),
        (_WHEN.get(record.state, "when"), exactly(record.when)),
        ("enqueued", exactly(record.enqueue_time)),
        ("attempts", f"{record.attempts}, {record.retry_count} of them failed"),
        ("priority", record.priority),
        ("payload", _short(value["payload"])),
    ]
    found += [(name, value[name]) for name in ("result", "progress", "headers") if value[name]]
    return [pair for pair in found if pair[1] != "-"]


def _told_holder(holder: LeaseHolder) -> str:
    if holder.worker is None:
        return f"a worker that is gone, {holder.mark}" if holder.mark else "no worker: a program, or a batch"
    began = f", began it {when(holder.running.began)}" if holder.running else ""
    return f"{holder.worker.host} pid {holder.worker.pid} ({holder.worker.id}){began}"


def _holder_value(holder: LeaseHolder | None) -> dict[str, Any] | None:
    if holder is None:
        return None
    worker, running = holder.worker, holder.running
    return {
        "mark": holder.mark,
        "worker": worker and worker.id,
        "host": worker and worker.host,
        "pid": worker and worker.pid,
        "began": running and running.began,
    }


def _told_failure(failure: Failure, workers: Iterable[WorkerRecord]) -> str:
    by = who_failed(failure, workers)
    return f"attempt {failure.attempt} {failure.what} {when(failure.at)}{f' at {by}' if by else ''}: {failure.error}"


_WHEN = {
    TaskState.SCHEDULED: "due",
    TaskState.PENDING: "lease ends",
    TaskState.DEAD: "died",
    TaskState.SUCCEEDED: "finished",
    TaskState.CANCELLED: "cancelled",
}
