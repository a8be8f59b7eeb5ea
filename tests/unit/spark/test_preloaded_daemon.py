"""What the parent of Spark's Python workers prints of their ends, and how they read what Java sends."""

import os
import socket
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from jobrunner.spark.preloaded_daemon import avoid_pauses, print_exception, without_pauses

_SENT_BY_NOW = 200


@pytest.mark.parametrize(
    ("error", "is_printed"),
    [(EOFError(), False), (BrokenPipeError(), False), (ConnectionResetError(), False), (MemoryError("full"), True)],
)
def test_a_pipe_that_spark_closed_is_no_failure(
    error: Exception, is_printed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        raise error
    except Exception:
        print_exception()
    assert ("Traceback" in capsys.readouterr().err) == is_printed


linux = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="an option of Linux")


@linux
def test_a_worker_acknowledges_at_once_and_sends_at_once() -> None:
    java, worker = _connected()
    with java, worker:
        for _ in range(_SENT_BY_NOW):  # Linux delays acknowledgements where requests and answers take turns
            java.sendall(b"x")
            worker.sendall(worker.recv(1))
        assert not worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
        with _stream(worker) as source, without_pauses(source) as stream:
            java.sendall(b"function")
            assert stream.read(8) == b"function"
            assert worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
            assert worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@linux
def test_a_worker_reads_all_that_was_sent_until_the_end_also_what_its_parent_had_in_its_buffer() -> None:
    java, worker = _connected()
    sent = os.urandom(1 << 20)
    got = []

    def main(infile: Any, outfile: Any) -> None:
        got.append(infile.read(100_000))
        outfile.append(infile.fileno())
        got.append(infile.read())

    module = SimpleNamespace(main=main)
    avoid_pauses(module)
    numbers: list[int] = []
    with worker, _stream(worker) as source:
        java.sendall(b"secret" + sent[:1000])
        assert source.read(6) == b"secret"
        sender = Thread(target=lambda: (java.sendall(sent[1000:]), java.close()))
        sender.start()
        module.main(source, numbers)
        sender.join()
    assert b"".join(got) == sent
    with pytest.raises(OSError):  # the copy of the descriptor is closed
        os.fstat(numbers[0])


def test_a_unix_socket_is_read_as_it_is() -> None:
    java, worker = socket.socketpair(socket.AF_UNIX)
    with java, worker, _stream(worker) as source:
        assert without_pauses(source) is source


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        java = socket.create_connection(server.getsockname())
        return java, server.accept()[0]


def _stream(connection: socket.socket) -> Any:
    return os.fdopen(os.dup(connection.fileno()), "rb", 1 << 16)
