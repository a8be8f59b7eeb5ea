"""`jobrunner history`: the finished tasks of queues that keep them: list, replay, purge."""

import click

from jobrunner.broker.keys import check_id
from jobrunner.cli.answer import answer_json
from jobrunner.cli.boundary import Refusal
from jobrunner.cli.group import Group
from jobrunner.cli.history_report import report
from jobrunner.cli.options import Shared, connected, with_shared_options
from jobrunner.cli.queues import purge_state
from jobrunner.cli.tasks import show_list
from jobrunner.client.queue import Queue
from jobrunner.errors import TaskGone

_EXAMPLES = """\b
Examples:
  jobrunner history list mail --limit 20
  jobrunner history replay mail 01a1fe85769b0000c6650a2fcc89-mail
  jobrunner history report --from archive --html report.html
"""


@click.group(cls=Group, epilog=_EXAMPLES)
def history() -> None:
    """Lists, replays and purges finished tasks of queues that keep them, and reports on their archive."""


history.add_command(report)


@history.command("list", epilog="Example:  jobrunner history list mail --limit 20 --json")
@click.argument("queue")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most so many.")
@with_shared_options
def list_(shared: Shared, queue: str, limit: int) -> None:
    """Lists the finished tasks that QUEUE keeps, the last one first."""
    with connected(shared) as client:
        asked = client.queue(queue)
        found = asked.history(limit)
        nothing = "" if found else _nothing(asked)
    show_list(shared, found, nothing)


@history.command(epilog="Example:  jobrunner history replay mail 01a1fe85769b0000c6650a2fcc89-mail")
@click.argument("queue")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@with_shared_options
def replay(shared: Shared, queue: str, ids: tuple[str, ...]) -> None:
    """Adds finished tasks of QUEUE again, each as a new task, and prints the ids of these.

    Those that the history does not have (any more) are named at the end, exit 1; the others are replayed all the same.
    """
    asked = [check_id(one) for one in dict.fromkeys(ids)]
    replayed: dict[str, str] = {}
    try:
        with connected(shared) as client:
            gone = _replay_each(client.queue(queue), asked, replayed)
    finally:
        _answer(shared, queue, replayed)  # also when the server went away in the middle
    if gone:
        raise Refusal(f"not in the history of queue {queue}: {', '.join(gone)}; jobrunner history list shows what is")


@history.command(epilog="Example:  jobrunner history purge mail --yes")
@click.argument("queue")
@click.option("--yes", is_flag=True, help="Does not ask.")
@with_shared_options
def purge(shared: Shared, queue: str, yes: bool) -> None:
    """Deletes the finished tasks that QUEUE keeps, for good."""
    purge_state(shared, queue, "done", yes=yes)


def _replay_each(queue: Queue, ids: list[str], replayed: dict[str, str]) -> list[str]:
    gone = []
    for one in ids:
        try:
            replayed[one] = queue.replay(one)
        except TaskGone:
            gone.append(one)
    return gone


def _answer(shared: Shared, queue: str, replayed: dict[str, str]) -> None:
    if shared.as_json and replayed:
        answer_json({"queue": queue, "replayed": replayed})
    else:
        for new in replayed.values():
            click.echo(new)


def _nothing(queue: Queue) -> str:
    settings = queue.settings
    if settings.history is None and settings.history_max is None:
        return f"queue {queue.name} keeps no history; a program sets that with configure(history=…)"
    return f"queue {queue.name} has no finished tasks"
