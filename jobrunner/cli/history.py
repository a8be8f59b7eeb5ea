"""`jobrunner history`: list, replay, purge, archive and report on finished tasks."""

import click

from jobrunner.cli.group import CommandGroup
from jobrunner.cli.history_archive import archive
from jobrunner.cli.history_replay import replay
from jobrunner.cli.history_report import report
from jobrunner.cli.options import CommonOptions, connected, with_shared_options
from jobrunner.cli.queues import purge_state
from jobrunner.cli.suggestions import queue_names
from jobrunner.cli.tasks import show_list
from jobrunner.client.item import stored_record
from jobrunner.client.queue import Queue

_EXAMPLES = """\b
Examples:
  jobrunner history list mail --limit 20
  jobrunner history replay mail 01a1fe85769b0000c6650a2fcc89-mail
  jobrunner history archive --to archive --trim
  jobrunner history report --from archive --html report.html
"""


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def history() -> None:
    """Lists, replays, archives and deletes finished tasks of queues that keep history, and reports on them."""


for _command in (archive, replay, report):
    history.add_command(_command)


@history.command("list", epilog="Example:  jobrunner history list mail --limit 20 --json")
@click.argument("queue", shell_complete=queue_names)
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Most tasks to print.")
@with_shared_options
def list_(shared: CommonOptions, queue: str, limit: int) -> None:
    """Lists the finished tasks that QUEUE keeps, the latest first."""
    with connected(shared) as client:
        asked = client.queue(queue)
        found = [stored_record(one) for one in asked.history(limit)]
        nothing = "" if found else _nothing(asked)
        hides = client.redaction()
    show_list(shared, hides, found, nothing)


@history.command(epilog="Example:  jobrunner history purge mail --yes")
@click.argument("queue", shell_complete=queue_names)
@click.option("--yes", is_flag=True, help="Skips the confirmation.")
@with_shared_options
def purge(shared: CommonOptions, queue: str, yes: bool) -> None:
    """Deletes the finished tasks that QUEUE keeps."""
    purge_state(shared, queue, "done", yes=yes)


def _nothing(queue: Queue) -> str:
    settings = queue.settings()
    if settings.history is None and settings.history_max is None:
        return f"queue {queue.name} keeps no history; a program sets that with configure(history=…)"
    return f"queue {queue.name} has no finished tasks"
