"""`jobrunner queues`: list, pause, resume, limit, settings, purge."""

from typing import Any

import click

from jobrunner.cli.answer import answer_json, counted, facts, table, talk
from jobrunner.cli.bar import rising
from jobrunner.cli.boundary import Refusal
from jobrunner.cli.group import Group
from jobrunner.cli.limits import LIFTED, at_most, by_name, configured, limits_in_force, rate, setting_text
from jobrunner.cli.options import Shared, confirm, connected, duration, duration_text, with_shared_options
from jobrunner.cli.status import queue_table
from jobrunner.cli.suggestions import queue_names
from jobrunner.inspector.overview import queue_views

_EXAMPLES = """\b
Examples:
  jobrunner queues list
  jobrunner queues pause mail --for 10m
  jobrunner queues limit mail --rate 1000/1m
  jobrunner queues purge mail --state scheduled
"""


@click.group(cls=Group, epilog=_EXAMPLES)
def queues() -> None:
    """Lists, pauses, limits and purges queues, and shows their settings."""


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


@queues.command(epilog="Example:  jobrunner queues pause mail --for 10m")
@click.argument("queue", shell_complete=queue_names)
@click.option("--for", "for_s", type=duration, metavar="S", help="Ends by itself after so long: 90, 5m, 2h, 1d.")
@with_shared_options
def pause(shared: Shared, queue: str, for_s: float | None) -> None:
    """Hands out nothing of QUEUE until it is resumed; enqueueing goes on."""
    if for_s == 0:
        raise click.BadParameter("a pause lasts more than 0 s; jobrunner queues resume ends one", param_hint="--for")
    with connected(shared) as client:
        client.queue(queue).pause(for_s)
    if shared.as_json:
        answer_json({"queue": queue, "state": "paused", "for_s": for_s})
    else:
        click.echo(f"queue {queue} is paused{f' for {duration_text(for_s)}' if for_s else ''}")


@queues.command(epilog="Example:  jobrunner queues resume mail")
@click.argument("queue", shell_complete=queue_names)
@with_shared_options
def resume(shared: Shared, queue: str) -> None:
    """Ends the pause of QUEUE."""
    with connected(shared) as client:
        client.queue(queue).resume()
    if shared.as_json:
        answer_json({"queue": queue, "state": "open"})
    else:
        click.echo(f"queue {queue} is open")


@queues.command(epilog="Example:  jobrunner queues limit mail --max-inflight 10 --rate 1000/1m")
@click.argument("queue", shell_complete=queue_names)
@click.option("--max-inflight", type=at_most, metavar="N", help="Pending at a time, on all workers together.")
@click.option("--rate", type=rate, metavar="N/TIME", help="Handed out in that time: 1000/1s, 2000/1m, 15/h.")
@click.option("--max-size", type=at_most, metavar="N", help="Waiting and scheduled; more are refused.")
@click.option("--max-inflight-per-key", type=at_most, metavar="N", help="Pending at a time, of tasks with one key.")
@click.option("--rate-per-key", type=rate, metavar="N/TIME", help="Handed out in that time, of tasks with one key.")
@click.option("--fair/--no-fair", default=None, help="Whether keys take turns.")
@with_shared_options
def limit(shared: Shared, queue: str, **given: Any) -> None:
    """Limits QUEUE, and shows the limits then in force. `none` lifts one; those not named stay as they are."""
    changes = {name: None if value == LIFTED else value for name, value in given.items() if value is not None}
    if not changes:
        raise click.UsageError("which limit? give --max-inflight N, --rate N/TIME, --max-size N, or another of --help")
    with connected(shared) as client:
        asked = client.queue(queue)
        asked.configure(**changes)
        limits = limits_in_force(asked.settings)
    if shared.as_json:
        answer_json({"queue": queue, **limits})
    else:
        named = [
            (name.replace("_", "-"), setting_text(value if isinstance(value, bool) else value or None))
            for name, value in limits.items()
        ]
        click.echo(facts([("queue", queue), *named]))


@queues.command(epilog="Example:  jobrunner queues settings mail --json")
@click.argument("queue", shell_complete=queue_names)
@with_shared_options
def settings(shared: Shared, queue: str) -> None:
    """Shows every setting of QUEUE that is in force, and which of them are defaults."""
    with connected(shared) as client:
        found = client.queue(queue).settings
    changed = configured(found)
    if shared.as_json:
        answer_json({"queue": queue, "settings": by_name(found), "configured": changed})
    else:
        rows = [
            (name, setting_text(value), "configured" if name in changed else "default")
            for name, value in by_name(found).items()
        ]
        click.echo(table(("SETTING", "VALUE", "BY"), rows))


@queues.command(epilog="Example:  jobrunner queues purge mail --state dead --yes")
@click.argument("queue", shell_complete=queue_names)
@click.option("--state", type=click.Choice(["waiting", "scheduled", "dead", "done"]), default="waiting",
              show_default=True, help="Which of its tasks; done is its history.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Does not ask.")
@with_shared_options
def purge(shared: Shared, queue: str, state: str, yes: bool) -> None:
    """Deletes all tasks of QUEUE that are in one state, for good."""
    purge_state(shared, queue, state, yes=yes)


def purge_state(shared: Shared, queue: str, state: str, *, yes: bool) -> None:
    """Deletes all tasks of one state after asking, and answers how many. Raises Refusal when there are none."""
    with connected(shared) as client:
        asked = client.queue(queue)
        count = asked.counts()[state]
        if not count:
            raise Refusal(f"queue {queue} has no {state} tasks")
        confirm(f"Delete {counted(count, state + ' task')} of queue {queue}?", yes=yes)
        with rising(count, "deleting", "tasks") as tell:
            gone = asked.purge(state, progress=tell)
    if shared.as_json:
        answer_json({"queue": queue, "state": state, "purged": gone})
    else:
        click.echo(f"deleted {counted(gone, state + ' task')} of queue {queue}")
