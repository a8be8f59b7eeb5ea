"""Serves the dashboard on a socket with uvicorn, until a signal ends it."""

import asyncio
import logging
import socket

import uvicorn

from jobrunner.client.client import Client
from jobrunner.web.app import create_app
from jobrunner.web.connections import Connections, Throttled, limited, room
from jobrunner.web.settings import DashboardSettings


def serve(client: Client, settings: DashboardSettings, listener: socket.socket, *, stops_in_s: int) -> None:
    """Returns when a signal ended it; connections that are open then have `stops_in_s`."""
    app = create_app(
        client,
        auth=settings.auth,
        prefix_path=settings.prefix_path,
        redact=settings.redact,
        actions=not settings.read_only,
        trusted_proxies=settings.trusted_proxy,
        secret=settings.secret,
    )
    limits = room()
    for name in ("uvicorn.error", "asyncio"):  # requests that are no HTTP: strangers must not fill the log
        logging.getLogger(name).setLevel(logging.ERROR)
    config = uvicorn.Config(
        app,
        lifespan="off",
        http=limited(Connections(limits)),
        ws="none",
        backlog=limits.backlog,
        # No line for each request: their addresses have login tokens in them, and whoever asks could fill the log.
        access_log=False,
        log_config=None,
        server_header=False,
        # The peer's address must stay the peer's: any client can write addresses into headers.
        proxy_headers=False,
        timeout_graceful_shutdown=stops_in_s,
    )
    asyncio.run(_run(uvicorn.Server(config), listener))


async def _run(server: uvicorn.Server, listener: socket.socket) -> None:
    asyncio.get_running_loop().set_exception_handler(Throttled())
    await server.serve(sockets=[listener])


def url_of(listener: socket.socket, prefix: str) -> str:
    """The URL of the dashboard for a browser."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{shown}:{port}{prefix}/"
