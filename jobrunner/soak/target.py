"""Where a soak is played: a server of its own in a folder, or the user's; a prefix of its own; ways that lead there.

What must hold: nothing is written outside the prefix, and on a server of somebody else nothing is done but to it.
"""

import os
import secrets
import signal
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit, urlunsplit

from jobrunner.broker.embedded.server import EmbeddedServer
from jobrunner.clock import monotonic, sleep
from jobrunner.soak.fault_proxy import FaultProxy, Target


def fresh_prefix(stem: str | None = None) -> str:
    """A prefix that nobody uses: `soak-…`, or `<stem>-soak-…`."""
    name = f"soak-{secrets.token_hex(5)}"
    return name if stem is None else f"{stem}-{name}"


class OwnServer:
    """A private server whose file is written through (AOF always), so that what it acknowledged survives kill -9."""

    def __init__(self, folder: Path) -> None:
        self.url = f"embedded://{folder}"
        self._server = EmbeddedServer(folder, fsync="always")
        self.socket = self._server.acquire()

    def kill(self, away_s: float) -> tuple[float, float]:
        """kill -9, and up again after at least so long, unless a client brings it back before; when that was."""
        pid = self._server.status().pid
        began = monotonic()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        sleep(away_s)
        self._server.ensure()
        return began, monotonic()

    def remove(self) -> None:
        """Stops it whoever uses it."""
        with suppress(Exception):
            self._server.stop()
        self._server.release()


def target_of(url: str) -> Target | None:
    """Where a plain URL leads to; None for one that a proxy cannot stand in for: TLS, Sentinel, a cluster."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return Path(parts.path)
    if parts.scheme == "redis":
        return parts.hostname or "localhost", parts.port or 6379
    return None


def url_through(cable: FaultProxy, url: str) -> str:
    """The same URL on another way: user, password and database stay."""
    parts = urlsplit(url)
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    path = parts.path
    if parts.scheme == "unix":
        path = f"/{parse_qs(parts.query).get('db', ['0'])[0]}"
    query = "" if parts.scheme == "unix" else parts.query
    return urlunsplit(("redis", f"{user}127.0.0.1:{cable.port}", path, query, ""))
