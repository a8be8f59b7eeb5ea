"""`jobrunner dead`: list, requeue and purge dead tasks."""

import sys
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
    matching_tasks,
    nothing_found,
    show_list,
    with_conditions,
)
from jobrunner.client.client import Client
from jobrunner.errors import TaskGone
from jobrunner.formatting import counted
from jobrunner.inspector.task_rows import dead_ids
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
@with_conditions
@click.option("--rate", type=per_second, metavar="N", help="Tasks per second that become due; default: all at once.")
@click.option("--payload", "text", metavar="JSON", help="Replaces the payload; with exactly one --id.")
@click.option("--yes", is_flag=True, help="Skips the confirmation.")
@with_shared_options
def requeue(
    shared: CommonOptions, queue: str, ids: tuple[str, ...], everything: bool, conditions: TaskConditions,
    rate: float | None, text: str | None, yes: bool,
) -> None:  # fmt: skip
    """Put dead tasks of QUEUE back, with their attempts reset to 0.

    Selects by --id, by conditions as `dead list` does, or --all. On a terminal it asks with the number of tasks, unless
    --id names them or --yes is given.
    """
    if bool(ids) == (everything or not conditions.are_none):
        raise click.UsageError("no tasks are selected; give --id ID; or --job TEXT, --error TEXT, ...; or --all")
    if text is not None and len(ids) != 1:
        raise click.UsageError("--payload replaces the payload of one task; name the task with one --id ID")
    payload = msgspec.UNSET if text is None else json_value(text)
    with connected(shared, starts=True) as client:
        check_queue(client, queue)
        chosen = [check_id(one) for one in ids] or _dead_like(client, queue, conditions)
        if not chosen:
            raise Refusal(nothing_found(queue, "dead", conditions))
        if not ids and sys.stdin.isatty():
            at = "" if rate is None else f", {rate:g} per second"
            confirm(f"Requeue {counted(len(chosen), 'dead task')} of queue {queue}{conditions}{at}?", yes=yes)
        with watched(chosen, "requeueing") as some:
            done = client.queue(queue).requeue_dead(some, rate=rate, payload=payload)
        edited = " with an edited payload" if text is not None else ""
        what = " ".join((queue, *ids)) + str(conditions)
        note(client, "dead.requeue", what, f"requeued {done:,} of {counted(len(chosen), 'dead task')}{edited}")
    if not done:
        raise Refusal(_none_of(queue, ids))
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
        check_queue(client, queue)
        count = client.queue(queue).counts()["dead"]
        if not count:
            raise Refusal(_none_of(queue, ids))
        confirm(f"Delete {counted(count if everything else len(ids), 'dead task')} of queue {queue}?", yes=yes)
        done = _purge_all(client, queue, count) if everything else _purge_some(client, queue, ids)
        note(client, "dead.purge", " ".join((queue, *ids)), f"deleted {counted(done, 'dead task')}")
    if not done:
        raise Refusal(_none_of(queue, ids))
    _tell(shared, queue, "deleted", done, len(ids))


def _dead_like(client: Client, queue: str, conditions: TaskConditions) -> list[str]:
    """Ids of the dead tasks that meet all conditions, the longest dead first."""
    if conditions.are_none:
        return dead_ids(client, queue)
    found = matching_tasks(client, conditions.filter(queue, "dead"))
    return [place.id for place in sorted(found, key=lambda one: (one.score, one.id))]


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


def _none_of(queue: str, ids: tuple[str, ...]) -> str:
    return f"none of these tasks is dead in queue {queue}" if ids else f"queue {queue} has no dead tasks"


def _tell(shared: CommonOptions, queue: str, verb: str, done: int, asked: int) -> None:
    if shared.as_json:
        answer_json({"queue": queue, verb: done})
    else:
        rest = f", {asked} were named" if asked > done else ""
        echo(f"{verb} {counted(done, 'dead task')} of queue {queue}{rest}")
