"""`jobrunner dashboard` as a process of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from jobrunner.broker.embedded.server import EmbeddedServer
from tests.acceptance.conftest import Shell
from tests.support.server import Server
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "jobrunner", "dashboard", *words]


def printed_url(stdout: IO[str] | None) -> str:
    """The URL of a dashboard that was started with --json."""
    assert stdout is not None
    url: str = json.loads("".join(iter(stdout.readline, "}\n")) + "}")["url"]
    return url


@pytest.fixture
def private() -> Iterator[Shell]:
    """A shell in a project with a private server; its path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="jr-", dir="/tmp") as name:
        shell = Shell(Path(name), {"JOBRUNNER_URL": "", "JOBRUNNER_PREFIX": ""})
        shell.write("pyproject.toml", "")
        shell.write("jobs_here.py", "from jobrunner import job\n\n@job(every=3600)\ndef nightly() -> None: ...\n")
        yield shell
        shell.close()
        EmbeddedServer(shell.folder / ".jobrunner").stop()


def test_it_serves_until_it_is_told_to_stop(server: Server) -> None:
    process = subprocess.Popen(
        command("--url", server.url, "--port", "0", "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        url = printed_url(process.stdout)
        with urllib.request.urlopen(url + "health", timeout=20) as answer:
            assert answer.read() == b"ok\n"
        with urllib.request.urlopen(url, timeout=20) as page:
            assert b"jobrunner" in page.read()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_its_address_is_on_stdout_and_each_line_of_stderr_is_one_of_the_log(server: Server) -> None:
    process = subprocess.Popen(
        command("--url", server.url, "--port", "0", "--no-login"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert re.fullmatch(r"dashboard at http://127\.0\.0\.1:\d+/ \(Ctrl-C stops it\)\n", said)
    assert [json.loads(line)["level"] for line in errors.splitlines()] == ["warning"]


def test_a_dashboard_that_no_browser_has_opened_keeps_the_private_server(private: Shell) -> None:
    worker = private.start("work", "jobs_here", "--reload")
    wait_for(lambda: "nightly" in private.run("periodic", "list").out)
    dashboard = private.start("dashboard", "--port", "0", "--json", "--no-login")
    printed_url(dashboard.stdout)
    server = EmbeddedServer(private.folder / ".jobrunner").status().pid

    worker.send_signal(signal.SIGINT)
    assert worker.wait(30) == 0

    listed = private.run("periodic", "list")
    assert (listed.code, "nightly" in listed.out) == (0, True), listed.err
    assert EmbeddedServer(private.folder / ".jobrunner").status().pid == server
    dashboard.send_signal(signal.SIGINT)
    _, errors = dashboard.communicate(timeout=30)
    assert dashboard.returncode == 130
    assert "started a private server" not in errors
    assert not EmbeddedServer(private.folder / ".jobrunner").status().running


def test_a_dashboard_that_starts_the_private_server_says_so_once(private: Shell) -> None:
    dashboard = private.start("dashboard", "--port", "0", "--json", "--no-login")
    url = printed_url(dashboard.stdout)

    assert private.run("periodic", "list").code == 0
    with urllib.request.urlopen(url, timeout=20) as page:
        assert page.status == 200
    dashboard.send_signal(signal.SIGINT)
    _, errors = dashboard.communicate(timeout=30)
    events = [json.loads(line)["event"] for line in errors.splitlines()]
    assert events.count(f"started a private server in {private.folder / '.jobrunner'}") == 1
    assert not EmbeddedServer(private.folder / ".jobrunner").status().running


@pytest.mark.parametrize("words", [("--host", "0.0.0.0"), ("--host", "10.1.2.3", "--read-only")])
def test_an_address_that_others_reach_needs_a_way_to_log_in(words: tuple[str, ...]) -> None:
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=30)

    assert done.returncode == 2
    assert "say who may come in" in done.stderr


def test_a_port_that_is_taken_is_told_in_one_line(server: Server) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(command("--url", server.url, "--port", port), capture_output=True, text=True, timeout=30)

    assert done.returncode == 1
    assert f"port {port}" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_without_the_extra_it_says_what_to_install(server: Server) -> None:
    without = "import sys; sys.modules['starlette'] = None; from jobrunner.cli.main import main; main(['dashboard'])"
    done = subprocess.run(
        [sys.executable, "-c", without], capture_output=True, text=True, timeout=30, env={**os.environ, "NO_COLOR": "1"}
    )

    assert done.returncode == 1
    assert 'pip install "jobrunner-queue[web]"' in done.stderr
