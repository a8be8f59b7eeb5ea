"""The server of a soak: a private one in a folder, or the user's; a fresh prefix; URLs that lead there.

Invariant: nothing is written outside the prefix, and on the user's server nothing outside the prefix is touched.
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
    """An unused prefix: `soak-…`, or `<stem>-soak-…`."""
    name = f"soak-{secrets.token_hex(5)}"
    return name if stem is None else f"{stem}-{name}"


class OwnServer:
    """A private server that syncs its file at every write (AOF always), so that acknowledged writes survive kill -9."""

    def __init__(self, folder: Path) -> None:
        self.url = f"embedded://{folder}"
        self._server = EmbeddedServer(folder, fsync="always")
        self.socket = self._server.acquire()

    def kill(self, away_s: float) -> tuple[float, float]:
        """Kills the server with SIGKILL and starts it after `away_s` seconds, unless a client starts it before. Returns
        the instants of both."""
        pid = self._server.status().pid
        began = monotonic()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        sleep(away_s)
        self._server.ensure()
        return began, monotonic()

    def remove(self) -> None:
        """Stops the server, also while it is in use."""
        with suppress(Exception):
            self._server.stop()
        self._server.release()


def target_of(url: str) -> Target | None:
    """The address of a plain URL; None for one that the proxy cannot replace: TLS, Sentinel, a cluster."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return Path(parts.path)
    if parts.scheme == "redis":
        return parts.hostname or "localhost", parts.port or 6379
    return None


def url_through(cable: FaultProxy, url: str) -> str:
    """The same URL through the proxy: user, password and database stay."""
    parts = urlsplit(url)
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    path = parts.path
    if parts.scheme == "unix":
        path = f"/{parse_qs(parts.query).get('db', ['0'])[0]}"
    query = "" if parts.scheme == "unix" else parts.query
    return urlunsplit(("redis", f"{user}127.0.0.1:{cable.port}", path, query, ""))
