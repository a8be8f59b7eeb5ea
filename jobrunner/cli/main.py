"""`jobrunner`: the group of all commands. A command's module is imported when it is run, so that help is fast."""

import sys
from collections.abc import Sequence

import click

from jobrunner.cli.group import LazyGroup
from jobrunner.cli.output import guarded

COMMANDS = {
    "work": ("jobrunner.cli.work:work", "Runs the tasks of queues until stopped."),
    "enqueue": ("jobrunner.cli.enqueue:enqueue", "Enqueues one task of a job."),
    "status": ("jobrunner.cli.status:status", "Shows the server, queues, workers, leader and periodic jobs."),
    "top": ("jobrunner.cli.top.command:top", "Shows queues, rates, workers and failures in the terminal, live."),
    "queues": ("jobrunner.cli.queues:queues", "Lists, pauses, limits and purges queues, and shows their settings."),
    "tasks": ("jobrunner.cli.tasks:tasks", "Lists, shows, cancels and enqueues tasks."),
    "dead": ("jobrunner.cli.dead:dead", "Lists, requeues and deletes dead tasks."),
    "pipeline": ("jobrunner.cli.pipeline:pipeline", "Lists, shows, draws and runs pipelines, and pushes items."),
    "history": ("jobrunner.cli.history:history", "Lists, replays, archives, deletes and reports on finished tasks."),
    "periodic": ("jobrunner.cli.periodic:periodic", "Lists, runs, enables and disables periodic jobs."),
    "redact": ("jobrunner.cli.redact:redact", "Lists, adds and removes names of hidden parameters."),
    "events": ("jobrunner.cli.events:events", "Prints the event log, and follows it."),
    "bench": ("jobrunner.cli.bench:bench", "Measures latency and throughput of this set-up."),
    "soak": ("jobrunner.cli.soak:soak", "Runs tasks under random faults, and checks that none is lost."),
    "doctor": ("jobrunner.cli.doctor:doctor", "Checks this machine, the server and the queues."),
    "server": ("jobrunner.cli.server:server", "Shows or stops the embedded server of this folder."),
    "dashboard": ("jobrunner.cli.dashboard:dashboard", "Serves the web dashboard."),
    "completion": ("jobrunner.cli.suggestions:completion", "Prints the completion script for a shell."),
    "demo": ("jobrunner.cli.demo:demo", "Runs a demo, kills a worker, and checks that no task is lost."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="jobrunner", message="%(prog)s %(version)s")
def jobrunner() -> None:
    """Background jobs for Python on Redis or Valkey: leases, retries, schedules, pipelines.

    The server's URL is --url, else JOBRUNNER_URL, else REDIS_URL, else url in [tool.jobrunner] of pyproject.toml.
    Without any, an embedded server in ./.jobrunner is started on demand.
    """


def main(words: Sequence[str] | None = None) -> None:
    """Runs one command and ends the process: 0 done, 1 no, 2 misuse, 130 interrupted."""
    given = sys.argv[1:] if words is None else list(words)
    sys.exit(guarded(jobrunner, given))
