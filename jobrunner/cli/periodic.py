"""`jobrunner periodic`: list, run."""

import click

from jobrunner.broker.calls import coordination
from jobrunner.broker.keys import split_queue
from jobrunner.cli.answer import answer_json, talk
from jobrunner.cli.boundary import Refusal
from jobrunner.cli.group import Group
from jobrunner.cli.options import Shared, connected, modules_or_configured, with_shared_options
from jobrunner.cli.status import periodic_table
from jobrunner.cli.suggestions import periodic_names
from jobrunner.client.client import Client
from jobrunner.coordinator.definitions import define
from jobrunner.jobs.registry import find, load_modules
from jobrunner.periodic import PeriodicDefinition, read_definition
from jobrunner.task import new_id

_EXAMPLES = """\b
Examples:
  jobrunner periodic list
  jobrunner periodic run Nightly
"""


@click.group(cls=Group, epilog=_EXAMPLES)
def periodic() -> None:
    """Lists periodic jobs, or runs one now."""


@periodic.command("list", epilog="Example:  jobrunner periodic list --json")
@with_shared_options
def list_(shared: Shared) -> None:
    """Lists the periodic jobs that workers published, with their last and next ticks."""
    with connected(shared) as client:
        found = client.periodics()
    if shared.as_json:
        answer_json(found)
    elif found:
        click.echo(periodic_table(found))
    else:
        talk("no worker published a periodic job yet")


@periodic.command(epilog="Example:  jobrunner periodic run Nightly")
@click.argument("name", shell_complete=periodic_names)
@click.option("-m", "--module", "modules", multiple=True, metavar="MODULE",
              help="Declares a job that no worker published yet; else those of [tool.jobrunner].")  # fmt: skip
@with_shared_options
def run(shared: Shared, name: str, modules: tuple[str, ...]) -> None:
    """Enqueues one run of the periodic job NAME now, beside its schedule, and prints the id of the task."""
    with connected(shared) as client:
        definition = _published(client, name) or _declared(name, modules)
        if definition is None:
            raise Refusal(f"no periodic job {name!r}: no worker published it, and no module named declares it")
        sent = client.enqueue(definition.task(new_id(split_queue(definition.queue)[0])))
    if shared.as_json:
        answer_json({"id": sent.id, "queue": definition.queue, "type": definition.name})
    else:
        click.echo(sent.id)


def _published(client: Client, name: str) -> PeriodicDefinition | None:
    raw = client.broker.run(coordination.periodics(client.keys)).get(name)
    return None if raw is None else read_definition(raw)


def _declared(name: str, modules: tuple[str, ...]) -> PeriodicDefinition | None:
    load_modules(modules_or_configured(modules))
    job = find(name)
    return define(job) if job is not None and job.periodic is not None else None
