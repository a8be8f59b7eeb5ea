"""A test run that is terminated or killed leaves no server and no folder, in suites of users and in this one."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
OF_A_USER = """
import os, sys, time

def test_hangs(jobrunner_client):
    jobrunner_client.queue("mail").push(1)
    with open("begun.new", "w") as note:
        note.write(jobrunner_client.settings.url.removeprefix("unix://"))
    os.rename("begun.new", "begun")
    time.sleep(300)
"""
OF_OURS = """
import os, sys, time
sys.path.insert(0, {root!r})
from tests.support.server import Server

def test_hangs():
    server = Server()
    with open("begun.new", "w") as note:
        note.write(str(server.socket))
    os.rename("begun.new", "begun")
    time.sleep(300)
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary folder for the run, with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="jr-", dir="/tmp") as name:
        yield Path(name)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP], ids=["term", "kill", "hup"])
@pytest.mark.parametrize("suite", [OF_A_USER, OF_OURS.format(root=str(ROOT))], ids=["user", "ours"])
def test_a_run_that_is_ended_leaves_nothing(
    suite: str, number: signal.Signals, tmp_path: Path, temporary: Path
) -> None:
    (tmp_path / "test_it.py").write_text(suite)
    with (tmp_path / "output").open("w") as output:
        run = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "jobrunner.testing.plugin", "-p", "no:cacheprovider", "test_it.py"],
            cwd=tmp_path,
            env={
                **os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary),
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "",
            },
            stdout=output, stderr=output, process_group=0,
        )  # fmt: skip
    try:
        wait_for(lambda: (tmp_path / "begun").exists() or run.poll() is not None)
        assert run.poll() is None, (tmp_path / "output").read_text()
        socket = Path((tmp_path / "begun").read_text())
        server = server_of(socket.parent)
        os.killpg(run.pid, number)  # as CI does, and a terminal that is closed
        run.wait(30)
    finally:
        run.kill()

    wait_for(lambda: not is_alive(server))
    wait_for(lambda: not socket.parent.exists())
    assert list(temporary.iterdir()) == []


def is_alive(pid: int) -> bool:
    """Whether it is more than a zombie."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def server_of(folder: Path) -> int:
    """The process that works in this folder and is a server."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder and b"-server" in (process / "cmdline").read_bytes():
                return int(process.name)
        except OSError:
            continue
    raise AssertionError(f"no server works in {folder}")
