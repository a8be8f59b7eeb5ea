"""`jobrunner dashboard` as a process of its own."""

import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from tests.support.server import Server

pytestmark = pytest.mark.processes


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "jobrunner", "dashboard", *words]


def test_it_serves_until_it_is_told_to_stop(server: Server) -> None:
    process = subprocess.Popen(
        command("--url", server.url, "--port", "0", "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        url = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")["url"]
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
