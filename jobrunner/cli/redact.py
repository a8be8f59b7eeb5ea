"""`jobrunner redact`: the names of hidden parameters that the server keeps for pages and commands."""

import click

from jobrunner.broker.calls.server import redacted_names, remove_redacted_names
from jobrunner.cli.events import note
from jobrunner.cli.main import CommandGroup
from jobrunner.cli.options import CommonOptions, connected, with_shared_options
from jobrunner.cli.output import Refusal, answer_json, echo, table
from jobrunner.client.client import broker_of, keys_of
from jobrunner.redaction import DEFAULT

_EXAMPLES = """\b
Examples:
  jobrunner redact list
  jobrunner redact add iban "card.*"
  jobrunner redact remove iban
"""


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def redact() -> None:
    """List, add and remove names of hidden parameters."""


@redact.command("list", epilog="Example:  jobrunner redact list --json")
@with_shared_options
def list_(shared: CommonOptions) -> None:
    """List hidden names: built in, configured, kept by the server."""
    with connected(shared) as client:
        kept = broker_of(client).run(redacted_names(keys_of(client)))
        found = {"usual": list(DEFAULT), "here": sorted(client.settings.redact), "server": kept}
    if shared.as_json:
        answer_json(found)
        return
    echo(table(("name", "from"), [(name, source) for source, names in found.items() for name in names]))


@redact.command(epilog='Example:  jobrunner redact add iban "card.*"')
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@with_shared_options
def add(shared: CommonOptions, names: tuple[str, ...]) -> None:
    """Hide parameters whose name is, or matches, one of NAMES.

    The server keeps the list for all clients."""
    with connected(shared, starts=True) as client:
        client.redact(*names)
        note(client, "redact.add", " ".join(names), "hidden")
    _answer(shared, names, "hidden")


@redact.command(epilog="Example:  jobrunner redact remove iban")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@with_shared_options
def remove(shared: CommonOptions, names: tuple[str, ...]) -> None:
    """Remove names from the server's list.

    A worker whose configuration names one adds it again."""
    with connected(shared, starts=True) as client:
        kept = broker_of(client).run(redacted_names(keys_of(client)))
        if unknown := [name for name in names if name not in kept]:
            known = f"it keeps {', '.join(kept)}" if kept else "it keeps none"
            raise Refusal(f"the server does not keep {unknown[0]!r}: {known}")
        broker_of(client).run(remove_redacted_names(keys_of(client), names))
        note(client, "redact.remove", " ".join(names), "no longer hidden")
    _answer(shared, names, "no longer hidden by the server's list")


def _answer(shared: CommonOptions, names: tuple[str, ...], how: str) -> None:
    if shared.as_json:
        answer_json({"names": list(names), "state": how})
    else:
        echo(f"{', '.join(names)}: {how}")
