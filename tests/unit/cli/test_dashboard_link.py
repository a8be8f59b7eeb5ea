"""`jobrunner dashboard --link` asks the dashboard of this user, and no other program, for one more link."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from jobrunner.web.login import left_for_owner

Ask = Callable[["Answering"], Any]


class Answering(HTTPServer):
    """A server of this machine that gives one answer to all requests, and keeps their lines."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.requests = answer, list[str]()
        self.url = f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Answering

    def do_POST(self) -> None:
        self.server.requests.append(self.requestline)
        self.wfile.write(self.server.answer)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def answering(answer: bytes) -> Iterator[Answering]:
    with Answering(answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def http(body: str) -> bytes:
    return f"HTTP/1.0 200 OK\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


@pytest.fixture
def asked(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ask:
    """Runs the command for a dashboard that seems to run where that server is."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    def ask(server: Answering) -> Any:
        with left_for_owner(server.server_port, server.url, "secret-of-the-owner", "link"):
            return cli("dashboard", "--link", "--port", str(server.server_port))

    return ask


def test_the_owners_secret_does_not_go_to_a_proxy_of_the_environment(
    asked: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(http(json.dumps({"token": "t0ken"}))) as dashboard, answering(http("{}")) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)

        answer = asked(dashboard)

        assert (answer.code, answer.out.strip(), answer.err) == (0, f"{dashboard.url}login?token=t0ken", "")
        assert (len(dashboard.requests), proxy.requests) == (1, [])


@pytest.mark.parametrize("answer", [http("{}"), http("[]"), http("hello"), b"SSH-2.0-OpenSSH_9.6\r\n", b""])
def test_another_program_on_the_port_of_a_killed_dashboard_is_told_in_one_line(
    asked: Ask, answer: bytes
) -> None:
    with answering(answer) as other:
        refused = asked(other)

    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith(f"Error: the dashboard at {other.url} gives no link (")
    assert refused.err.endswith("start it again\n")
