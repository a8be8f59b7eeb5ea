"""Workers as services of systemd with `Type=notify`: what they report on the socket of the service manager."""

import os
import signal
import socket
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from jobrunner.client.client import Client

pytestmark = pytest.mark.processes

JOBS = """
from jobrunner import job

@job(queue="maths")
def add(x: int, y: int = 0) -> int:
    return x + y
"""


class Heard:
    """The service manager's end of the socket."""

    def __init__(self) -> None:
        self.name = f"@jobrunner-{uuid.uuid4()}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(30)
        self._socket.bind(f"\0{self.name[1:]}")

    def next(self) -> str:
        return self._socket.recv(100).decode()

    def is_silent(self) -> bool:
        self._socket.setblocking(False)
        try:
            return not self._socket.recv(100)
        except BlockingIOError:
            return True

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def heard() -> Iterator[Heard]:
    made = Heard()
    yield made
    made.close()


@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["alone", "processes"])
def test_a_worker_says_when_it_is_ready_and_that_it_lives(
    shell: Any, client: Client, heard: Heard, options: tuple[str, ...]
) -> None:
    shell.write("jobs_here.py", JOBS)
    process = shell.start("work", "jobs_here", *options, NOTIFY_SOCKET=heard.name, WATCHDOG_USEC="200000")

    assert heard.next() == "READY=1"
    assert client.workers()
    assert [heard.next() for _ in range(3)] == ["WATCHDOG=1"] * 3
    process.terminate()
    assert process.wait(30) == 0


def test_a_worker_that_restarts_itself_lives_on_and_is_ready_again(shell: Any, client: Client, heard: Heard) -> None:
    shell.write("jobs_here.py", JOBS)
    process = shell.start("work", "jobs_here", NOTIFY_SOCKET=heard.name, WATCHDOG_USEC="200000")
    assert heard.next() == "READY=1"

    os.kill(process.pid, signal.SIGHUP)

    while (said := heard.next()) != "READY=1":
        assert said == "WATCHDOG=1"
    process.terminate()
    assert process.wait(30) == 0


@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["alone", "processes"])
def test_a_worker_that_cannot_begin_is_not_ready(shell: Any, heard: Heard, options: tuple[str, ...]) -> None:
    ended = shell.run("work", "no_such_module", *options, NOTIFY_SOCKET=heard.name)

    assert ended.code == 2
    assert heard.is_silent()


def test_without_a_watchdog_it_is_ready_once(shell: Any, client: Client, heard: Heard) -> None:
    """Nor with the watchdog of another process, whose environment it has."""
    shell.write("jobs_here.py", JOBS)
    process = shell.start("work", "jobs_here", NOTIFY_SOCKET=heard.name, WATCHDOG_USEC="1000", WATCHDOG_PID="1")

    assert heard.next() == "READY=1"
    process.terminate()
    assert process.wait(30) == 0
    assert heard.is_silent()
