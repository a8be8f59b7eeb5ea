"""The interpreter of a peer that needs a newer Python than the harness runs on."""

import sys
from pathlib import Path

import pytest

from benchmarks.peers import venvs
from benchmarks.peers.requirements import PYTHON, REQUIREMENTS


def _wish(monkeypatch: pytest.MonkeyPatch, oldest: tuple[int, int]) -> list[tuple[str, ...]]:
    """Makes `x` need that Python, and collects the commands instead of running them."""
    commands: list[tuple[str, ...]] = []
    monkeypatch.setitem(REQUIREMENTS, "x", ("x>=1",))
    monkeypatch.setitem(PYTHON, "x", oldest)

    def run(*command: str) -> str:
        commands.append(command)
        return ""

    monkeypatch.setattr(venvs, "_run", run)
    return commands


def _program(folder: Path, name: str, exit_code: int) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\nexit {exit_code}\n")
    program.chmod(0o755)


def test_a_peer_gets_the_interpreter_of_the_harness_if_it_is_new_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands = _wish(monkeypatch, (3, 8))
    (tmp_path / f"x-3.{sys.version_info.minor}").mkdir()

    assert venvs.environment(tmp_path, "x") == tmp_path / f"x-3.{sys.version_info.minor}" / "bin"
    assert commands[0][0] == sys.executable


def test_else_the_next_newer_one_on_the_path_that_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands = _wish(monkeypatch, (3, 90))
    _program(tmp_path, "python3.91", 127)  # a shim of a version manager that has no such version switched on
    _program(tmp_path, "python3.92", 0)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "x-3.92").mkdir()

    assert venvs.environment(tmp_path, "x") == tmp_path / "x-3.92" / "bin"
    assert commands[0][0] == "python3.92"


def test_without_one_the_peer_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _wish(monkeypatch, (3, 90))

    with pytest.raises(venvs.NotInstalled, match=r"needs Python 3.90 or newer and this is 3\..*put one on the PATH"):
        venvs.environment(tmp_path, "x")
    assert not list(tmp_path.iterdir())
