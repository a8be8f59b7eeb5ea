"""Behaviour that all commands share."""

from collections.abc import Iterator

import click
import pytest

from jobrunner.cli.error_boundary import guarded
from jobrunner.cli.main import COMMANDS, jobrunner


def every_command(group: click.Group, *above: str) -> Iterator[tuple[str, click.Command]]:
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from every_command(command, *above, name)
        else:
            yield " ".join([*above, name]), command


ALL = dict(every_command(jobrunner))
GROUPS = {
    name: tuple(command.commands)
    for name in COMMANDS
    if isinstance(command := jobrunner.get_command(click.Context(jobrunner), name), click.Group)
}


@pytest.mark.parametrize("name", ALL)
def test_a_command_has_the_shared_options_and_an_example(name: str) -> None:
    command = ALL[name]

    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--url", "--prefix", "--json", "--debug"} <= options
    assert "jobrunner" in (command.epilog or "")
    assert command.help


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_in_the_list_begins_like_the_help_of_the_command(name: str) -> None:
    command = jobrunner.get_command(click.Context(jobrunner), name)

    assert command is not None
    assert command.help is not None
    assert command.help.split()[0] == COMMANDS[name][1].split()[0]


@pytest.mark.parametrize("words", [(), *((name,) for name in COMMANDS if name in GROUPS)], ids=str)
def test_summaries_are_whole_imperative_and_fit_a_line(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(jobrunner, [*words, "--help"]) == 0

    listed = capsys.readouterr().out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    for line in listed:
        name, summary = line.split(None, 1)
        assert name in (COMMANDS if not words else GROUPS[words[0]]), f"a summary continues on {line!r}"
        assert summary.endswith((".", ".)")), line
        assert not summary.split()[0].endswith("s"), line
        assert len(line) <= 80


@pytest.mark.parametrize("name", ALL)
def test_the_common_options_take_two_lines_of_the_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(jobrunner, [*name.split(), "--help"]) == 0

    shown = capsys.readouterr().out
    assert shown.count("--debug") == shown.count("--prefix,") == 1
    assert "Common options: see jobrunner --help." in shown


def test_help_lists_every_command_and_a_missing_one_is_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(jobrunner, ["--help"]) == 0
    listed = capsys.readouterr().out
    assert guarded(jobrunner, []) == 2
    assert guarded(jobrunner, ["queues"]) == 2

    assert all(f"  {name} " in listed for name in COMMANDS)
