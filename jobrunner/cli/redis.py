"""`jobrunner redis`: the embedded server of a folder: status, stop."""

import click

from jobrunner.broker.connect import Endpoint
from jobrunner.broker.embedded import EmbeddedServer
from jobrunner.cli.answer import answer_json, facts
from jobrunner.cli.boundary import Refusal
from jobrunner.cli.group import Group
from jobrunner.cli.options import Shared, with_shared_options
from jobrunner.settings import client_settings

_EXAMPLES = """\b
Examples:
  jobrunner redis status
  jobrunner redis stop --url embedded:///srv/app/.jobrunner
"""


@click.group(cls=Group, epilog=_EXAMPLES)
def redis() -> None:
    """Shows or stops the embedded server of this folder."""


@redis.command(epilog="Example:  jobrunner redis status --json")
@with_shared_options
def status(shared: Shared) -> int:
    """Shows whether it runs, for how many processes, and where its files are; exit 1 when it does not run."""
    found = _server(shared).status()
    if shared.as_json:
        answer_json(found)
    else:
        click.echo(
            facts(
                [
                    ("running", f"yes, pid {found.pid}" if found.running else "no"),
                    ("folder", found.folder),
                    ("socket", found.socket),
                    ("log", found.log),
                    ("used by", "unknown" if found.users is None else f"{found.users} processes"),
                ]
            )
        )
    return 0 if found.running else 1


@redis.command(epilog="Example:  jobrunner redis stop")
@with_shared_options
def stop(shared: Shared) -> None:
    """Stops it whoever uses it; what it holds stays on disk, and its next user starts it again."""
    server = _server(shared)
    if not server.stop():
        raise Refusal(f"no embedded server runs in {server.status().folder}")
    if shared.as_json:
        answer_json({"stopped": True})
    else:
        click.echo("stopped")


def _server(shared: Shared) -> EmbeddedServer:
    endpoint = Endpoint(client_settings(shared.url, shared.prefix).url)
    if endpoint.embedded is None:
        raise click.UsageError(f"{endpoint} is no embedded server; name its folder: --url embedded:///folder")
    return endpoint.embedded
