"""`jobrunner dead`: list, requeue and purge dead tasks."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from jobrunner.broker.keys import check_id
from jobrunner.cli.events import note
from jobrunner.cli.main import CommandGroup
from jobrunner.cli.options import CommonOptions, confirm, connected, with_shared_options, with_wide
from jobrunner.cli.output import Refusal, answer_json, echo, rising, watched
from jobrunner.cli.suggestions import check_queue, queue_names
from jobrunner.cli.task_lists import (
    LIMIT,
    QUEUE,
    TaskConditions,
    find_tasks,
    nothing_found,
    show_list,
    with_conditions,
)
from jobrunner.client.client import Client
from jobrunner.errors import TaskGone
from jobrunner.formatting import counted
from jobrunner.inspector.task_rows import dead_ids, dead_like
from jobrunner.task import TaskState

_EXAMPLES = """\b
Examples:
  jobrunner dead list --error timeout --since 2h
  jobrunner dead requeue mail --error "connection refused" --rate 50
  jobrunner dead purge mail --id 01a1fe85769b0000c6650a2fcc89-mail --yes
"""


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def dead() -> None:
    """List, requeue and delete dead tasks."""


def per_second(text: str) -> float:
    """Tasks per second; the range is checked where it is used. Raises click.BadParameter."""
    try:
        return float(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no rate; write tasks per second, such as 50 or 0.5") from error


def json_value(text: str) -> Any:
    """The value of a JSON text. Raises click.BadParameter."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise click.BadParameter(
            f'{text!r} is no JSON ({error}); write \'{{"to": "ada"}}\'', param_hint="--payload"
        ) from error


def _with_filters(command: Callable[..., Any]) -> Callable[..., Any]:
    job = click.option("--job", metavar="NAME", help="Only tasks of this job.")
    error = click.option("--error", metavar="TEXT", help="Only tasks whose last error contains this text, in any case.")
    return job(error(command))


@dead.command("list", epilog="Example:  jobrunner dead list mail --error 'connection refused' --json")
@QUEUE
@with_conditions
@LIMIT
@with_wide
@with_shared_options
def list_(shared: CommonOptions, queue: str | None, conditions: TaskConditions, limit: int, wide: bool) -> None:
    """List dead tasks of QUEUE, or of all queues, the latest first."""
    with connected(shared) as client:
        check_queue(client, queue)
        hides = client.redaction()
        found = find_tasks(client, conditions.filter(queue, "dead"), limit, hides)
    show_list(shared, hides, found, nothing_found(queue, "dead", conditions), wide=wide)


@dead.command(epilog="Example:  jobrunner dead requeue mail --job Welcome --rate 50")
@click.argument("queue", shell_complete=queue_names)
@click.option("--id", "ids", multiple=True, metavar="ID", help="Id of a task. Repeatable.")
@click.option("--all", "everything", is_flag=True, help="All tasks that are dead now.")
@_with_filters
@click.option("--rate", type=per_second, metavar="N", help="Tasks per second that become due; default: all at once.")
@click.option("--payload", "text", metavar="JSON", help="Replaces the payload; with exactly one --id.")
@with_shared_options
def requeue(
    shared: CommonOptions,
    queue: str,
    ids: tuple[str, ...],
    everything: bool,
    job: str | None,
    error: str | None,
    rate: float | None,
    text: str | None,
) -> None:
    """Put dead tasks of QUEUE back, with their attempts reset to 0."""
    if bool(ids) == (everything or job is not None or error is not None):
        raise click.UsageError("no tasks are selected; give --id ID; or --job NAME, --error TEXT or both; or --all")
    if text is not None and len(ids) != 1:
        raise click.UsageError("--payload replaces the payload of one task; name the task with one --id ID")
    payload = msgspec.UNSET if text is None else json_value(text)
    with connected(shared, starts=True) as client, _chosen(client, queue, ids, job, error) as chosen:
        done = client.queue(queue).requeue_dead(chosen, rate=rate, payload=payload)
        edited = " with an edited payload" if text is not None else ""
        note(client, "dead.requeue", " ".join((queue, *ids)), f"requeued {counted(done, 'dead task')}{edited}")
    if not done:
        raise Refusal(_none_of(queue, ids, job, error))
    _tell(shared, queue, "requeued", done, len(ids))


@dead.command(epilog="Example:  jobrunner dead purge mail --all --yes")
@click.argument("queue", shell_complete=queue_names)
@click.option("--id", "ids", multiple=True, metavar="ID", help="Id of a task. Repeatable.")
@click.option("--all", "everything", is_flag=True, help="All tasks that are dead now.")
@click.option("--yes", is_flag=True, help="Skips the confirmation.")
@with_shared_options
def purge(shared: CommonOptions, queue: str, ids: tuple[str, ...], everything: bool, yes: bool) -> None:
    """Delete dead tasks of QUEUE."""
    _check_choice(ids, everything)
    with connected(shared, starts=True) as client:
        count = client.queue(queue).counts()["dead"]
        if not count:
            raise Refusal(_none_of(queue, ids))
        confirm(f"Delete {counted(count if everything else len(ids), 'dead task')} of queue {queue}?", yes=yes)
        done = _purge_all(client, queue, count) if everything else _purge_some(client, queue, ids)
        note(client, "dead.purge", " ".join((queue, *ids)), f"deleted {counted(done, 'dead task')}")
    if not done:
        raise Refusal(_none_of(queue, ids))
    _tell(shared, queue, "deleted", done, len(ids))


@contextmanager
def _chosen(
    client: Client, queue: str, ids: tuple[str, ...], job: str | None, error: str | None
) -> Iterator[Iterable[str]]:
    if ids:
        yield [check_id(one) for one in ids]
        return
    with watched(dead_ids(client, queue), "requeueing") as found:
        if job is None and error is None:
            yield found
        else:
            yield (record.id for record in dead_like(client, queue, found, job=job, error=error))


def _purge_all(client: Client, queue: str, count: int) -> int:
    with rising(count, "deleting", "tasks") as progress:
        return client.queue(queue).purge("dead", progress=progress)


def _purge_some(client: Client, queue: str, ids: tuple[str, ...]) -> int:
    done = 0
    for one in ids:
        task = client.task(one, queue=queue)
        try:
            done += task.state is TaskState.DEAD and task.cancel()
        except TaskGone:
            continue
    return done


def _check_choice(ids: tuple[str, ...], everything: bool) -> None:
    if bool(ids) == everything:
        raise click.UsageError("no tasks are selected; give --id ID, or --all")


def _none_of(queue: str, ids: tuple[str, ...], job: str | None = None, error: str | None = None) -> str:
    if ids:
        return f"none of these tasks is dead in queue {queue}"
    of_job = "" if job is None else f" of job {job!r}"
    return f"queue {queue} has no dead tasks{of_job}" + ("" if error is None else f" with {error!r} in their errors")


def _tell(shared: CommonOptions, queue: str, verb: str, done: int, asked: int) -> None:
    if shared.as_json:
        answer_json({"queue": queue, verb: done})
    else:
        rest = f", {asked} were named" if asked > done else ""
        echo(f"{verb} {counted(done, 'dead task')} of queue {queue}{rest}")
