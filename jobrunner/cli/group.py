"""Command groups: one with hints for a missing or unknown command, and one that imports its commands lazily.

The lazy import is the pattern of click's documentation, "Lazily Loading Subcommands"; here the summaries are declared
beside the names, so that help imports no command either.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from jobrunner.option_names import present, retired

_MISUSE = 2
_RETIRED = {"redis": "server"}
"""Names of commands in builds before 0.1.0 and the present ones."""


class CommandGroup(click.Group):
    """Commands under one word. Without a command it shows its help; for an unknown one it names the nearest."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Ends with the help when there is nothing to parse."""
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
            near = [one for one in (_RETIRED.get(args[0]),) if one in known]
            near = near or difflib.get_close_matches(args[0], known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise click.UsageError(f"unknown command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command. An option name of a build before 0.1.0 is refused with the present word."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if told := _present_word(error):
                raise click.UsageError(f"No such option {error.option_name!r}; {told}", error.ctx) from None
            raise


def _present_word(error: click.NoSuchOption) -> str | None:
    params = error.ctx.command.params if error.ctx is not None else []
    known = [str(param.name) for param in params if isinstance(param, click.Option)]
    name = error.option_name.lstrip("-").replace("-", "_")
    if (told := retired(name, known)) or (near := present(name)) not in known:
        return told
    return f"it is called {'--' + near.replace('_', '-')!r} here"


class LazyGroup(CommandGroup):
    """Commands at `module:attribute`, each with its one line of help."""

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
