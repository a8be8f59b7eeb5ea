"""Serves the dashboard on a socket with uvicorn, until a signal ends it, with limits on idle and slow connections.

The limits are for a dashboard without a reverse proxy that would set them. The head of a request must arrive within ten
seconds after the start of the connection, or after the previous answer. When there are too many connections, of one
site or in all, the longest silent one without a request in progress is closed: so a new request is always accepted,
however many connections others hold, and the process does not run out of descriptors.
"""

import asyncio
import logging
import resource
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from jobrunner.client.client import Client
from jobrunner.clock import monotonic
from jobrunner.web.addresses import site_of
from jobrunner.web.app import create_app
from jobrunner.web.live import LiveUpdates
from jobrunner.web.settings import DashboardSettings

HEAD_S = 10.0
STALLED_S = 30.0
_MOST = 1000
_MOST_OF_SITE = 100
_BACKLOG = 128
_LOGGED_AGAIN_S = 60.0
_log = logging.getLogger("jobrunner.web")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The most connections in all, the most silent connections of one site, and the length of the accept queue."""

    most: int
    most_of_site: int
    backlog: int


def room() -> ConnectionLimits:
    """Limits for half of the file descriptors of this process, as connections to Redis and files need some, too.

    The limit is raised towards the hard one first. Up to `backlog` connections are accepted before any can be closed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * _MOST
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    files = wanted if soft == resource.RLIM_INFINITY else soft
    most = max(min(_MOST, files // 2), 16)
    return ConnectionLimits(most, max(min(_MOST_OF_SITE, most // 2), 8), max(min(_BACKLOG, files // 8), 8))


class Connections:
    """All connections of one server; connections without a request are in the order in which they fell silent."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._room = limits
        self._silent: dict[LimitedProtocol, str] = {}
        self._of_site: Counter[str] = Counter()
        self._all: set[LimitedProtocol] = set()

    def opened(self, one: "LimitedProtocol", site: str) -> None:
        """Records a new connection, and closes the longest silent one when there are too many."""
        self._all.add(one)
        self.silent(one, site)
        if self._of_site[site] > self._room.most_of_site:
            self._close(next(other for other, at in self._silent.items() if at == site))
        elif len(self._all) > self._room.most and self._silent:
            self._close(next(iter(self._silent)))

    def silent(self, one: "LimitedProtocol", site: str) -> None:
        """Records that a connection waits for a request."""
        if one in self._all and one not in self._silent:
            self._silent[one] = site
            self._of_site[site] += 1

    def busy(self, one: "LimitedProtocol") -> None:
        """Records that the request of a connection is being answered."""
        site = self._silent.pop(one, None)
        if site is not None:
            self._of_site[site] -= 1
            if not self._of_site[site]:
                del self._of_site[site]

    def closed(self, one: "LimitedProtocol") -> None:
        """Records the end of a connection."""
        self.busy(one)
        self._all.discard(one)

    def _close(self, one: "LimitedProtocol") -> None:
        self.closed(one)
        one.transport.abort()


class LimitedProtocol(H11Protocol):
    """Uvicorn's HTTP/1.1 protocol with the limits above. `limited(connections)` creates the class for one server."""

    connections_of_server: Connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the time limit for the head of the first request."""
        super().connection_made(transport)
        self._site = site_of(self.client[0] if self.client else "")
        self._waits: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._wait()
        self.connections_of_server.opened(self, self._site)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the time limits of the connection."""
        self._cancel()
        self.connections_of_server.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Cancels the time limit when the data completes a head."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete and not self.transport.is_closing():
            self._cancel_wait()
            self.connections_of_server.busy(self)

    def on_response_complete(self) -> None:
        """Starts the time limit for the head of the next request."""
        finished = self.cycle
        super().on_response_complete()  # begins the next request, if it has arrived already
        if self.cycle is finished and not self.transport.is_closing():
            self._wait()
            self.connections_of_server.silent(self, self._site)

    def send_400_response(self, msg: str) -> None:
        """Answers a request that is not HTTP, with the header that keeps a browser from guessing a content type."""
        head = "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nx-content-type-options: nosniff\r\n"
        self.transport.write(f"{head}content-length: {len(msg)}\r\nconnection: close\r\n\r\n{msg}".encode())
        self.transport.close()

    def pause_writing(self) -> None:
        """Closes the connection of a client that does not read for half a minute."""
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancels the time limit of a client that reads again."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _wait(self) -> None:
        self._cancel_wait()
        self._waits = self.loop.call_later(HEAD_S, self.transport.abort)

    def _cancel_wait(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def _cancel(self) -> None:
        self._cancel_wait()
        if self._stalled is not None:
            self._stalled.cancel()


def limited(connections: Connections) -> type[LimitedProtocol]:
    """The protocol class of one server."""
    return type("LimitedProtocol", (LimitedProtocol,), {"connections_of_server": connections})


class Throttled:
    """An exception handler for an event loop that logs a recurring error (no descriptors left) once a minute."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}

    def __call__(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Logs the error in one line, unless the same one was logged within the last minute."""
        error = context.get("exception")
        text = f"{context.get('message', '')}: {type(error).__name__}: {error}"
        now = monotonic()
        if now - self._logged.get(text, -_LOGGED_AGAIN_S) < _LOGGED_AGAIN_S:
            return
        if len(self._logged) > 100:
            self._logged.clear()
        self._logged[text] = now
        _log.error("the event loop of the dashboard: %s", text)


class DashboardServer(uvicorn.Server):
    """Uvicorn's server for a dashboard. Its shutdown is silent and prompt, also with open tabs:

    1. SIGHUP (the terminal is gone) ends it as SIGTERM does, unless SIGHUP is ignored;
    2. it ends the event streams of tabs first, which never end by themselves, as uvicorn would wait for them;
    3. answers that exceed its waiting time are cut off, without a traceback in the log.
    """

    def __init__(self, config: uvicorn.Config, live: LiveUpdates) -> None:
        super().__init__(config)
        self._live = live

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles the signals that end the server; uvicorn raises them again for the caller when it has ended."""
        former = signal.getsignal(signal.SIGHUP)
        with super().capture_signals():
            if former is not signal.SIG_IGN:
                signal.signal(signal.SIGHUP, self.handle_exit)
            try:
                yield
            finally:
                signal.signal(signal.SIGHUP, former)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the event streams, then shuts down as uvicorn does."""
        self._live.end()
        logging.getLogger("uvicorn.error").addFilter(_was_not_cancelled)
        await super().shutdown(sockets)


def _was_not_cancelled(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def serve(client: Client, settings: DashboardSettings, listener: socket.socket, *, stops_in_s: int) -> None:
    """Serves until a signal arrives; open connections then have `stops_in_s` to end."""
    app = create_app(
        client,
        auth=settings.auth,
        prefix_path=settings.prefix_path,
        redact=settings.redact,
        actions=not settings.read_only,
        trusted_proxies=settings.trusted_proxy,
        secret=settings.secret,
        alerts=settings.alerts,
    )
    limits = room()
    for name in ("uvicorn.error", "asyncio"):  # requests that are no HTTP: unknown clients must not fill the log
        logging.getLogger(name).setLevel(logging.ERROR)
    config = uvicorn.Config(
        app,
        lifespan="off",
        http=limited(Connections(limits)),
        ws="none",
        backlog=limits.backlog,
        # No line for each request: URLs contain login tokens, and any client could fill the log.
        access_log=False,
        log_config=None,
        server_header=False,
        # The peer's address must not come from headers, as any client can set them.
        proxy_headers=False,
        timeout_graceful_shutdown=stops_in_s,
    )
    asyncio.run(_run(DashboardServer(config, app.state.dashboard.live), listener))


async def _run(server: uvicorn.Server, listener: socket.socket) -> None:
    asyncio.get_running_loop().set_exception_handler(Throttled())
    await server.serve(sockets=[listener])


def url_of(listener: socket.socket, prefix: str) -> str:
    """The URL of the dashboard for a browser."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{shown}:{port}{prefix}/"
