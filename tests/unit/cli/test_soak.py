"""`jobrunner soak` refuses wrong options before anything starts. tests/acceptance/test_soak.py runs it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--faults kill", "choose from kills"),
        ("--faults kills --no-faults", "exclude each other"),
        ("--url redis://127.0.0.1:1 --faults restarts", "only a private server is killed"),
        ("--url rediss://127.0.0.1:1 --faults cuts", "the proxy leads to"),
        ("--workers 1", "2<=x"),
        ("--duration soon", "no length of time"),
        ("--every 0", "--every 0: give at least 100ms"),
    ],
)
def test_misuse_is_told_in_one_line_and_starts_nothing(cli: Callable[..., Any], words: str, told: str) -> None:
    result = cli("soak", *words.split())

    assert result.code == 2
    assert told in result.err


def test_a_history_needs_a_new_folder(cli: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "old").touch()

    result = cli("soak", "--history", str(tmp_path))

    assert result.code == 2
    assert "the folder is not empty; name a new one" in result.err


@pytest.mark.parametrize("option", ["--report", "--plot", "--history"])
def test_a_file_that_cannot_be_written_is_refused_before_a_run_of_hours(
    cli: Callable[..., Any], tmp_path: Path, option: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir(mode=0o500)

    for name in ("file/found", "full/found"):
        result = cli("soak", option, str(tmp_path / name), "--url", "redis://127.0.0.1:1")
        if name == "file/found" or os.getuid() != 0:  # root may write anywhere
            assert (result.code, result.out) == (2, "")
            assert f"{option} {tmp_path / name} cannot be written: " in result.err

    cli("soak", option, str(tmp_path / "new/found"), "--url", "redis://127.0.0.1:1")
    assert [one for one in (tmp_path / "new").iterdir() if option != "--history"] == []


def test_faults_that_are_not_injected_need_no_time_between_them(cli: Callable[..., Any]) -> None:
    result = cli("soak", "--every", "0", "--no-faults", "--url", "redis://127.0.0.1:1")

    assert (result.code, "127.0.0.1:1" in result.err) == (1, True)


def test_a_server_that_is_away_is_told(cli: Callable[..., Any]) -> None:
    result = cli("soak", "--url", "redis://127.0.0.1:1", "--duration", "1m")

    assert result.code == 1
    assert "127.0.0.1:1" in result.err
