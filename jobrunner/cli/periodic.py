"""`jobrunner periodic`: list, run, enable, disable."""

import click

from jobrunner.broker.keys import split_queue
from jobrunner.cli.events import note
from jobrunner.cli.main import CommandGroup
from jobrunner.cli.options import CommonOptions, connected, modules_or_configured, with_shared_options, with_wide
from jobrunner.cli.output import Refusal, answer_json, echo, talk
from jobrunner.cli.status import periodic_table
from jobrunner.cli.suggestions import periodic_names
from jobrunner.client.client import Client, broker_of, encryption_of, keys_of
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.records import published
from jobrunner.errors import UnknownJob
from jobrunner.jobs.build import define
from jobrunner.jobs.registry import find, load_modules
from jobrunner.periodic import PeriodicDefinition
from jobrunner.task import Task, new_id

_EXAMPLES = """\b
Examples:
  jobrunner periodic list
  jobrunner periodic run Nightly
  jobrunner periodic disable Nightly
"""


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def periodic() -> None:
    """List, run, enable and disable periodic jobs."""


@periodic.command("list", epilog="Example:  jobrunner periodic list --json")
@with_wide
@with_shared_options
def list_(shared: CommonOptions, wide: bool) -> None:
    """List periodic jobs with their last and next ticks."""
    with connected(shared) as client:
        found = client.periodics()
    if shared.as_json:
        answer_json(found)
    elif found:
        echo(periodic_table(found, wide=wide))
    else:
        talk("no worker published a periodic job yet")


@periodic.command(epilog="Example:  jobrunner periodic run Nightly")
@click.argument("name", shell_complete=periodic_names)
@click.option("-m", "--module", "modules", multiple=True, metavar="MODULE",
              help="Module of a job without a published schedule; default: [tool.jobrunner]. Repeatable.")  # fmt: skip
@with_shared_options
def run(shared: CommonOptions, name: str, modules: tuple[str, ...]) -> None:
    """Enqueue one run of the periodic job NAME now.

    Prints the id of the task. The schedule does not change."""
    load_modules(modules_or_configured(modules))  # first, as a module may configure the client
    with connected(shared, starts=True) as client:
        task = _task(client, name)
        sent = client.enqueue(task)
        note(client, "periodic.run", name, f"enqueued {sent.id}")
    if shared.as_json:
        answer_json({"id": sent.id, "queue": task.queue, "type": task.type})
    else:
        echo(sent.id)


@periodic.command(epilog="Example:  jobrunner periodic enable Nightly")
@click.argument("name", shell_complete=periodic_names)
@with_shared_options
def enable(shared: CommonOptions, name: str) -> None:
    """Enable the periodic job NAME.

    Ticks that passed while it was disabled are not caught up."""
    _switch(shared, name, enabled=True)


@periodic.command(epilog="Example:  jobrunner periodic disable Nightly")
@click.argument("name", shell_complete=periodic_names)
@with_shared_options
def disable(shared: CommonOptions, name: str) -> None:
    """Disable the periodic job NAME.

    Its ticks enqueue nothing until it is enabled, also after a deployment."""
    _switch(shared, name, enabled=False)


def _switch(shared: CommonOptions, name: str, *, enabled: bool) -> None:
    with connected(shared, starts=True) as client:
        try:
            client.enable_periodic(name) if enabled else client.disable_periodic(name)
        except UnknownJob as error:
            raise Refusal(str(error)) from error
        note(client, "periodic.enable" if enabled else "periodic.disable", name, "enabled" if enabled else "disabled")
    if shared.as_json:
        answer_json({"name": name, "enabled": enabled})
    else:
        echo(f"periodic job {name} is {'enabled' if enabled else 'disabled'}")


def _task(client: Client, name: str) -> Task:
    try:
        definition = run_operation(broker_of(client), published(keys_of(client), name))
        return definition.task(_id_for(definition), encryption_of(client))
    except UnknownJob as error:
        job = find(name)
        if job is None or job.periodic is None:
            raise Refusal(f"{error}; no module named declares it either") from error
        definition = define(job)
        return definition.task(_id_for(definition), encryption=None)  # defined here, so no signature to check


def _id_for(definition: PeriodicDefinition) -> str:
    return new_id(split_queue(definition.queue)[0])
