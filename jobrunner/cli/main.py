"""`jobrunner`: the group of all commands. A command's module is imported when it is run, so that help is fast."""

import sys
from collections.abc import Sequence

import click

from jobrunner.cli.error_boundary import guarded
from jobrunner.cli.group import LazyGroup

COMMANDS = {
    "work": ("jobrunner.cli.work:work", "Runs the tasks of queues until stopped."),
    "enqueue": ("jobrunner.cli.enqueue:enqueue", "Enqueues one task of a job."),
    "status": ("jobrunner.cli.status:status", "Shows the server, queues, workers, leader and periodic jobs."),
    "top": ("jobrunner.cli.top.command:top", "Shows queues, rates, workers and failures live in the terminal."),
    "queues": ("jobrunner.cli.queues:queues", "Lists, pauses, limits and purges queues, and shows their settings."),
    "tasks": ("jobrunner.cli.tasks:tasks", "Lists, shows, cancels and enqueues tasks."),
    "dead": ("jobrunner.cli.dead:dead", "Lists, requeues and purges tasks that were given up."),
    "pipeline": ("jobrunner.cli.pipeline:pipeline", "Lists, shows, draws, feeds and runs pipelines."),
    "history": ("jobrunner.cli.history:history", "Lists, replays, archives, purges finished tasks; reports on them."),
    "periodic": ("jobrunner.cli.periodic:periodic", "Lists periodic jobs, runs one now, switches one off and on."),
    "redact": ("jobrunner.cli.redact:redact", "Lists, adds and removes the names of parameters that are not shown."),
    "events": ("jobrunner.cli.events:events", "Shows what happened, and follows what happens."),
    "bench": ("jobrunner.cli.bench:bench", "Measures how fast this set-up is."),
    "soak": ("jobrunner.cli.soak:soak", "Works for hours under random faults, and says whether anything was lost."),
    "doctor": ("jobrunner.cli.doctor:doctor", "Checks this machine, the server and its queues."),
    "server": ("jobrunner.cli.server:server", "Shows or stops the embedded server of this folder."),
    "dashboard": ("jobrunner.cli.dashboard:dashboard", "Serves the dashboard: queues, tasks, workers in a browser."),
    "completion": ("jobrunner.cli.completion:completion", "Prints the script that teaches a shell to complete."),
    "demo": ("jobrunner.cli.demo:demo", "Runs real work, kills a worker, and checks that nothing was lost."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="jobrunner", message="%(prog)s %(version)s")
def jobrunner() -> None:
    """Background jobs for Python on Redis: leases, retries, schedules; nothing lost.

    Without --url, JOBRUNNER_URL, REDIS_URL or a url in [tool.jobrunner] of pyproject.toml, a private server in
    ./.jobrunner is used and started when needed.
    """


def main(words: Sequence[str] | None = None) -> None:
    """Runs one command and ends the process: 0 done, 1 no, 2 misuse, 130 interrupted."""
    given = sys.argv[1:] if words is None else list(words)
    sys.exit(guarded(jobrunner, given))
