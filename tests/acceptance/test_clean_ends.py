"""However a command ends, it leaves no traceback and no embedded server, also with pages of the dashboard open."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from select import select

import pytest

from jobrunner.broker.embedded.server import EmbeddedServer
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
JOBS = """
from jobrunner import job

@job(queue="mail")
def greet(name: str) -> None: ...
"""
TABS = 3
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
LONG_S = 120.0
WORK = ["work", "jobs_here"]
SLOW = [
    pytest.param(words, number, id=f"{name}-{number.name}", marks=pytest.mark.slow)
    for name, words in (
        ("work", WORK), ("processes", [*WORK, "--processes=2"]), ("reload", [*WORK, "--reload"]),
        ("dashboard", ["dashboard", "--port=0"]), ("bench", ["bench", "--tasks=1000000"]),
        ("soak", ["soak", "--duration=5m", "--no-faults"]), ("demo", ["demo"]),
    )
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
]  # fmt: skip
COMMANDS = [
    pytest.param(WORK, signal.SIGTERM, id="work"),
    pytest.param(WORK, signal.SIGKILL, id="work-killed"),
    pytest.param([*WORK, "--processes=2"], signal.SIGKILL, id="supervisor-killed"),
    pytest.param(["dashboard", "--port=0"], signal.SIGKILL, id="dashboard-killed"),
    *SLOW,
]


class Command:
    """`jobrunner` in a folder with a module of jobs and a private server; `errors` is its stderr."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.errors = folder / "stderr"
        (folder / "jobs_here.py").write_text(JOBS)
        (folder / "pyproject.toml").touch()
        hidden = ("REDIS_URL", "JOBRUNNER_URL", "JOBRUNNER_PREFIX")
        inherited = {name: value for name, value in os.environ.items() if name not in hidden}
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jobrunner", *words], cwd=folder, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=errors, text=True, process_group=0,
                env={**inherited, "PYTHONPATH": f"{ROOT}:{folder}", "TMPDIR": str(self.temporary)},
            )  # fmt: skip

    @property
    def servers(self) -> list[int]:
        """The servers that work below the folder."""
        return [pid for pid in map(int, _processes()) if self._is_server(pid)]

    def _is_server(self, pid: int) -> bool:
        with suppress(OSError):
            is_here = Path(f"/proc/{pid}/cwd").readlink().is_relative_to(self._folder)
            return is_here and b"-server" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
        return False

    def close(self) -> None:
        """Ends what a failed test has left."""
        self.process.kill()
        self.process.communicate()
        for pid in self.servers:
            os.kill(pid, signal.SIGKILL)


def _processes() -> Iterator[str]:
    return (one.name for one in Path("/proc").glob("[0-9]*"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="jr-", dir="/tmp") as name:
        yield Path(name)


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_dashboard_with_open_tabs_ends_without_a_traceback_and_stops_its_server(
    number: signal.Signals, folder: Path
) -> None:
    with ExitStack() as ends:
        command = Command(folder, "dashboard", "--port=0", "--json", "--no-login")
        ends.callback(command.close)
        assert command.process.stdout is not None
        url = json.loads("".join(iter(command.process.stdout.readline, "}\n")) + "}")["url"]
        tabs = [ends.enter_context(urllib.request.urlopen(f"{url}live", timeout=20)) for _ in range(TABS)]
        assert {tab.readline() for tab in tabs} == {b"retry: 3000\n"}

        command.process.send_signal(number)

        assert all(tab.read() is not None for tab in tabs)  # to the end of the chunks, which a cut-off stream lacks
        assert command.process.wait(LONG_S) == CODES[number]
        found = command.errors.read_text()
        assert "Traceback" not in found
        assert "rror" not in found
        assert command.servers == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("words", "number"), COMMANDS)
def test_no_server_is_left_however_a_command_ends(words: list[str], number: signal.Signals, folder: Path) -> None:
    with ExitStack() as ends:
        command = Command(folder, *words)
        ends.callback(command.close)
        wait_for(lambda: command.servers or command.process.poll() is not None, timeout_s=LONG_S)
        assert command.process.poll() is None, command.errors.read_text()
        wait_for(lambda: _is_ready(command, words[0]), timeout_s=LONG_S)
        command.process.send_signal(number)
        if number == signal.SIGHUP and words[0] == "work":  # without a terminal it asks for new processes
            command.process.send_signal(signal.SIGTERM)
        code = command.process.wait(LONG_S)
        wait_for(lambda: not command.servers, timeout_s=LONG_S)

        if number != signal.SIGKILL:
            assert "Traceback" not in command.errors.read_text()
            expected = {"work": (0,), "soak": (0, 1, CODES[number])}.get(words[0], (CODES[number],))
            assert code in expected, command.errors.read_text()
            assert list(command.temporary.iterdir()) == []


def test_the_private_server_goes_on_while_reload_replaces_the_worker(folder: Path) -> None:
    with ExitStack() as ends:
        command = Command(folder, *WORK, "--reload")
        ends.callback(command.close)
        wait_for(lambda: _is_ready(command, "work"), timeout_s=LONG_S)
        assert command.errors.read_text().count("started a private server in ") == 1
        servers = command.servers

        (folder / "jobs_here.new").write_text(JOBS + "\n")
        (folder / "jobs_here.new").rename(folder / "jobs_here.py")  # one change: writing in place may be seen as two
        wait_for(lambda: command.errors.read_text().count("worker started") == 2, timeout_s=LONG_S)

        assert command.servers == servers
        command.process.send_signal(signal.SIGINT)
        assert command.process.wait(LONG_S) == 0
        assert command.errors.read_text().count("starting again") == 1
        assert command.servers == []


def _is_ready(command: Command, name: str) -> object:
    """Whether it has come far enough to use its server."""
    if name == "work":
        return "worker started" in command.errors.read_text()
    if name == "dashboard":
        return select([command.process.stdout], [], [], 0)[0]
    with suppress(FileNotFoundError):  # one has ended meanwhile
        return all(EmbeddedServer(Path(f"/proc/{pid}/cwd").readlink()).status().users for pid in command.servers)
    return False
