"""Processes on the server and prefix of the test: a shell that runs `jobrunner` as people do, workers, children."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jobrunner import Client
from jobrunner.broker.keys import Keys
from jobrunner.client.client import keys_of
from tests.acceptance.fleet import Fleet, group_of, wait_ended
from tests.acceptance.ledger import Ledger
from tests.acceptance.row_children import Child
from tests.support.command_result import CommandResult
from tests.support.server import Server

Start = Callable[..., Child]

_ROOT = Path(__file__).parents[2]


class Shell:
    """Commands run in `folder`, with the server and the prefix of the test in the environment."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        inherited = {name: value for name, value in os.environ.items() if name not in ("REDIS_URL", "COLUMNS")}
        self.environment = {**inherited, "PYTHONPATH": str(_ROOT), **environment}
        self.started: list[subprocess.Popen[str]] = []

    def write(self, name: str, text: str) -> Path:
        """A file of the folder."""
        path = self.folder / name
        path.write_text(text, "utf-8")
        return path

    def run(self, *words: str, **environment: str) -> CommandResult:
        """Runs a command to its end."""
        process = self.start(*words, **environment)
        out, err = process.communicate(timeout=60)
        return CommandResult(process.returncode, out, err)

    def start(self, *words: str, **environment: str) -> "subprocess.Popen[str]":
        """Starts a command; it is ended with the test."""
        process = subprocess.Popen(
            [sys.executable, "-m", "jobrunner", *words],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def close(self) -> None:
        """Ends what still runs, and the processes of each command with it: they would write to the emptied server."""
        for process in self.started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(ValueError):  # its pipes were read already
                process.communicate()
            wait_ended(group_of(process.pid))


@pytest.fixture
def shell(server: Any, keys: Any, tmp_path: Path) -> Iterator[Shell]:
    """Runs `jobrunner` on the server and under the prefix of this test."""
    opened = Shell(tmp_path, {"JOBRUNNER_URL": server.url, "JOBRUNNER_PREFIX": keys.prefix})
    yield opened
    opened.close()


@pytest.fixture
def fleet(server: Server, current: Client, tmp_path: Path) -> Iterator[Fleet]:
    """Worker processes on the test's server and prefix; they end with the test."""
    started = Fleet(server.url, keys_of(current).prefix, tmp_path)
    yield started
    started.close()


@pytest.fixture
def ledger(fleet: Fleet) -> Ledger:
    """The ledger of the jobs that the fleet runs."""
    return fleet.ledger


@pytest.fixture
def start(server: Server, keys: Keys) -> Iterator[Start]:
    """start(function, ...): a child process on the server and prefix of the test; it ends with the test."""
    started: list[Child] = []

    def begin(act: Callable[..., None], *args: Any) -> Child:
        started.append(Child(act, server.url, keys.prefix, *args))
        return started[-1]

    yield begin
    for child in started:
        child.kill()
