"""The page on the command line names every command there is, and none that there is not."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from jobrunner.cli.main import jobrunner

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
SHOWN = re.findall(r"(?:`|^\$ )jobrunner ([a-z][^`\n]*)", PAGE, re.MULTILINE)


def leaves(group: click.Group, *above: str) -> Iterator[str]:
    """Every command that is no group, as its words."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if isinstance(command, click.Group):
            yield from leaves(command, *above, name)
        else:
            yield " ".join((*above, name))


@pytest.mark.parametrize("name", [*leaves(jobrunner)])
def test_every_command_is_on_the_page(name: str) -> None:
    assert any(f"{shown} ".startswith(f"{name} ") for shown in SHOWN), f"tell in docs/cli.md what {name!r} is for"


@pytest.mark.parametrize("shown", sorted(set(SHOWN)))
def test_what_the_page_shows_can_be_typed_as_it_is(shown: str) -> None:
    words = shlex.split(shown.partition(" | ")[0].partition(" > ")[0])
    command: click.Command = jobrunner
    while isinstance(command, click.Group):
        assert words, f"{shown!r} is a group and no command"
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None, shown
        command = found
    command.make_context(shown, words)  # raises UsageError for a wrong option, and for one that is missing


def test_the_keys_of_the_live_view_are_those_that_it_knows() -> None:
    from jobrunner.cli.top.draw import _HELP

    table = PAGE.partition("| key | does |")[2].partition("\n\n")[0]
    for key in re.findall(r"`(.)`", table):
        assert key in _HELP, key
