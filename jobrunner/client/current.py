"""The client of this process, which `enqueue()` uses when it is told no other."""

import asyncio
import threading
import weakref
from typing import Any

from jobrunner.client.aio import AsyncClient
from jobrunner.client.client import Client

_lock = threading.RLock()
_state: dict[str, Client] = {}
_async_clients: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient]" = weakref.WeakKeyDictionary()


def configure(url: str | None = None, prefix: str | None = None, **options: Any) -> Client:
    """Sets the client of this process and returns it. Nothing is connected yet. Options are those of Client."""
    return use(Client(url, prefix, **options))


def use(client: Client) -> Client:
    """Makes `client` the one of this process; the one before is closed."""
    with _lock:
        before = _state.get("client")
        _state["client"] = client
    if before is not None and before is not client:
        before.close()
    return client


def current_client() -> Client:
    """The client of this process; made with default settings at the first use."""
    with _lock:
        if "client" not in _state:
            _state["client"] = Client()
        return _state["client"]


def current_async_client() -> AsyncClient:
    """The asyncio client of the running event loop, with the settings of the client of this process."""
    loop = asyncio.get_running_loop()
    settings = current_client().settings
    client = _async_clients.get(loop)
    if client is None or client.settings != settings:
        client = _async_clients[loop] = AsyncClient.like(settings)
    return client


def forget() -> None:
    """Closes and forgets the client of this process; the next use makes a new one."""
    with _lock:
        before = _state.pop("client", None)
    if before is not None:
        before.close()
