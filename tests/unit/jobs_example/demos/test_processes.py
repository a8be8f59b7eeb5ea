"""Processes that others have started are found, and ended."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobs_example.demos import processes
from jobs_example.demos.processes import Process, descendants, kill_all

PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()', 'grandchild'])"


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that has started another one."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("way", ["_from_proc", "_from_ps"])
def test_children_and_theirs_are_found_parents_first(
    child: "subprocess.Popen[bytes]", wait_until: Callable[..., Any], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "running", getattr(processes, way))

    def found() -> list[Process] | None:
        ours = [one for one in descendants(os.getpid()) if one.pid == child.pid or one.parent == child.pid]
        return ours if ours and ours[-1].command.endswith("grandchild") else None

    first, second = wait_until(found)
    assert (first.pid, second.parent) == (child.pid, child.pid)


def test_what_still_runs_is_killed_and_a_number_that_another_has_now_is_not(
    child: "subprocess.Popen[bytes]", wait_until: Callable[..., Any]
) -> None:
    def found() -> Process | None:  # between fork and exec it has the command line of its parent
        return next((one for one in descendants(child.pid) if one.command.endswith("grandchild")), None)

    grandchild = wait_until(found)
    kill_all([Process(pid=child.pid, parent=1, command="the former process of this id"), grandchild])

    wait_until(lambda: not descendants(child.pid))
    assert child.wait(30) == 0
