"""A server that takes no writes, as one whose disk is full: its last snapshot failed."""

from pathlib import Path

import redis

from tests.support.server import Server
from tests.support.waiting import wait_for

OPTIONS = {"save": "3600 1000000", "dbfilename": "snapshot"}
"""Of the server: one without points at which it saves takes writes all the same."""


def fill(server: Server) -> None:
    """Makes the server refuse writes, and PING."""
    (server.folder / OPTIONS["dbfilename"]).mkdir()  # a file cannot take its name: whoever runs the tests, it fails
    _save(server)


def free(server: Server) -> None:
    """Makes the server accept writes again."""
    Path(server.folder, OPTIONS["dbfilename"]).rmdir()
    _save(server)


def _save(server: Server) -> None:
    with server.connect() as raw:
        raw.execute_command("BGSAVE")
        wait_for(lambda: not _persistence(raw)["rdb_bgsave_in_progress"])


def _persistence(raw: redis.Redis) -> dict[str, int | str]:
    found: dict[str, int | str] = raw.info("persistence")
    return found
