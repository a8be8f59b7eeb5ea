"""`jobrunner server`: the embedded server of a folder: status, stop."""

import click

from jobrunner.broker.connect import Endpoint
from jobrunner.broker.embedded.server import EmbeddedServer
from jobrunner.cli.main import CommandGroup
from jobrunner.cli.options import CommonOptions, with_shared_options
from jobrunner.cli.output import Refusal, answer_json, echo, facts
from jobrunner.settings import client_settings

_EXAMPLES = """\b
Examples:
  jobrunner server status
  jobrunner server stop --url embedded:///srv/app/.jobrunner
"""


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def server() -> None:
    """Show or stop the private server of this project."""


@server.command(epilog="Example:  jobrunner server status --json")
@with_shared_options
def status(shared: CommonOptions) -> int:
    """Show whether the private server runs, and where its files are.

    Exits with 1 if it is stopped."""
    found = _server(shared).status()
    if shared.as_json:
        answer_json(found)
    else:
        echo(
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


@server.command(epilog="Example:  jobrunner server stop")
@with_shared_options
def stop(shared: CommonOptions) -> None:
    """Stop the private server, also when processes use it.

    Its data stays on disk; the next worker or enqueue starts it."""
    server = _server(shared)
    if not server.stop():
        raise Refusal(f"no embedded server runs in {server.status().folder}")
    if shared.as_json:
        answer_json({"stopped": True})
    else:
        echo("stopped")


def _server(shared: CommonOptions) -> EmbeddedServer:
    endpoint = Endpoint(client_settings(shared.url, shared.prefix).url)
    if endpoint.embedded is None:
        raise click.UsageError(f"{endpoint} is no embedded server; name its folder: --url embedded:///folder")
    return endpoint.embedded
