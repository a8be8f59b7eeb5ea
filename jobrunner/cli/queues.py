"""`jobrunner queues`: list, pause, resume, limit, purge."""

import click

from jobrunner.cli.answer import answer_json, counted, talk
from jobrunner.cli.boundary import Refusal
from jobrunner.cli.group import Group
from jobrunner.cli.options import Shared, confirm, connected, with_shared_options
from jobrunner.cli.status import queue_table
from jobrunner.errors import InvalidOption
from jobrunner.inspector.overview import queue_views
from jobrunner.settings import QueueSettings

_EXAMPLES = """\b
Examples:
  jobrunner queues list
  jobrunner queues pause mail
  jobrunner queues purge mail --state scheduled
"""


@click.group(cls=Group, epilog=_EXAMPLES)
def queues() -> None:
    """Lists, pauses, resumes, limits and purges queues."""


@queues.command("list", epilog="Example:  jobrunner queues list --json")
@with_shared_options
def list_(shared: Shared) -> None:
    """Shows how many tasks of each queue are in each state."""
    with connected(shared) as client:
        found = queue_views(client, client.workers())
    if shared.as_json:
        answer_json(found)
    elif found:
        click.echo(queue_table(found))
    else:
        talk("no queue was ever used")


@queues.command(epilog="Example:  jobrunner queues pause mail")
@click.argument("queue")
@with_shared_options
def pause(shared: Shared, queue: str) -> None:
    """Hands out nothing of QUEUE until it is resumed; enqueueing goes on."""
    with connected(shared) as client:
        client.queue(queue).pause()
    _tell(shared, queue, "paused")


@queues.command(epilog="Example:  jobrunner queues resume mail")
@click.argument("queue")
@with_shared_options
def resume(shared: Shared, queue: str) -> None:
    """Ends the pause of QUEUE."""
    with connected(shared) as client:
        client.queue(queue).resume()
    _tell(shared, queue, "open")


@queues.command(epilog="Example:  jobrunner queues limit mail --max-inflight 10")
@click.argument("queue")
@click.option("--max-inflight", type=click.IntRange(min=0), required=True, help="Pending at a time; 0: no limit.")
@with_shared_options
def limit(shared: Shared, queue: str, max_inflight: int) -> None:
    """Limits how many tasks of QUEUE are pending at a time."""
    if "max_inflight" not in QueueSettings.__slots__:
        raise InvalidOption("this version cannot limit a queue; limit its workers with --concurrency instead")
    with connected(shared) as client:
        client.queue(queue).configure(max_inflight=max_inflight)
    _tell(shared, queue, f"limited to {max_inflight}" if max_inflight else "unlimited")


@queues.command(epilog="Example:  jobrunner queues purge mail --state dead --yes")
@click.argument("queue")
@click.option("--state", type=click.Choice(["waiting", "scheduled", "dead"]), default="waiting", show_default=True,
              help="Which of its tasks.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Does not ask.")
@with_shared_options
def purge(shared: Shared, queue: str, state: str, yes: bool) -> None:
    """Deletes all tasks of QUEUE that are in one state, for good."""
    with connected(shared) as client:
        asked = client.queue(queue)
        count = asked.counts()[state]
        if not count:
            raise Refusal(f"queue {queue} has no {state} tasks")
        confirm(f"Delete {counted(count, state + ' task')} of queue {queue}?", yes=yes)
        gone = asked.purge(state)
    if shared.as_json:
        answer_json({"queue": queue, "state": state, "purged": gone})
    else:
        click.echo(f"deleted {counted(gone, state + ' task')} of queue {queue}")


def _tell(shared: Shared, queue: str, state: str) -> None:
    if shared.as_json:
        answer_json({"queue": queue, "state": state})
    else:
        click.echo(f"queue {queue} is {state}")
