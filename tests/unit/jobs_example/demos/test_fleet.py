"""Worker processes: their command, their environment, their end."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs_example.demos.fleet import Fleet

NAMED = {"WORKER": "A"}


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were started; in their place runs a process that prints its name and waits."""
    seen: list[list[str]] = []
    real = subprocess.Popen
    script = "import os; print(os.environ['WORKER'], os.environ['SEASON'], flush=True); input()"

    def start(command: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        seen.append(command)
        return real([sys.executable, "-c", script], **{**options, "stdin": subprocess.PIPE})

    monkeypatch.setattr("jobs_example.demos.fleet.subprocess.Popen", start)
    return seen


def test_a_worker_is_started_like_anyone_would_start_it(commands: list[list[str]], tmp_path: Path) -> None:
    with Fleet({"SEASON": "winter"}, logs=tmp_path / "logs") as workers:
        workers.start("A", "processes", "work", "some.jobs", "--concurrency", "2", environment=NAMED)

    shown = " ".join(commands[0][1:])
    assert re.sub(r"=\d+$", "", shown) == "-m jobrunner work some.jobs --concurrency 2 --grace 5.0 --lifeline"


def test_a_worker_knows_its_name_and_writes_to_its_log(
    commands: list[list[str]], tmp_path: Path, wait_until: Any
) -> None:
    with Fleet({"SEASON": "winter"}, logs=tmp_path / "logs") as workers:
        worker = workers.start("A", "threads", "work", environment=NAMED)
        wait_until(lambda: worker.log.read_text().endswith("\n"))

    assert worker.log.read_text() == "A winter\n"


def test_a_killed_worker_is_gone_when_kill_returns(commands: list[list[str]], tmp_path: Path) -> None:
    with Fleet({"SEASON": "winter"}, logs=tmp_path) as workers:
        workers.start("A", "threads", "work", environment=NAMED)
        other = workers.start("B", "threads", "work", environment=NAMED)
        killed = workers.kill("A")

        assert killed.process.returncode == -9
        assert (killed.state, other.state) == ("killed", "alive")


def test_nobody_is_left_behind(commands: list[list[str]], tmp_path: Path) -> None:
    with Fleet({"SEASON": "winter"}, logs=tmp_path) as workers:
        both = [workers.start(name, "threads", "work", environment=NAMED) for name in "AB"]

    assert [worker.state for worker in both] == ["ended", "ended"]
