"""`jobrunner queues`: list, pause, resume, purge, delete. Settings have a module of their own."""

import click

from jobrunner.cli.events import note, noted
from jobrunner.cli.main import CommandGroup
from jobrunner.cli.options import CommonOptions, confirm, connected, seconds_of, with_shared_options, with_wide
from jobrunner.cli.output import Refusal, answer_json, echo, plain_json, rising, talk
from jobrunner.cli.queue_settings import limit, reset, settings
from jobrunner.cli.status import queue_table, tell_unread, unread_queues, workers_or_warning
from jobrunner.cli.suggestions import check_queue, queue_names, with_create
from jobrunner.client.client import Client
from jobrunner.client.queue import Queue
from jobrunner.formatting import counted, exact_duration
from jobrunner.inspector.snapshot import overridden, queue_views

_EXAMPLES = """\b
Examples:
  jobrunner queues list
  jobrunner queues pause mail --for 10m
  jobrunner queues limit mail --rate 1000/1m --history 7d
  jobrunner queues purge mail --state scheduled
"""


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def queues() -> None:
    """List, pause, limit and purge queues, and show their settings."""


@queues.command("list", epilog="Example:  jobrunner queues list --json")
@with_wide
@with_shared_options
def list_(shared: CommonOptions, wide: bool) -> None:
    """List queues with the number of tasks in each state."""
    with connected(shared) as client:
        found = queue_views(client, workers_or_warning(client))
        changed = overridden(client, [queue.name for queue in found if not queue.problem])
    tell_unread(unread_queues(found))
    if shared.as_json:
        answer_json([plain_json(queue) | {"changed": changed.get(queue.name, {})} for queue in found])
    elif found:
        echo(queue_table(found, wide=wide, changed=changed))
    else:
        talk("no queue was ever used")


@queues.command(epilog="Example:  jobrunner queues pause mail --for 10m")
@click.argument("queue", shell_complete=queue_names)
@click.option("--for", "for_s", type=seconds_of, metavar="S",
              help="Resumes by itself after this time: 90 (seconds), 5m, 2h, 1d.")  # fmt: skip
@with_create
@with_shared_options
def pause(shared: CommonOptions, queue: str, for_s: float | None, create: bool) -> None:
    """Pause QUEUE: workers get no task of it until it is resumed.

    Tasks can still be enqueued."""
    if for_s == 0:
        raise click.BadParameter("a pause lasts more than 0 s; jobrunner queues resume ends one", param_hint="--for")
    with connected(shared, starts=True) as client:
        check_queue(client, queue, create=create)
        client.queue(queue).pause(for_s)
        note(client, "queue.pause", queue, f"paused{f' for {exact_duration(for_s)}' if for_s else ''}")
    if shared.as_json:
        answer_json({"queue": queue, "state": "paused", "for_s": for_s})
    else:
        echo(f"queue {queue} is paused{f' for {exact_duration(for_s)}' if for_s else ''}")


@queues.command(epilog="Example:  jobrunner queues resume mail")
@click.argument("queue", shell_complete=queue_names)
@with_shared_options
def resume(shared: CommonOptions, queue: str) -> None:
    """Resume QUEUE after a pause."""
    with connected(shared, starts=True) as client:
        check_queue(client, queue)
        client.queue(queue).resume()
        note(client, "queue.resume", queue, "resumed")
    if shared.as_json:
        answer_json({"queue": queue, "state": "open"})
    else:
        echo(f"queue {queue} is open")


queues.add_command(limit)
queues.add_command(settings)
queues.add_command(reset)


@queues.command(epilog="Example:  jobrunner queues purge mail --state dead --yes")
@click.argument("queue", shell_complete=queue_names)
@click.option("--state", type=click.Choice(["waiting", "scheduled", "dead", "done"]), default="waiting",
              show_default=True, help="State of the tasks to delete; done: the history.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Skips the confirmation.")
@with_shared_options
def purge(shared: CommonOptions, queue: str, state: str, yes: bool) -> None:
    """Delete all tasks of QUEUE that are in one state."""
    purge_state(shared, queue, state, yes=yes)


@queues.command(epilog="Example:  jobrunner queues delete uploads-2025 --force --yes")
@click.argument("queue", shell_complete=queue_names)
@click.option("--force", is_flag=True, help="Deletes its tasks, too.")
@click.option("--yes", is_flag=True, help="Skips the confirmation.")
@with_shared_options
def delete(shared: CommonOptions, queue: str, force: bool, yes: bool) -> None:
    """Delete QUEUE with its settings and totals.

    Refuses while it holds tasks, unless --force is given."""
    with connected(shared, starts=True) as client:
        asked = client.queue(queue)
        held = sum(asked.counts().values()) if force else 0
        if held:
            confirm(f"Delete queue {queue} and {counted(held, 'task')} that it holds?", yes=yes)
        if not asked.delete(force=force):
            raise Refusal(f"there is no queue {queue}")
        note(client, "queue.delete", queue, f"deleted with {counted(held, 'task')}" if held else "deleted")
    if shared.as_json:
        answer_json({"queue": queue, "deleted": True})
    else:
        click.echo(f"deleted queue {queue}")


def purged(client: Client, queue: Queue, state: str, count: int, action: str) -> int:
    """Deletes all tasks of one state, about `count`, with a progress bar and an audit log entry under `action`; returns
    the number of deleted tasks."""
    gone = 0
    with (
        noted(client, action, queue.name, lambda: f"deleted {counted(gone, state + ' task')}"),
        rising(count, "deleting", "tasks") as progress,
    ):

        def tell(done: int) -> None:
            nonlocal gone
            gone = done
            if progress is not None:
                progress(done)

        gone = queue.purge(state, progress=tell)
        if state == "dead":  # a slice whose reply was lost is sent again, and counts only the tasks found then
            gone = max(gone, count - queue.counts()[state])
    return gone


def purge_state(shared: CommonOptions, queue: str, state: str, *, yes: bool) -> None:
    """Deletes all tasks of one state after confirmation, and prints their number. Raises Refusal when there are
    none."""
    with connected(shared, starts=True) as client:
        check_queue(client, queue)
        asked = client.queue(queue)
        count = asked.counts()[state]
        if not count:
            raise Refusal(f"queue {queue} has no {state} tasks")
        confirm(f"Delete {counted(count, state + ' task')} of queue {queue}?", yes=yes)
        gone = purged(client, asked, state, count, "queue.purge")
    if shared.as_json:
        answer_json({"queue": queue, "state": state, "purged": gone})
    else:
        echo(f"deleted {counted(gone, state + ' task')} of queue {queue}")
