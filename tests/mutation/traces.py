"""The servers of the tests while mutants run: which statements of the scripts they ran, and whether one is busy."""

import re
from pathlib import Path

import redis

from tests.simulation.server import SimulatedServer
from tests.support.server import Server

_TRACE = re.compile(rb"jr_trace (\d+)")


class Traces:
    """The numbers of statements that servers logged since the last call of `take`."""

    def __init__(self) -> None:
        self._read: dict[Path, int] = {}
        self._numbers: set[int] = set()
        self.servers: list[Server] = []
        start, remove = Server.start, Server.remove

        def started(server: Server) -> None:
            if server not in self.servers:
                self.servers.append(server)
            start(server)

        def removed(server: Server) -> None:
            self._read_log(server)
            self.servers.remove(server)
            remove(server)

        def logged(_: SimulatedServer, message: bytes) -> None:
            self._numbers.update(map(int, _TRACE.findall(message)))

        Server.start, Server.remove = started, removed  # type: ignore[method-assign, assignment]
        SimulatedServer.log = logged  # type: ignore[method-assign, assignment]

    def take(self) -> list[int]:
        for server in self.servers:
            self._read_log(server)
        taken, self._numbers = self._numbers, set()
        return sorted(taken)

    def restart(self) -> None:
        """Ends what runs on the servers."""
        for server in self.servers:
            server.kill()
            server.start()

    def restart_busy(self) -> None:
        """Restarts when a server still runs a script without end, of a mutant before: it would refuse the next one, and
        every call of the tests."""
        if any(is_busy(server) for server in self.servers):
            self.restart()

    def _read_log(self, server: Server) -> None:
        path = server.folder / "log"
        if path.exists():
            with path.open("rb") as log:
                log.seek(self._read.get(path, 0))
                text = log.read()
                self._read[path] = log.tell()
            self._numbers.update(map(int, _TRACE.findall(text)))


def is_busy(server: Server) -> bool:
    """Whether a server answers nothing because of a script that runs."""
    with server.connect() as connection:
        try:
            connection.ping()
        except redis.RedisError as error:
            return str(error).startswith("BUSY")
    return False
