"""Clients that hold idle connections to a dashboard neither lock other clients out nor fill a disk with logs."""

import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from jobrunner.web import serving
from tests.acceptance.dashboard_process import Person, Running, running
from tests.support.server import Server
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

HOLDER = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = []
for _ in range(int(sys.argv[2])):
    try:
        one = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5)
        one.sendall(sys.argv[3].encode())
        held.append(one)
    except OSError:
        pass
print(len(held), flush=True)
sys.stdin.read()
"""


def cpu_s(dashboard: Running) -> float:
    words = Path(f"/proc/{dashboard.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def descriptors(dashboard: Running) -> int:
    return len(list(Path(f"/proc/{dashboard.process.pid}/fd").iterdir()))


def few(most: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@pytest.mark.parametrize(
    ("files", "held"),
    [pytest.param(1024, 1100, id="1 100 with 1 024 descriptors", marks=pytest.mark.slow),
     pytest.param(256, 300, id="300 with 256")],
)
@pytest.mark.parametrize("sent", ["GET / HTTP/1.1\\r\\nHost: x\\r\\nX-Slow: ", ""], ids=["half a head", "nothing"])
def test_health_and_pages_answer_while_strangers_hold_connections(
    server: Server, tmp_path: Path, files: int, held: int, sent: str
) -> None:
    with running(server.url, tmp_path, "--token", "long enough", preexec_fn=few(files)) as dashboard:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(dashboard.port), str(held), sent.encode().decode("unicode_escape")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert holder.stdout is not None
            assert int(holder.stdout.readline()) > files // 2
            for _ in range(20):
                assert Person().get(f"{dashboard.url}health") == (200, "ok\n")
            assert Person().get(dashboard.url, authorization="Bearer long enough", accept="application/json")[0] == 200
            assert descriptors(dashboard) < files * 3 // 4
            before_s = cpu_s(dashboard)
            time.sleep(1)  # a loop that spins on what it cannot accept takes a second of the processor here
            assert cpu_s(dashboard) - before_s < 0.8
            assert dashboard.errors.stat().st_size < 10_000, dashboard.errors.read_text()[:2000]
        finally:
            holder.kill()
            holder.wait()


def ended(connection: socket.socket, within_s: float) -> bool:
    connection.settimeout(within_s)
    with suppress(ConnectionError):
        while connection.recv(4096):
            pass
    return True


@pytest.mark.parametrize("after_an_answer", [False, True])
def test_a_head_that_trickles_in_is_given_up(
    server: Server, tmp_path: Path, after_an_answer: bool
) -> None:
    assert serving.HEAD_S == 10, "as the documents say"
    with (
        running(server.url, tmp_path, limits_s={"serving.HEAD_S": 1.0}) as dashboard,
        socket.create_connection(("127.0.0.1", dashboard.port)) as slow,
    ):
        if after_an_answer:
            slow.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert slow.recv(4096).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        slow.sendall(b"GET / HTTP/1.1\r\n")

        def is_closed() -> bool:
            try:
                slow.sendall(b"x")
                slow.setblocking(False)
                return slow.recv(10) == b""
            except BlockingIOError:
                return False
            except OSError:
                return True
            finally:
                slow.setblocking(True)

        wait_for(is_closed, timeout_s=30)
        assert time.monotonic() - began > 0.9


def test_a_form_that_trickles_in_is_given_up(server: Server, tmp_path: Path) -> None:
    head = b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
    with (
        running(server.url, tmp_path, "--token", "long enough", limits_s={"routing._FORM_S": 0.5}) as dashboard,
        socket.create_connection(("127.0.0.1", dashboard.port), 60) as slow,
    ):
        slow.sendall(head + b"Content-Type: application/x-www-form-urlencoded\r\n\r\ntoken=")
        assert slow.recv(4096).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "request_", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET /\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
                 b"x" * 200_000, b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"],
    ids=["TLS", "no version", "two hosts", "no end", "a websocket"],
)  # fmt: skip
def test_what_is_no_request_costs_no_line_of_the_log(server: Server, tmp_path: Path, request_: bytes) -> None:
    with running(server.url, tmp_path) as dashboard:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", dashboard.port), 20) as odd, suppress(ConnectionError):
                odd.sendall(request_)
                assert odd.recv(4096)[9:12] != b"500"
        assert Person().get(f"{dashboard.url}health")[0] == 200
        assert dashboard.errors.stat().st_size < 500, dashboard.errors.read_text()


@pytest.mark.parametrize("head", [b"X: " + b"a" * 100_000 + b"\r\n", b"".join(b"X-%d: 1\r\n" % n for n in range(3000))])
def test_a_large_head_is_refused(server: Server, tmp_path: Path, head: bytes) -> None:
    with (
        running(server.url, tmp_path) as dashboard,
        socket.create_connection(("127.0.0.1", dashboard.port), 20) as large,
    ):
        large.sendall(b"GET /login HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n")
        answer = large.recv(65536)
        assert answer[9:12] in (b"400", b"431")
        assert b"nosniff" in answer.lower()
        assert Person().get(f"{dashboard.url}health")[0] == 200


def test_one_site_cannot_take_the_room_of_others() -> None:
    from jobrunner.web.serving import ConnectionLimits, Connections

    class One:
        def __init__(self) -> None:
            self.aborted = False
            self.transport = self

        def abort(self) -> None:
            self.aborted = True

    connections = Connections(ConnectionLimits(most=10, most_of_site=3, backlog=8))
    neighbour, strangers = One(), [One() for _ in range(6)]
    connections.opened(neighbour, "10.0.0.1")  # type: ignore[arg-type]
    for one in strangers:
        connections.opened(one, "10.0.0.2")  # type: ignore[arg-type]

    assert [one.aborted for one in strangers] == [True] * 3 + [False] * 3
    assert not neighbour.aborted
    connections.busy(strangers[3])  # type: ignore[arg-type]
    others = [One() for _ in range(12)]
    for n, one in enumerate(others):
        connections.opened(one, f"10.0.1.{n}")  # type: ignore[arg-type]
    assert not strangers[3].aborted, "a connection with a request in progress is never closed"
    assert neighbour.aborted, "of the others the longest silent ones are"
