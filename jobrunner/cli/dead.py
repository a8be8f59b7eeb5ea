"""`jobrunner dead`: the tasks that were given up: list, requeue, purge."""

import click

from jobrunner.broker.keys import check_id
from jobrunner.cli.answer import answer_json, counted
from jobrunner.cli.boundary import Refusal
from jobrunner.cli.group import Group
from jobrunner.cli.options import Shared, confirm, connected, with_shared_options
from jobrunner.cli.tasks import show_list
from jobrunner.client.client import Client
from jobrunner.errors import TaskGone
from jobrunner.inspector.listing import list_tasks
from jobrunner.task import TaskState

_EXAMPLES = """\b
Examples:
  jobrunner dead list mail
  jobrunner dead requeue mail --all
  jobrunner dead purge mail --id 01a1fe85769b0000c6650a2fcc89-mail --yes
"""


@click.group(cls=Group, epilog=_EXAMPLES)
def dead() -> None:
    """Lists, requeues and purges tasks that were given up."""


@dead.command("list", epilog="Example:  jobrunner dead list mail --json")
@click.argument("queue")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most so many.")
@with_shared_options
def list_(shared: Shared, queue: str, limit: int) -> None:
    """Lists the dead tasks of QUEUE with their last errors, the longest dead first."""
    with connected(shared) as client:
        found = list_tasks(client, queue, "dead", limit=limit)
    show_list(shared, found, f"queue {queue} has no dead tasks")


@dead.command(epilog="Example:  jobrunner dead requeue mail --all")
@click.argument("queue")
@click.option("--id", "ids", multiple=True, metavar="ID", help="This task; may be given again.")
@click.option("--all", "everything", is_flag=True, help="All that are dead now.")
@with_shared_options
def requeue(shared: Shared, queue: str, ids: tuple[str, ...], everything: bool) -> None:
    """Puts dead tasks of QUEUE back into it, with their counts at zero."""
    _check_choice(ids, everything)
    with connected(shared) as client:
        done = client.queue(queue).requeue_dead(None if everything else [check_id(one) for one in ids])
    if not done:
        raise Refusal(_none_of(queue, ids))
    _tell(shared, queue, "requeued", done, len(ids))


@dead.command(epilog="Example:  jobrunner dead purge mail --all --yes")
@click.argument("queue")
@click.option("--id", "ids", multiple=True, metavar="ID", help="This task; may be given again.")
@click.option("--all", "everything", is_flag=True, help="All that are dead now.")
@click.option("--yes", is_flag=True, help="Does not ask.")
@with_shared_options
def purge(shared: Shared, queue: str, ids: tuple[str, ...], everything: bool, yes: bool) -> None:
    """Deletes dead tasks of QUEUE for good."""
    _check_choice(ids, everything)
    with connected(shared) as client:
        count = client.queue(queue).counts()["dead"]
        if not count:
            raise Refusal(_none_of(queue, ids))
        confirm(f"Delete {counted(count if everything else len(ids), 'dead task')} of queue {queue}?", yes=yes)
        done = client.queue(queue).purge("dead") if everything else _purge_some(client, queue, ids)
    if not done:
        raise Refusal(_none_of(queue, ids))
    _tell(shared, queue, "deleted", done, len(ids))


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
        raise click.UsageError("which tasks? give --id ID, or --all")


def _none_of(queue: str, ids: tuple[str, ...]) -> str:
    return f"none of these tasks is dead in queue {queue}" if ids else f"queue {queue} has no dead tasks"


def _tell(shared: Shared, queue: str, verb: str, done: int, asked: int) -> None:
    if shared.as_json:
        answer_json({"queue": queue, verb: done})
    else:
        rest = f", {asked} were named" if asked > done else ""
        click.echo(f"{verb} {counted(done, 'dead task')} of queue {queue}{rest}")
