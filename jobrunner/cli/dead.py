"""`jobrunner dead`: list dead tasks and groups of errors, requeue and purge."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click
import msgspec

from jobrunner.broker.keys import check_id, is_id
from jobrunner.cli.events import noted
from jobrunner.cli.main import CommandGroup
from jobrunner.cli.options import CommonOptions, confirm, connected, not_empty, with_shared_options, with_wide
from jobrunner.cli.output import (
    Refusal,
    answer_json,
    echo,
    prints_all_columns,
    rising,
    table,
    talk,
    watched,
    when,
)
from jobrunner.cli.queues import purged
from jobrunner.cli.status import tell_unread
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
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.operations.dead_and_history import note_changes
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.operations.task import cancel_all, delete_all
from jobrunner.errors import TaskGone
from jobrunner.formatting import counted, curve
from jobrunner.inspector.error_groups import ErrorGroupView, find_group, no_such_group, read_groups
from jobrunner.inspector.search import matching
from jobrunner.inspector.search_filter import Filter
from jobrunner.inspector.task_rows import TaskPosition, dead_ids

_TREND_WIDTH = 12
_EXAMPLES = """\b
Examples:
  jobrunner dead groups
  jobrunner dead list --error timeout --since 2h
  jobrunner dead requeue mail --error "connection refused" --rate 50
  jobrunner dead purge mail --id 01a1fe85769b0000c6650a2fcc89-mail --yes
"""


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def dead() -> None:
    """List dead tasks and groups of errors, requeue and delete."""


def per_second(text: str) -> float:
    """A rate in tasks per second; its user checks the range. Raises click.BadParameter."""
    try:
        return float(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no rate; write tasks per second, such as 50 or 0.5") from error


def json_value(text: str) -> Any:
    """The value of a JSON text. Raises click.BadParameter."""
    try:
        return msgspec.json.decode(text)
    except UnicodeEncodeError as error:  # of bytes that are no UTF-8
        raise click.BadParameter(f"{text!r} is no UTF-8: give a JSON text", param_hint="--payload") from error
    except msgspec.DecodeError as error:
        raise click.BadParameter(
            f'{text!r} is no JSON ({error}); write \'{{"to": "ada"}}\'', param_hint="--payload"
        ) from error


GROUP = click.option("--group", metavar="ID", callback=not_empty,
                     help="Only tasks of this group of errors: see jobrunner dead groups.")  # fmt: skip


@dead.command(epilog="Example:  jobrunner dead groups mail --json")
@QUEUE
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Most groups to print."
)
@with_wide
@with_shared_options
def groups(shared: CommonOptions, queue: str | None, limit: int, wide: bool) -> None:
    """List failed attempts of QUEUE, or of all queues, in groups."""
    with connected(shared) as client:
        check_queue(client, queue)
        found = read_groups(client, None if queue is None else [queue])
    some = found.groups[:limit]
    if shared.as_json:
        answer_json({
            "groups": [{**asdict(group), "title": group.title} for group in some],
            "dead": found.dead, "ungrouped": found.ungrouped, "problems": dict(found.problems),
        })  # fmt: skip
        return
    tell_unread(dict(found.problems))
    if some:
        echo(_group_table(some, names_queue=queue is None, wide=wide))
    if more := len(found.groups) - len(some):
        talk(f"{counted(more, 'group')} more: give --limit")
    if found.ungrouped:
        talk(f"{counted(found.ungrouped, 'dead task')} in no group: they died before groups were counted")
    if not found.groups:
        talk(f"no attempt failed{'' if queue is None else f' in queue {queue}'} in the last week, and nothing is dead")


def _group_table(some: Sequence[ErrorGroupView], *, names_queue: bool, wide: bool) -> str:
    is_wide = prints_all_columns(wide=wide)
    columns = (
        *("GROUP", *(("QUEUE",) if names_queue else ()), "JOB", "DEAD", "FAILED", "FIRST", "LAST", "TREND"),
        *(("RELEASE", "PLACE", "EXAMPLE") if is_wide else ()),
        "ERROR",
    )
    rows = [
        (
            *(group.id, *((group.queue,) if names_queue else ()), group.job or "-", group.dead, group.count),
            *(when(group.first), when(group.last), curve(group.trend, _TREND_WIDTH).strip()),
            *((group.release, group.place, group.task) if is_wide else ()),
            group.title if is_wide else _described(group),
        )
        for group in some
    ]
    return table(columns, rows, shortened=("JOB", "QUEUE"), tail=True, wide=wide)


def _described(group: ErrorGroupView) -> str:
    at = f", at {group.place}" if group.place else ""
    return group.title + at + (f", since release {group.release}" if group.release else "")


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
@click.option("--all", "everything", is_flag=True, help="All tasks that are dead now; with conditions, all that match.")
@with_conditions
@GROUP
@click.option("--rate", type=per_second, metavar="N", help="Tasks per second that become due; default: all at once.")
@click.option("--payload", "text", metavar="JSON", help="Replaces the payload; with exactly one --id.")
@click.option("--yes", is_flag=True, help="Skips the confirmation.")
@with_shared_options
def requeue(
    shared: CommonOptions, queue: str, ids: tuple[str, ...], everything: bool, conditions: TaskConditions,
    group: str | None, rate: float | None, text: str | None, yes: bool,
) -> None:  # fmt: skip
    """Put dead tasks of QUEUE back, with their attempts reset to 0.

    Selects by --id, by conditions as `dead list` does, by --group, or --all. On a terminal it asks with the number of
    tasks, unless --id names them or --yes is given.
    """
    if [bool(ids), everything or not conditions.are_none, group is not None].count(True) != 1:
        raise click.UsageError(
            "select tasks in one way: --id ID, or conditions such as --job TEXT, or --group ID, or --all"
        )
    if text is not None and len(ids) != 1:
        raise click.UsageError("--payload replaces the payload of one task; name the task with one --id ID")
    payload = msgspec.UNSET if text is None else json_value(text)
    with connected(shared, starts=True) as client:
        check_queue(client, queue)
        asked = _group(client, queue, group) if group is not None else None
        if ids:
            chosen = [check_id(one) for one in ids]
        elif asked is not None:
            chosen = _without_damage(place.id for found in _of_group(client, asked) for place in found)
        else:
            chosen = _without_damage(_dead_like(client, queue, conditions))
        if not chosen:
            raise Refusal(nothing_found(queue, "dead", conditions))
        if not ids and sys.stdin.isatty():
            at = "" if rate is None else f", {rate:g} per second"
            what = f"{counted(len(chosen), 'dead task')} of queue {queue}{_with(asked)}{conditions}"
            confirm(f"Requeue {what}{at}?", yes=yes)
        edited, done = " with an edited payload" if text is not None else "", 0
        what = _subject(queue, group) + str(conditions)

        def counting(some: Iterable[str]) -> Iterator[str]:
            nonlocal done
            for one in some:
                done += 1
                yield one

        with (
            noted(client, "dead.requeue", what,
                  lambda: f"requeued {done:,} of {counted(len(chosen), 'dead task')}{edited}", ids),
            watched(chosen, "requeueing") as some,
        ):  # fmt: skip
            done = client.queue(queue).requeue_dead(counting(some), rate=rate, payload=payload)
    if not done:
        raise Refusal(_none_of(queue, ids))
    _tell(shared, queue, "requeued", done, len(ids), group)


@dead.command(epilog="Example:  jobrunner dead purge mail --all --yes")
@click.argument("queue", shell_complete=queue_names)
@click.option("--id", "ids", multiple=True, metavar="ID", help="Id of a task. Repeatable.")
@click.option("--all", "everything", is_flag=True, help="All tasks that are dead now.")
@GROUP
@click.option("--yes", is_flag=True, help="Skips the confirmation.")
@with_shared_options
def purge(
    shared: CommonOptions, queue: str, ids: tuple[str, ...], everything: bool, group: str | None, yes: bool
) -> None:
    """Delete dead tasks of QUEUE."""
    if [bool(ids), everything, group is not None].count(True) != 1:
        raise click.UsageError("select tasks in one way: --id ID, or --group ID, or --all")
    with connected(shared, starts=True) as client:
        check_queue(client, queue)
        chosen = [check_id(one) for one in dict.fromkeys(ids)]
        count = client.queue(queue).counts()["dead"]
        if not count:
            raise Refusal(_none_of(queue, ids))
        asked = _group(client, queue, group) if group is not None else None
        count = count if everything else len(ids) if asked is None else asked.dead
        confirm(f"Delete {counted(count, 'dead task')} of queue {queue}{_with(asked)}?", yes=yes)
        if everything:
            done = purged(client, client.queue(queue), "dead", count, "dead.purge")
        else:
            counts = _purge_some(client, queue, chosen) if asked is None else _purge_group(client, asked)
            done = _summed(client, queue, counts, _subject(queue, group), ids)
    if not done:
        raise Refusal(_none_of(queue, ids))
    _tell(shared, queue, "deleted", done, len(ids), group)


def _without_damage(listed: Iterable[str]) -> list[str]:
    """Listed ids without members of the set that are no ids, left by another program or by damage."""
    return [one for one in listed if is_id(one)]


def _subject(queue: str, group: str | None) -> str:
    """The subject of an entry in the audit log."""
    return f"{queue} group={group}" if group else queue


def _with(group: ErrorGroupView | None) -> str:
    return "" if group is None else f" with {group.title!r}"


def _group(client: Client, queue: str, group_id: str) -> ErrorGroupView:
    """A group with dead tasks. Raises Refusal."""
    found = find_group(client, queue, group_id)
    if found is None:
        raise Refusal(no_such_group(queue, group_id))
    if not found.dead:
        raise Refusal(f"no task of group {group_id!r} of queue {queue} is dead: its tasks are tried again or ended")
    return found


def _of_group(client: Client, group: ErrorGroupView) -> Iterator[list[TaskPosition]]:
    return matching(client, Filter(queue=group.queue, state="dead", group=group.id))


def _summed(client: Client, queue: str, counts: Iterable[int], what: str, ids: Sequence[str]) -> int:
    """Sums the dead tasks of a queue that each step deletes, and writes the event and the audit log entry."""
    done = 0
    with noted(client, "dead.purge", what, lambda: f"deleted {counted(done, 'dead task')}", ids):
        try:
            for count in counts:
                done += count
        finally:
            run_operation(broker_of(client), note_changes(keys_of(client), "delete", {queue: done}, "dead"))
    return done


def _purge_group(client: Client, group: ErrorGroupView) -> Iterator[int]:
    done = 0
    with rising(group.dead, "deleting", "tasks") as progress:
        for found in filter(None, _of_group(client, group)):
            ids = [place.id for place in found]  # all of one shard
            gone = run_operation(broker_of(client), delete_all(keys_of(client), found[0].queue, ids, dead_only=True))
            yield gone
            done += gone
            if progress:
                progress(done)


def _dead_like(client: Client, queue: str, conditions: TaskConditions) -> list[str]:
    """Ids of the dead tasks that meet all conditions, oldest death first."""
    if conditions.are_none:
        return dead_ids(client, queue)
    found = matching_tasks(client, conditions.filter(queue, "dead"))
    return [place.id for place in sorted(found, key=lambda one: (one.score, one.id))]


def _purge_some(client: Client, queue: str, ids: Sequence[str]) -> Iterator[int]:
    for one in ids:
        try:
            record = client.task(one, queue=queue).record()
        except TaskGone:
            continue
        yield run_operation(broker_of(client), cancel_all(keys_of(client), record.queue, [one], leave="alive"))


def _none_of(queue: str, ids: tuple[str, ...]) -> str:
    return f"none of these tasks is dead in queue {queue}" if ids else f"queue {queue} has no dead tasks"


def _tell(shared: CommonOptions, queue: str, verb: str, done: int, asked: int, group: str | None = None) -> None:
    if shared.as_json:
        answer_json({"queue": queue, verb: done, **({"group": group} if group else {})})
    else:
        rest = f", {asked} were named" if asked > done else ""
        echo(f"{verb} {counted(done, 'dead task')} of queue {queue}{rest}")
