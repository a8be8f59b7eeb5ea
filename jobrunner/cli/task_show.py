"""Formats one task for `jobrunner tasks show`, as text or as JSON."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from jobrunner.cli.options import CommonOptions
from jobrunner.cli.output import answer_json, echo, exactly, facts, when
from jobrunner.cli.task_lists import short, task_value
from jobrunner.client.records import WorkerRecord
from jobrunner.inspector.attempts import LeaseHolder, who_failed
from jobrunner.redaction import Redaction
from jobrunner.task import TaskState
from jobrunner.task_record import Failure, TaskRecord
from jobrunner.tracebacks import short_traceback


def show_task(
    shared: CommonOptions, record: TaskRecord, holder: LeaseHolder | None, workers: list[WorkerRecord], hides: Redaction
) -> None:
    """Prints a task, its holder and its failed attempts, redacted."""
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
            echo(f"\nlast error:\n{short_traceback(hides.text(record.error.rstrip()))}")


def _all_of(record: TaskRecord, hides: Redaction) -> list[tuple[str, object]]:
    value = task_value(record, hides)
    found: list[tuple[str, object]] = [
        ("id", record.id),
        ("job", record.type),
        ("queue", record.queue),
        ("state", f"{record.state}{_cancel_note(record)}"),
        (_WHEN.get(record.state, "when"), exactly(record.when)),
        ("enqueued", exactly(record.enqueue_time)),
        ("attempts", f"{record.attempts}, {record.retry_count} of them failed"),
        ("priority", record.priority),
        ("payload", short(value["payload"])),
    ]
    found += [(name, value[name]) for name in ("result", "progress", "headers") if value[name]]
    return [pair for pair in found if pair[1] != "-"]


def _cancel_note(record: TaskRecord) -> str:
    """What a cancellation that was requested while the task ran will do."""
    if "cancel_requested" not in record.fields or record.state in (TaskState.SUCCEEDED, TaskState.CANCELLED):
        return ""
    if record.state is TaskState.PENDING:
        return ", asked to stop: its job reads that, and no further attempt begins"
    return ", cancelled when a worker would begin it"


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
