"""The server that the tests of one session share, and the removal of keys that a test left.

Where no server may be started, a stand-in takes its place: fakeredis behind a socket, so that every process finds it.
It runs the broker's own scripts, in fakeredis' Lua (the extra `fakeredis[lua]`). Its data is gone when this process
ends.
"""

import hashlib
import select
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import command
from jobrunner.broker.connect import unix_url
from jobrunner.broker.embedded.server import EmbeddedServer
from jobrunner.errors import InvalidOption, UsageError


class FakeServer:
    """A fakeredis server on a free port of the loopback interface, at `url`. It runs until `close`."""

    def __init__(self) -> None:
        self._server = _new_server()
        self.url = f"redis://127.0.0.1:{self._server.server_address[1]}/0"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="jobrunner-fake", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Accepts no more connections and closes the open ones."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(1.0)


def _new_server() -> Any:
    try:
        import lupa  # noqa: F401
        from fakeredis import TcpFakeServer
    except ImportError as error:
        raise UsageError(
            f'jobrunner_server = fake needs fakeredis with Lua ({error}); run: pip install "fakeredis[lua]"'
        ) from error
    server = TcpFakeServer(("127.0.0.1", 0))
    server.daemon_threads = True
    server.block_on_close = False
    server.RequestHandlerClass = _steady(server.RequestHandlerClass)
    return server


def _steady(handler: Any) -> Any:
    """The handler of fakeredis, changed to go on after an error reply and to wait for a slow reader. Scripts get
    `redis.sha1hex`, which fakeredis provides to library functions only."""

    class SteadyServer(handler):  # type: ignore[misc]
        def setup(self) -> None:
            super().setup()
            read = self.current_client.read_response

            def reply(**options: Any) -> Any:
                try:
                    return read(**options)
                except Exception as error:  # an error reply: fakeredis would close the connection after it
                    return error

            self.current_client.read_response = reply
            runtime = self.current_client.get_socket()._get_server_runtime(self.server.fake_server)  # noqa: SLF001
            runtime.globals()[b"redis"][b"sha1hex"] = _sha1hex
            self.writer.writer = _Patient(self.connection)

        def handle(self) -> None:
            with suppress(OSError):
                super().handle()

    return SteadyServer


def _sha1hex(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()


class _Patient:
    """Writes all of a reply to a socket that does not block."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def write(self, reply: bytes) -> None:
        """Sends all of a reply before it returns."""
        left = memoryview(reply)
        while left:
            try:
                left = left[self._connection.send(left) :]
            except BlockingIOError:
                select.select([], [self._connection], [])

    def flush(self) -> None:
        """Does nothing, as there is no buffer."""


_SLICE = 1000


@contextmanager
def open_server(kind: str = "embedded") -> Iterator[str]:
    """The URL of a private server that ends with the block.

    `embedded`: a real server, its files in a temporary folder. `fake`: fakeredis in this process. Raises InvalidOption
    for another kind, EmbeddedServerError, and UsageError when fakeredis is missing.
    """
    if kind == "embedded":
        with _embedded() as url:
            yield url
    elif kind == "fake":
        server = FakeServer()
        try:
            yield server.url
        finally:
            server.close()
    else:
        raise InvalidOption(f"jobrunner_server = {kind}: choose embedded (a real server) or fake (fakeredis)")


def remove_keys(broker: Broker, prefix: str) -> None:
    """Deletes every key below a prefix."""
    for node in broker.nodes():
        cursor = b"0"
        while True:
            cursor, found = node.run(
                command("SCAN", cursor, "MATCH", f"{prefix}:*", "COUNT", _SLICE, read=lambda reply: reply)
            )
            if found:
                broker.run_many([command("DEL", key, read=int) for key in found])
            if cursor == b"0":
                break


@contextmanager
def _embedded() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="jobrunner-"))
    server = EmbeddedServer(folder, temporary=True)  # even a killed run leaves neither server nor folder
    try:
        yield unix_url(server.acquire())
    finally:
        server.release()
        shutil.rmtree(folder, ignore_errors=True)
