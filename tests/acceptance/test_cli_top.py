"""`jobrunner top` in a real terminal: a process of its own, driven by keys."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobrunner.client.client import Client, keys_of
from tests.support.server import Server

pytestmark = pytest.mark.processes

_ANY = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]")


class Session:
    """`jobrunner top` on a terminal of 80 by 24."""

    def __init__(self, server: Server, client: Client, *words: str) -> None:
        self.near, self._far = pty.openpty()
        fcntl.ioctl(self._far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self._far)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jobrunner", "top", "--every", "0.1", *words],
            env=os.environ | {"JOBRUNNER_URL": server.url, "JOBRUNNER_PREFIX": keys_of(client).prefix, "TERM": "xterm"},
            stdin=self._far, stdout=self._far, stderr=subprocess.PIPE, text=True, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self.shown = ""

    def press(self, keys: str) -> None:
        os.write(self.near, keys.encode())

    def await_text(self, wanted: str) -> None:
        """Until a frame has that text; frames before are forgotten."""
        ends = time.monotonic() + 20
        while True:
            frame = self.shown.rpartition("\x1b[?2026h")[2] if self.shown.endswith("\x1b[?2026l") else ""
            if wanted in _ANY.sub("", frame):
                self.shown = ""
                return
            assert time.monotonic() < ends, f"{wanted!r} was not shown: {_ANY.sub('', self.shown)[-2500:]}"
            self.read(0.2)

    def read(self, timeout_s: float) -> None:
        if select.select([self.near], [], [], timeout_s)[0]:
            self.shown += os.read(self.near, 65536).decode("utf-8", "replace")

    def end(self) -> int:
        """Exit code, with the terminal as it was."""
        ends = time.monotonic() + 20
        while self.process.poll() is None:
            assert time.monotonic() < ends, "it did not end"
            self.read(0.05)
        self.read(0)
        assert termios.tcgetattr(self._far) == self.before
        assert self.shown.rpartition("\x1b[?1049")[2].startswith("l")
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self.near)
        os.close(self._far)


@pytest.fixture
def top(server: Server, client: Client) -> Iterator[Callable[..., Session]]:
    sessions: list[Session] = []

    def start(*words: str) -> Session:
        sessions.append(Session(server, client, *words))
        return sessions[-1]

    yield start
    for one in sessions:
        one.close()


@pytest.fixture
def filled(client: Client) -> Client:
    """Queues `mail` (two dead, one waiting) and `maths`."""
    mail = client.queue("mail")
    mail.configure(max_attempts=1)
    mail.push_many([{"n": 1, "token": "hunter2"}, {"n": 2}, {"n": 3}])
    for lease in mail.reserve(2):
        lease.rollback(error="ValueError: no such address")
    client.queue("maths").push_many(range(5))
    return client


def test_keys_pause_requeue_and_open_a_task_and_q_leaves_the_terminal_as_it_was(
    top: Callable[..., Session], filled: Client, wait_until: Callable[..., Any]
) -> None:
    session = top()
    session.await_text("▸ mail")

    session.press("p")
    wait_until(lambda: filled.queue("mail").is_paused())
    session.await_text("‖ paused")
    session.press("p")
    wait_until(lambda: not filled.queue("mail").is_paused())

    session.press("\r")
    session.await_text("all dead tasks of the queue")
    session.press("j\r")
    session.await_text("▸ (item)")
    session.press("\r")
    session.await_text("PAYLOAD")
    session.press("\x1b")
    session.await_text("ERROR, OR ID")
    session.press("\x1b")
    session.await_text("all dead tasks of the queue")
    session.press("r")
    session.await_text("Requeue 2 dead tasks of queue mail with 'ValueError: no such address'?")
    session.press("n")
    session.press("\x1b")
    session.await_text("▸ mail")

    session.press("r")
    session.await_text("Requeue 2 dead tasks of queue mail?")
    session.press("n")
    session.press("r")
    session.await_text("Requeue 2 dead tasks of queue mail?")
    assert filled.queue("mail").counts()["dead"] == 2
    session.press("y")
    wait_until(lambda: filled.queue("mail").counts()["dead"] == 0)
    session.await_text("requeued 2 of queue mail")

    session.press("/mat\r")
    session.await_text("QUEUE /mat")
    session.press("q")
    assert session.end() == 0


@pytest.mark.parametrize(("key", "code"), [("\x03", 130), (None, 128 + signal.SIGTERM)])
def test_ctrl_c_and_sigterm_leave_the_terminal_as_it_was(
    top: Callable[..., Session], filled: Client, key: str | None, code: int
) -> None:
    session = top()
    session.await_text("▸ mail")

    if key is None:
        session.process.terminate()
    else:
        session.press(key)

    assert session.end() == code


def test_a_server_that_goes_away_is_told_about_and_keys_go_on_working(
    start_server: Callable[..., Server], top: Callable[..., Session]
) -> None:
    own = start_server()
    with Client(own.url, "t") as client:
        client.queue("mail").push(1)
        session = Session(own, client)
        try:
            session.await_text("▸ mail")
            own.kill()
            session.await_text("! no server at")
            session.press("?")
            session.await_text("KEYS")
            session.press("q")
            assert session.end() == 0
        finally:
            session.close()
            own.start()


def test_without_a_terminal_it_shows_one_frame_and_json_is_one_value(server: Server, filled: Client) -> None:
    prefix = keys_of(filled).prefix
    environment = os.environ | {"JOBRUNNER_URL": server.url, "JOBRUNNER_PREFIX": prefix, "COLUMNS": "80"}
    command = [sys.executable, "-m", "jobrunner", "top", "--every", "0.1"]

    frame = subprocess.check_output(command, env=environment, text=True, stdin=subprocess.DEVNULL)
    value = json.loads(subprocess.check_output([*command, "--json"], env=environment))

    assert "\x1b" not in frame
    assert "FAILING MOST" in frame
    assert max(map(len, frame.splitlines())) <= 80
    assert [(queue["name"], queue["dead"]) for queue in value["queues"]] == [("mail", 2), ("maths", 0)]
    assert value["rates"]["out_per_s"] == 0.0
    assert value["failing"][0]["error"] == "ValueError: no such address"
    assert [(one["title"], one["dead"]) for one in value["groups"]] == [("ValueError: no such address", 2)]
