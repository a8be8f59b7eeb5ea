"""The demo, whole and for real: two worker processes, one of them killed, and a verdict that it reaches by itself."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

DEMO = (
    "import sys; from pathlib import Path; from jobs_example.demos.jobs.run import run_demo;"
    "sys.exit(run_demo(folder=Path(sys.argv[1]), quick=True, as_json=True))"
)


def a_demo(folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", DEMO, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def left_by(demo: "subprocess.Popen[str]", folder: Path) -> list[str]:
    """Processes of the demo's session, and others that have its folder in their command."""
    command = ["ps", "-eo", "sid=,stat=,args="]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    words = [(line, *line.split()[:2]) for line in lines]
    return [
        line
        for line, session, state in words
        if (session == str(demo.pid) or str(folder) in line) and not state.startswith("Z")
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "demo"


@pytest.mark.timeout(240)
def test_a_demo_loses_nothing_and_finds_the_published_figures(folder: Path, wait_until: Callable[..., Any]) -> None:
    demo = a_demo(folder)
    out, talk = demo.communicate(timeout=220)

    assert demo.returncode == 0, talk
    found = json.loads(out)
    assert [check for check in found["checks"] if not check["agrees"]] == []
    by_name = {check["what"]: check["found"] for check in found["checks"]}
    assert (by_name["flights"], by_name["latest carriers"]) == ("336776", "F9 FL EV YV OO")
    assert int(by_name["tasks in the killed worker's hands"]) >= 1
    assert "is killed (-9)" in talk
    assert (folder / "results" / "punctuality.csv").is_file()
    wait_until(lambda: not left_by(demo, folder))


def test_a_demo_that_is_interrupted_leaves_no_process_behind(folder: Path, wait_until: Callable[..., Any]) -> None:
    demo = a_demo(folder)
    wait_until(lambda: (folder / "logs" / "worker-B.log").exists(), timeout_s=30)
    for _ in range(3):  # as a person presses Ctrl-C again: Python may swallow one, in a callback or between two imports
        os.killpg(demo.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            demo.communicate(timeout=20)
            break

    assert demo.returncode not in (0, None)
    wait_until(lambda: not left_by(demo, folder), timeout_s=20)
