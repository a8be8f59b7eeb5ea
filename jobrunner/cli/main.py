"""`jobrunner`: the group of all commands, and groups with hints for a missing or unknown command.

A command's module is imported when it runs, and the summaries are declared next to the names, so help imports no
command (the pattern of click's documentation, "Lazily Loading Subcommands").
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from jobrunner.cli.error_boundary import guarded
from jobrunner.cli.options import SHARED
from jobrunner.cli.signals import exit_with, leave_at_signals
from jobrunner.formatting import DISTRIBUTION
from jobrunner.logs import IDENTITY
from jobrunner.option_names import present, retired

COMMANDS = {
    "work": ("jobrunner.cli.work:work", "Run the tasks of queues until stopped."),
    "enqueue": ("jobrunner.cli.enqueue:enqueue", "Enqueue one task of a job."),
    "status": ("jobrunner.cli.status:status", "Show the server, queues, workers, leader and periodic jobs."),
    "top": ("jobrunner.cli.top.command:top", "Show queues, rates, workers and failures in the terminal, live."),
    "jobs": ("jobrunner.cli.jobs:jobs", "List jobs with their queues, totals and rates."),
    "queues": ("jobrunner.cli.queues:queues", "List, pause, limit and purge queues, and show their settings."),
    "tasks": ("jobrunner.cli.tasks:tasks", "List, show, enqueue, cancel and requeue tasks."),
    "dead": ("jobrunner.cli.dead:dead", "List dead tasks and groups of errors, requeue and delete."),
    "workers": ("jobrunner.cli.workers:workers", "List workers, and quiet, resume or stop one."),
    "pipeline": ("jobrunner.cli.pipeline:pipeline", "List, show, draw and run pipelines, and push items."),
    "history": ("jobrunner.cli.history:history", "List, replay, archive, delete and report on finished tasks."),
    "spark": ("jobrunner.cli.spark:spark", "Maintain what sinks on Spark have written."),
    "periodic": ("jobrunner.cli.periodic:periodic", "List, run, disable, add and remove periodic jobs."),
    "payloads": ("jobrunner.cli.payloads:payloads", "Delete unused objects of the payload store."),
    "redact": ("jobrunner.cli.redact:redact", "List, add and remove names of hidden parameters."),
    "events": ("jobrunner.cli.events:events", "Print the event log, and follow it."),
    "bench": ("jobrunner.cli.bench:bench", "Measure latency and throughput of this set-up."),
    "soak": ("jobrunner.cli.soak:soak", "Run tasks under random faults, and check that none is lost."),
    "doctor": ("jobrunner.cli.doctor:doctor", "Check this machine, the server and the queues."),
    "server": ("jobrunner.cli.server:server", "Show or stop the private server of this project."),
    "dashboard": ("jobrunner.cli.dashboard:dashboard", "Serve the web dashboard."),
    "completion": ("jobrunner.cli.suggestions:completion", "Print the completion script for a shell."),
    "demo": ("jobrunner.cli.demo:demo", "Run a demo, kill a worker, and check that no task is lost."),
}


_MISUSE = 2
_ALIKE = 0.6
"""Below it the most similar command is another one, such as `enable` for `delete`."""
_CALLED_HERE = {
    name: here
    for names, here in {
        "redis": "server",  # in builds before 0.1.0
        "worker worker-pool multi run start consumer huey_consumer sidekiq": "work",
        "beat scheduler cron crontab schedule schedules": "periodic list",
        "purge empty flush": "queues purge",
        "suspend pause": "queues pause",
        "revoke cancel": "tasks cancel",
        "requeue retry": "dead requeue",
        "failed": "dead list",
        "inspect info stats": "status",
        "control": "workers list",
        "monitor": "top",
        "flower web ui": "dashboard",
        "call send push": "enqueue",
    }.items()
    for name in names.split()
}
"""Commands of RQ, Celery, Dramatiq, arq, Huey and Sidekiq, with their equivalents here."""
_VERBS_HERE = {
    word: here.split()
    for words, here in {
        "create new set put upsert edit update change": "add enqueue limit",
        "delete del rm drop": "remove delete purge cancel",
        "remove": "delete purge cancel",
        "revoke abort": "cancel",
        "pause suspend stop": "disable pause quiet cancel",
        "unpause start continue": "enable resume",
        "kill terminate shutdown": "stop cancel",
        "drain": "quiet purge",
        "empty clear clean flush obliterate": "purge",
        "retry rerun": "requeue replay",
        "trigger fire": "run run-now",
        "show get info inspect describe stats": "show settings list",
    }.items()
    for word in words.split()
}
"""Verbs that other systems, or the other groups, have for the commands of a group; the first one that it has counts."""
_OPTIONS_HERE = {
    "A": "modules are arguments: jobrunner work MODULE",
    "app": "modules are arguments: jobrunner work MODULE",
    "B": "the workers themselves fire periodic jobs",
    "beat": "the workers themselves fire periodic jobs",
    "c": "concurrency", "threads": "concurrency", "t": "concurrency",
    "Q": "queues",
    "P": "executor", "pool": "executor", "worker_type": "executor",
    "l": "log_level", "loglevel": "log_level",
    "w": "processes", "workers": "processes", "num_workers": "processes",
    "max_tasks_per_child": "max_tasks", "max_jobs": "max_tasks", "max_memory_per_child": "max_memory",
    "with_scheduler": "the workers themselves fire periodic jobs",
}  # fmt: skip
"""Worker options of these systems, with their names here, or the advice what to do instead."""


class CommandGroup(click.Group):
    """A group of commands. Without a command it shows its help; for an unknown command it names the nearest."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Shows the help and exits when there is nothing to parse."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(_MISUSE)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` begin with."""
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            meant = [_CALLED_HERE.get(args[0], ""), *_VERBS_HERE.get(args[0], ())]
            near = [one for one in meant if one.partition(" ")[0] in known]
            near = near or difflib.get_close_matches(args[0], known, n=1, cutoff=_ALIKE)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise click.UsageError(f"unknown command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands with their whole summaries."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(command)) for name, command in found if command is not None])

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command. An option name of a build before 0.1.0 is refused with its present name."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if told := _present_word(error):
                raise click.UsageError(f"No such option {error.option_name!r}; {told}", error.ctx) from None
            raise
        except KeyboardInterrupt:
            if IDENTITY.log_format == "json":  # click would write a line break, which only a terminal needs after ^C
                raise click.Abort from None
            raise


def _summary(command: click.Command) -> str:
    """The first sentence of a command's help, whole: click cuts it at the width of the terminal."""
    first = (command.help or "").partition("\n\n")[0]
    return " ".join(first.split())


def _present_word(error: click.NoSuchOption) -> str | None:
    params = error.ctx.command.params if error.ctx is not None else []
    known = {str(param.name): max(param.opts, key=len) for param in params if isinstance(param, click.Option)}
    name = error.option_name.lstrip("-").replace("-", "_")
    if name in ("master", "remote") and "conf" in known:
        return f"set JOBRUNNER_SPARK_{name.upper()}, which all processes of the command read"
    if told := retired(name, list(known)):
        return told
    near = present(name)
    if near not in known and "concurrency" in known:  # the command runs workers
        near = _OPTIONS_HERE.get(name, near)
        if " " in near:
            return near
    return f"it is called {known[near]!r} here" if near in known else None


class LazyGroup(CommandGroup):
    """A group whose commands are at `module:attribute`, each with its one-line help."""

    def __init__(self, *args: Any, commands_at: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*args, **options)
        self._commands_at = commands_at

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Names in the order they are declared."""
        return list(self._commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command, imported now, or None."""
        if cmd_name not in self._commands_at:
            return None
        module, _, attribute = self._commands_at[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Shell completion: commands with their summaries, without importing them, or the group's options."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        found = [(name, summary) for name, (_, summary) in self._commands_at.items() if name.startswith(incomplete)]
        return [CompletionItem(name, help=summary) for name, summary in found]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Writes the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._commands_at.items()])
        with formatter.section("Options of every command"):
            formatter.write_dl(SHARED)


@click.group(cls=LazyGroup, commands_at=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=DISTRIBUTION, message="%(prog)s %(version)s")
def jobrunner() -> None:
    """Background jobs for Python on Redis or Valkey: leases, retries, schedules, pipelines.

    The server's URL is --url, else JOBRUNNER_URL, else REDIS_URL, else url in [tool.jobrunner] of pyproject.toml.
    Without any, it is a private server in .jobrunner/ of the project, which workers and enqueues start.
    """


def main(words: Sequence[str] | None = None) -> None:
    """Runs one command and ends the process: 0 done, 1 no, 2 misuse, 130 interrupted, 143 terminated."""
    leave_at_signals()
    given = sys.argv[1:] if words is None else list(words)
    exit_with(guarded(jobrunner, given))
