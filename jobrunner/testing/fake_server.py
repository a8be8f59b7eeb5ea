"""A stand-in for the server where none may be started: fakeredis behind a socket, so that every process finds it.

It runs the very scripts of the broker, in fakeredis' own Lua (the extra `fakeredis[lua]`). What it keeps is gone with
this process.
"""

import select
import socket
import threading
from contextlib import suppress
from typing import Any

from jobrunner.errors import UsageError


class FakeServer:
    """A fakeredis server on a free port of the loopback interface; `url` names it. It lives until `close`."""

    def __init__(self) -> None:
        self._server = _new_server()
        self.url = f"redis://127.0.0.1:{self._server.server_address[1]}/0"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="jobrunner-fake", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Takes no more connections and ends those there are."""
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
    """The handler of fakeredis, but one that goes on after an error reply and waits for a slow reader."""

    class SteadyServer(handler):  # type: ignore[misc]
        def setup(self) -> None:
            super().setup()
            read = self.current_client.read_response

            def reply(**options: Any) -> Any:
                try:
                    return read(**options)
                except Exception as error:  # an error reply: its handler would hang up after it
                    return error

            self.current_client.read_response = reply
            self.writer.writer = _Patient(self.connection)

        def handle(self) -> None:
            with suppress(OSError):
                super().handle()

    return SteadyServer


class _Patient:
    """Writes all of a reply to a socket that does not block."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def write(self, reply: bytes) -> None:
        """Returns when all of it is sent."""
        left = memoryview(reply)
        while left:
            try:
                left = left[self._connection.send(left) :]
            except BlockingIOError:
                select.select([], [self._connection], [])

    def flush(self) -> None:
        """Nothing is held back."""
