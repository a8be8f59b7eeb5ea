"""`jobrunner workers`: list, quiet, resume, stop. A worker reads a command with its next heartbeat."""

import click

from jobrunner.cli.events import note
from jobrunner.cli.main import CommandGroup
from jobrunner.cli.options import CommonOptions, connected, with_shared_options, with_wide
from jobrunner.cli.output import Refusal, answer_json, echo, talk
from jobrunner.cli.status import worker_table
from jobrunner.cli.suggestions import worker_ids
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.records import WorkerCommand, command_worker
from jobrunner.formatting import listed

_EXAMPLES = """\b
Examples:
  jobrunner workers list
  jobrunner workers quiet web1.4711.9f02ab
  jobrunner workers stop 9f02ab
"""
_NAMED = 5


@click.group(cls=CommandGroup, epilog=_EXAMPLES)
def workers() -> None:
    """List workers, and quiet, resume or stop one."""


@workers.command("list", epilog="Example:  jobrunner workers list --json")
@with_wide
@with_shared_options
def list_(shared: CommonOptions, wide: bool) -> None:
    """List workers that sent a heartbeat lately."""
    with connected(shared) as client:
        found = client.workers()
    if shared.as_json:
        answer_json(found)
    elif found:
        echo(worker_table(found, wide=wide))
    else:
        talk("no worker runs; start one with jobrunner work MODULE")


@workers.command(epilog="Example:  jobrunner workers quiet 9f02ab")
@click.argument("worker", shell_complete=worker_ids)
@with_shared_options
def quiet(shared: CommonOptions, worker: str) -> None:
    """Let WORKER take no new tasks; what it runs goes on.

    WORKER is the id of a worker, or a part of it that only one worker has."""
    _command(shared, worker, "quiet", done="takes no new tasks from its next heartbeat on")


@workers.command(epilog="Example:  jobrunner workers resume 9f02ab")
@click.argument("worker", shell_complete=worker_ids)
@with_shared_options
def resume(shared: CommonOptions, worker: str) -> None:
    """Let a quiet WORKER take tasks again."""
    _command(shared, worker, "resume", done="takes tasks again from its next heartbeat on")


@workers.command(epilog="Example:  jobrunner workers stop 9f02ab")
@click.argument("worker", shell_complete=worker_ids)
@with_shared_options
def stop(shared: CommonOptions, worker: str) -> None:
    """Stop WORKER: what it runs may finish.

    Tasks that run longer than its grace, and those that it has fetched, are handed back."""
    _command(shared, worker, "stop", done="stops at its next heartbeat")


def _command(shared: CommonOptions, named: str, command: WorkerCommand, *, done: str) -> None:
    with connected(shared) as client:
        worker = _id_of(client, named)
        if not run_operation(broker_of(client), command_worker(keys_of(client), worker, command)):
            raise Refusal(f"there is no worker {worker!r} any more")
        note(client, f"worker.{command}", worker, done)
    if shared.as_json:
        answer_json({"worker": worker, "command": command})
    else:
        echo(f"worker {worker} {done}")


def _id_of(client: Client, named: str) -> str:
    """The id of the worker whose id is `named` or, unlike any other's, contains it. Raises Refusal."""
    ids = [worker.id for worker in client.workers()]
    found = [one for one in ids if one == named] or [one for one in ids if named and named in one]
    if len(found) == 1:
        return found[0]
    if found:
        raise Refusal(f"{named!r} is a part of {len(found)} ids of workers; name one: {listed(found, _NAMED)}")
    others = f"workers are {listed(ids, _NAMED)}" if ids else "no worker runs"
    raise Refusal(f"there is no worker {named!r}; {others}")
