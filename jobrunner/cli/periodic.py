"""`jobrunner periodic`: list, run, enable, disable."""

import click

from jobrunner.broker.keys import split_queue
from jobrunner.cli.answer import answer_json, talk
from jobrunner.cli.boundary import Refusal
from jobrunner.cli.group import Group
from jobrunner.cli.options import Shared, connected, modules_or_configured, with_shared_options
from jobrunner.cli.status import periodic_table
from jobrunner.cli.suggestions import periodic_names
from jobrunner.client.client import Client
from jobrunner.client.periodic_steps import published
from jobrunner.client.steps import run_steps
from jobrunner.coordinator.definitions import define
from jobrunner.errors import UnknownJob
from jobrunner.jobs.registry import find, load_modules
from jobrunner.periodic import PeriodicDefinition
from jobrunner.task import new_id

_EXAMPLES = """\b
Examples:
  jobrunner periodic list
  jobrunner periodic run Nightly
  jobrunner periodic disable Nightly
"""


@click.group(cls=Group, epilog=_EXAMPLES)
def periodic() -> None:
    """Lists periodic jobs, runs one now, switches one off and on."""


@periodic.command("list", epilog="Example:  jobrunner periodic list --json")
@with_shared_options
def list_(shared: Shared) -> None:
    """Lists the periodic jobs that workers published, with their last and next ticks, and which are disabled."""
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
        definition = _definition(client, name, modules)
        sent = client.enqueue(definition.task(new_id(split_queue(definition.queue)[0])))
    if shared.as_json:
        answer_json({"id": sent.id, "queue": definition.queue, "type": definition.name})
    else:
        click.echo(sent.id)


@periodic.command(epilog="Example:  jobrunner periodic enable Nightly")
@click.argument("name", shell_complete=periodic_names)
@with_shared_options
def enable(shared: Shared, name: str) -> None:
    """Has the ticks of the periodic job NAME fire again; those that passed are not made up for."""
    _switch(shared, name, enabled=True)


@periodic.command(epilog="Example:  jobrunner periodic disable Nightly")
@click.argument("name", shell_complete=periodic_names)
@with_shared_options
def disable(shared: Shared, name: str) -> None:
    """Has the ticks of the periodic job NAME pass by until it is enabled, whatever is deployed meanwhile."""
    _switch(shared, name, enabled=False)


def _switch(shared: Shared, name: str, *, enabled: bool) -> None:
    with connected(shared) as client:
        try:
            client.enable_periodic(name) if enabled else client.disable_periodic(name)
        except UnknownJob as error:
            raise Refusal(str(error)) from error
    if shared.as_json:
        answer_json({"name": name, "enabled": enabled})
    else:
        click.echo(f"periodic job {name} is {'enabled' if enabled else 'disabled'}")


def _definition(client: Client, name: str, modules: tuple[str, ...]) -> PeriodicDefinition:
    try:
        return run_steps(client.broker, published(client.keys, name))
    except UnknownJob as error:
        load_modules(modules_or_configured(modules))
        job = find(name)
        if job is None or job.periodic is None:
            raise Refusal(f"{error}; no module named declares it either") from error
        return define(job)
