"""`jobrunner tasks`: list, show, cancel, requeue, run-now, enqueue."""

from collections import Counter
from itertools import groupby, islice
from typing import Any

import click

from jobrunner.broker.keys import check_id, tag_of_id
from jobrunner.cli.enqueue import enqueue
from jobrunner.cli.events import note, noted
from jobrunner.cli.main import CommandGroup
from jobrunner.cli.options import CommonOptions, confirm, connected, with_shared_options, with_wide
from jobrunner.cli.output import Refusal, answer_json, echo, rising
from jobrunner.cli.status import workers_or_warning
from jobrunner.cli.suggestions import check_queue, queue_names
from jobrunner.cli.task_lists import (
    LIMIT,
    QUEUE,
    STATE,
    TaskConditions,
    find_tasks,
    matching_tasks,
    nothing_found,
    show_list,
    with_conditions,
)
from jobrunner.cli.task_show import show_task
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.operations.dead_and_history import note_changes
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.operations.task import cancel_all
from jobrunner.client.task_handle import TaskHandle
from jobrunner.errors import InvalidName, TaskGone
from jobrunner.formatting import counted
from jobrunner.inspector.attempts import holder_of, with_begun_attempt
from jobrunner.inspector.task_rows import STATES, TaskPosition
from jobrunner.task import TaskState

_EXAMPLES = """\b
Examples:
  jobrunner tasks list mail --state pending
  jobrunner tasks show 01a1fe85769b0000c6650a2fcc89-mail
"""
_CANCELLED = ("waiting", "scheduled")
"""The states that `cancel` selects without an id and a state: not running tasks, nor dead tasks, which it would
delete."""
_AT_ONCE = 500
_INSTEAD = {
    TaskState.DEAD: "; to try a dead one again: jobrunner tasks requeue ID",
}


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def tasks() -> None:
    """List, show, enqueue, cancel and requeue tasks."""


tasks.add_command(enqueue)


_LIST_EXAMPLES = """\b
Examples:
  jobrunner tasks list mail --state scheduled --limit 20
  jobrunner tasks list --job Welcome --error "connection refused" --since 2h
  jobrunner tasks list --param customer=17 --wide
"""


@tasks.command("list", epilog=_LIST_EXAMPLES)
@QUEUE
@click.option("--queue", "queue_option", metavar="NAME", shell_complete=queue_names, help="The same as QUEUE.")
@STATE
@with_conditions
@LIMIT
@with_wide
@with_shared_options
def list_(
    shared: CommonOptions, queue: str | None, queue_option: str | None, state: str | None,
    conditions: TaskConditions, limit: int, wide: bool,
) -> None:  # fmt: skip
    """List tasks of QUEUE, or of all queues, that meet all conditions.

    Pending first, then waiting and scheduled ones in the order in which they are handed out, then dead ones, the
    latest first; of each state queue by queue, and with --state dead of all queues together. With conditions dead
    tasks come second, as they are few. Texts match in any case.
    """
    if queue is not None and queue_option not in (None, queue):
        raise click.UsageError(f"two queues, {queue} and {queue_option}; name one, or none for all")
    chosen = queue_option if queue is None else queue
    with connected(shared) as client:
        check_queue(client, chosen)
        hides = client.redaction()
        found = find_tasks(client, conditions.filter(chosen, state), limit, hides)
    show_list(shared, hides, found, nothing_found(chosen, state, conditions), wide=wide)


@tasks.command(epilog="Example:  jobrunner tasks show my-own-id --queue mail")
@click.argument("task_id", metavar="ID")
@click.option("--queue", metavar="NAME", shell_complete=queue_names,
              help="Queue of the task; required for an id that jobrunner did not generate.")  # fmt: skip
@with_shared_options
def show(shared: CommonOptions, task_id: str, queue: str | None) -> None:
    """Show one task: state, holder, parameters, attempts, errors."""
    with connected(shared) as client:
        record = _task(client, task_id, queue).record()
        workers = workers_or_warning(client)
        holder = holder_of(client, record, workers)
        record = with_begun_attempt(record, holder)
        hides = client.redaction()
    show_task(shared, record, holder, workers, hides)


_CANCEL_EXAMPLES = """\b
Examples:
  jobrunner tasks cancel 01a1fe85769b0000c6650a2fcc89-mail
  jobrunner tasks cancel --queue mail --job Newsletter
  jobrunner tasks cancel --job Rollup --state pending --yes
"""


@tasks.command(epilog=_CANCEL_EXAMPLES)
@click.argument("task_id", metavar="[ID]", required=False)
@click.option("--queue", metavar="NAME", shell_complete=queue_names,
              help="Queue of the tasks; required for an id that jobrunner did not generate.")  # fmt: skip
@click.option("--state", type=click.Choice(STATES), help="Only tasks in this state; default: waiting and scheduled.")
@with_conditions
@click.option("--yes", is_flag=True, help="Skips the confirmation.")
@with_shared_options
def cancel(
    shared: CommonOptions, task_id: str | None, queue: str | None, state: str | None, conditions: TaskConditions,
    yes: bool,
) -> None:  # fmt: skip
    """Cancel a task, or all that match; a running one is asked to stop.

    Without an ID it counts the tasks that meet all conditions, asks, and cancels them. Without a terminal it refuses,
    unless --yes is given.
    """
    if task_id is None:
        _cancel_all(shared, queue, state, conditions, yes=yes)
        return
    if state is not None or not conditions.are_none:
        raise click.UsageError("give an ID or conditions, not both")
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


def _cancel_all(
    shared: CommonOptions, queue: str | None, state: str | None, conditions: TaskConditions, *, yes: bool
) -> None:
    if queue is None and state is None and conditions.are_none:
        raise click.UsageError("no tasks are selected; give an ID, or one of --queue, --job, --error, --param, --state")
    where = f" of queue {queue}" if queue else ""
    with connected(shared, starts=True) as client:
        check_queue(client, queue)
        states = (state,) if state else _CANCELLED
        chosen = [place for one in states for place in matching_tasks(client, conditions.filter(queue, one))]
        if not chosen:
            raise Refusal(nothing_found(queue, state or " or ".join(_CANCELLED), conditions))
        what = counted(len(chosen), f"{state or 'open'} task")
        confirm(f"Cancel {what}{where}{conditions}?", yes=yes)
        changed, subject = Counter[str](), f"{queue or 'all queues'}{conditions}"
        with noted(client, "task.cancel", subject, lambda: f"cancelled {counted(changed.total(), 'task')}"):
            _cancel_each(client, chosen, changed, dead=state == "dead")
        done = changed.total()
    if shared.as_json:
        answer_json({"queue": queue, "matched": len(chosen), "cancelled": done})
    else:
        why = "ended or requeued" if state == "dead" else "ended or dead"
        rest = f", {counted(len(chosen) - done, 'task')} {why} meanwhile" if done < len(chosen) else ""
        echo(f"{'asked to stop' if state == 'pending' else 'cancelled'} {counted(done, 'task')}{where}{rest}")


def _cancel_each(client: Client, chosen: list[TaskPosition], changed: Counter[str], *, dead: bool) -> None:
    """Cancels the chosen tasks unless they died, or were requeued, since they were found; counts cancelled tasks by
    queue in `changed`."""
    seen = 0
    try:
        with rising(len(chosen), "cancelling", "tasks") as progress:
            for queue, places in groupby(sorted(chosen, key=lambda one: one.queue), key=lambda one: one.queue):
                rest = iter(places)
                while ids := [place.id for place in islice(rest, _AT_ONCE)]:
                    cancels = cancel_all(keys_of(client), queue, ids, leave="alive" if dead else "dead")
                    changed[queue] += run_operation(broker_of(client), cancels)
                    seen += len(ids)
                    if progress is not None:
                        progress(seen)
    finally:
        if dead:
            run_operation(broker_of(client), note_changes(keys_of(client), "cancel", changed, "dead"))


@tasks.command(epilog="Example:  jobrunner tasks requeue 01a1fe85769b0000c6650a2fcc89-mail")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--queue", metavar="NAME", shell_complete=queue_names,
              help="Queue of the tasks; required for ids that jobrunner did not generate.")  # fmt: skip
@with_shared_options
def requeue(shared: CommonOptions, ids: tuple[str, ...], queue: str | None) -> None:
    """Put dead tasks back, with their attempts reset to 0.

    Exits with 1 when one of them is gone or not dead, after the others were put back; `dead requeue` selects tasks by
    job and error, and edits a payload.
    """
    with connected(shared, starts=True) as client:
        handles = [_task(client, one, queue) for one in dict.fromkeys(ids)]
        done, gone = list[str](), list[str]()
        with noted(client, "task.requeue", "", lambda: f"requeued {counted(len(done), 'dead task')}", ids):
            _requeue_each(client, handles, done, gone)
    if shared.as_json and done:
        answer_json({"requeued": done})
    elif done:
        echo(f"requeued {counted(len(done), 'dead task')}")
    refused = [handle.id for handle in handles if handle.id not in {*done, *gone}]
    if refused or gone:
        why = [f"{said}: {', '.join(some)}" for said, some in (("not dead", refused), ("not there", gone)) if some]
        raise Refusal(f"{', '.join(why)}; jobrunner tasks show ID prints the state")


def _requeue_each(client: Client, handles: list[TaskHandle[Any]], done: list[str], gone: list[str]) -> None:
    """Requeues dead tasks; adds the ids of requeued tasks to `done`, and of missing tasks to `gone`."""
    changed = Counter[str]()
    try:
        for handle in handles:
            try:
                place = handle.record().queue
            except TaskGone:
                gone.append(handle.id)
                continue
            if handle.requeue():
                done.append(handle.id)
                changed[place] += 1
    finally:
        run_operation(broker_of(client), note_changes(keys_of(client), "requeue", changed))


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


def _task(client: Client, task_id: str, queue: str | None) -> TaskHandle[Any]:
    if queue is None and tag_of_id(check_id(task_id)) is None:
        raise InvalidName(f"task id {task_id!r} was not made by jobrunner; name its queue too: --queue NAME")
    return client.task(task_id, queue=queue)


def _is_pending(task: TaskHandle[Any]) -> bool:
    try:
        return task.state is TaskState.PENDING
    except TaskGone:
        return False
