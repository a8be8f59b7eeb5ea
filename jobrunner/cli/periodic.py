"""`jobrunner periodic`: list, run, enable, disable, add, remove."""

from datetime import datetime

import click

from jobrunner.broker.keys import split_queue
from jobrunner.cli.enqueue import instant, named_job, read_parameters
from jobrunner.cli.events import note
from jobrunner.cli.main import CommandGroup
from jobrunner.cli.options import (
    CommonOptions,
    connected,
    modules_or_configured,
    seconds_of,
    with_shared_options,
    with_wide,
)
from jobrunner.cli.output import Refusal, answer_json, echo, talk, when
from jobrunner.cli.status import periodic_table
from jobrunner.cli.suggestions import (
    added_names,
    check_queue,
    job_names,
    periodic_names,
    queue_names,
    with_create,
)
from jobrunner.client.client import Client, broker_of, encryption_of, keys_of
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.records import published
from jobrunner.errors import UnknownJob
from jobrunner.jobs.build import BoundCall, define
from jobrunner.jobs.declared_queues import declared_names
from jobrunner.jobs.enqueue_options import EnqueueOptions
from jobrunner.jobs.registry import find, load_modules
from jobrunner.periodic import PeriodicDefinition
from jobrunner.task import Task, new_id

_EXAMPLES = """\b
Examples:
  jobrunner periodic list
  jobrunner periodic run Nightly
  jobrunner periodic disable Nightly
  jobrunner periodic add acme-report Report customer=acme --cron '0 7 * * 1-5' --tz Europe/Madrid
  jobrunner periodic remove acme-report
"""


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def periodic() -> None:
    """List, run, enable, disable, add and remove periodic jobs."""


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
        talk("no worker published a periodic job yet, and none was added")


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


@periodic.command(
    epilog="Example:  jobrunner periodic add acme-report myapp.jobs.Report customer=acme --every 6h --queue reports"
)
@click.argument("name")
@click.argument("job", shell_complete=job_names)
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--every", type=seconds_of, metavar="S", help="Interval: 90 (seconds), 5m, 2h, 1d.")
@click.option("--cron", metavar="EXPRESSION", help="Times: minute, hour, day, month, weekday; a sixth is the second.")
@click.option("--tz", metavar="ZONE", help="Time zone of --cron, as Europe/Madrid; default: UTC.")
@click.option("--catch-up", default="last", metavar="last|none|N",
              help="Missed ticks that are made up for: the last, none, or up to N; default: last.")  # fmt: skip
@click.option("--overlap", default="skip", metavar="skip|allow",
              help="Whether a tick is skipped while the task before runs; default: skip.")  # fmt: skip
@click.option("--jitter", type=seconds_of, default="0", metavar="S", help="Random delay of each run, up to this.")
@click.option("--start", type=instant, metavar="ISO",
              help="No tick fires before, and those of --every count from it: 2030-01-01T03:00:00Z.")  # fmt: skip
@click.option("--end", type=instant, metavar="ISO", help="No tick fires after this instant.")
@click.option("--limit", type=int, metavar="N", help="No tick fires after N tasks; default: no limit.")
@click.option("-m", "--module", "modules", multiple=True, metavar="MODULE",
              help="Module that declares the job; default: modules of [tool.jobrunner]. Repeatable.")  # fmt: skip
@click.option("--priority", type=int, metavar="0..2", help="Higher runs first; default: the priority of the job.")
@click.option("--queue", metavar="NAME", shell_complete=queue_names, help="Queue; default: the queue of the job.")
@click.option("--expires-in", type=seconds_of, metavar="S",
              help="A task that has not started by then goes to dead; default: as the job declares.")  # fmt: skip
@click.option("--max-attempts", type=int, metavar="N",
              help="Attempts before the task is dead; 1: no retry, 0: no limit; default: as the job.")  # fmt: skip
@click.option("--timeout", type=seconds_of, metavar="S", help="Time limit of one attempt; default: that of the job.")
@with_create
@with_shared_options
def add(
    shared: CommonOptions,
    name: str,
    job: str,
    words: tuple[str, ...],
    every: float | None,
    cron: str | None,
    tz: str | None,
    catch_up: str,
    overlap: str,
    jitter: float,
    start: datetime | None,
    end: datetime | None,
    limit: int | None,
    modules: tuple[str, ...],
    priority: int | None,
    queue: str | None,
    expires_in: float | None,
    max_attempts: int | None,
    timeout: float | None,
    create: bool,
) -> None:
    """Add the periodic job NAME, which runs JOB, or replace it.

    It stays until it is removed, whatever is deployed. JOB and its parameters are named as in `jobrunner enqueue`."""
    definition = named_job(job, modules_or_configured(modules))
    options = EnqueueOptions(
        priority=priority, queue=queue, expires_in=expires_in, max_attempts=max_attempts, timeout=timeout
    )
    call = BoundCall[object](definition, read_parameters(definition, words), options)
    with connected(shared, starts=True) as client:
        check_queue(client, queue, create=create, declared=declared_names())
        client.add_periodic(
            name, call, every=every, cron=cron, tz=tz, overlap=overlap, jitter=jitter, start=start, end=end,
            limit=limit,
            catch_up=int(catch_up) if catch_up.isdecimal() else catch_up,  # type: ignore[arg-type]
        )  # fmt: skip
        (record,) = (one for one in client.periodics() if one.name == name)
        note(client, "periodic.add", name, f"{record.job} {record.schedule}")
    if shared.as_json:
        answer_json(record)
    else:
        following = "but has ended" if record.next is None else f"next {when(record.next)}"
        echo(f"periodic job {name} runs {record.job} {record.schedule}, {following}")


@periodic.command(epilog="Example:  jobrunner periodic remove acme-report")
@click.argument("name", shell_complete=added_names)
@with_shared_options
def remove(shared: CommonOptions, name: str) -> None:
    """Remove the periodic job NAME that was added at run time.

    Tasks that it enqueued stay. Jobs that are declared in code can be disabled."""
    with connected(shared, starts=True) as client:
        try:
            client.remove_periodic(name)
        except UnknownJob as error:
            raise Refusal(str(error)) from error
        note(client, "periodic.remove", name, "removed")
    if shared.as_json:
        answer_json({"name": name, "removed": True})
    else:
        echo(f"periodic job {name} is removed")


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
