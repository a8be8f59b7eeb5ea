"""`jobrunner payloads`: the objects of the payload store."""

from contextlib import nullcontext

import click

from jobrunner.cli.events import noted
from jobrunner.cli.main import CommandGroup
from jobrunner.cli.options import CommonOptions, connected, with_shared_options
from jobrunner.cli.output import answer_json, echo
from jobrunner.client.client import broker_of, encryption_of, keys_of
from jobrunner.client.payload_sweep import GRACE_S, NOTHING_SWEPT, store_of, sweeping

_EXAMPLES = """\b
Examples:
  jobrunner payloads sweep --dry-run
  jobrunner payloads sweep --older-than 3600
"""


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def payloads() -> None:
    """Delete unused objects of the payload store."""


@payloads.command("sweep", epilog=_EXAMPLES)
@click.option("--older-than", type=click.FloatRange(60), default=GRACE_S, show_default=True, metavar="SECONDS",
              help="Younger objects stay: their task may be about to be enqueued.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Counts, and deletes nothing.")
@with_shared_options
def sweep_(shared: CommonOptions, older_than: float, dry_run: bool) -> None:
    """Delete objects of the payload store that no task refers to.

    Run it where the server, the prefix and payload_store are those of the producers: objects of tasks that this server
    does not have are deleted. Workers with a payload store sweep it once an hour by themselves."""
    with connected(shared) as client:
        store = store_of(encryption_of(client))
        found = NOTHING_SWEPT
        entry = noted(client, "payloads.sweep", store.shown_url, lambda: f"{found.unused - found.left} deleted")
        with nullcontext() if dry_run else entry:
            steps = sweeping(broker_of(client), keys_of(client), store, grace_s=older_than, deletes=not dry_run)
            for so_far in steps:
                found = so_far
    if shared.as_json:
        answer_json(found)
        return
    done = f"{found.unused} would be deleted" if dry_run else f"{found.unused - found.left} deleted"
    kept = f", {found.left} that the store does not delete (see the log)" if found.left else ""
    echo(
        f"{store.shown_url}: {found.objects} objects, {found.used} of tasks, {found.young} younger than "
        f"{older_than:g} s, {done}{kept}"
    )
