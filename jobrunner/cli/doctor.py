"""`jobrunner doctor`: what is wrong with a set-up, and what to do about it."""

import click

from jobrunner.cli.answer import answer_json
from jobrunner.cli.boundary import DONE, NO
from jobrunner.cli.options import Shared, connected, modules_or_configured, with_shared_options
from jobrunner.inspector.check import Check
from jobrunner.inspector.server_checks import check_server
from jobrunner.inspector.setup_checks import check_setup

_EXAMPLES = """\b
Examples:
  jobrunner doctor
  jobrunner doctor myapp.jobs --url redis://localhost --json
"""
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command(epilog=_EXAMPLES)
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@with_shared_options
def doctor(shared: Shared, modules: tuple[str, ...]) -> int:
    """Checks this machine, the server and its queues. Exit 1 when something has to be mended."""
    with connected(shared) as client:
        found = [*check_setup(client, shared.url, modules_or_configured(modules)), *check_server(client)]
    if shared.as_json:
        answer_json(found)
    else:
        for check in found:
            click.echo(_line(check))
    return NO if any(check.verdict == "fail" for check in found) else DONE


def _line(check: Check) -> str:
    verdict = click.style(f"{check.verdict:<4}", fg=_COLOURS[check.verdict])
    return f"{verdict}  {check.what:<10}  {check.found}{f'; {check.advice}' if check.advice else ''}"
