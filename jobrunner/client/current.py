"""The client of this process, which `enqueue()` uses when it is told no other."""

import asyncio
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jobrunner.client.aio import AsyncClient
from jobrunner.client.client import Client

_lock = threading.RLock()
_state: dict[str, Client] = {}
_here: ContextVar[Client] = ContextVar("jobrunner_client")
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


@contextmanager
def within(client: Client) -> Iterator[None]:
    """Makes `client` the current one in this context only: a worker's jobs enqueue where the worker takes from."""
    before = _here.set(client)
    try:
        yield
    finally:
        _here.reset(before)


def current_client() -> Client:
    """The client of the worker whose job this is, else of this process; made with default settings at the first use."""
    if (client := _here.get(None)) is not None:
        return client
    with _lock:
        if "client" not in _state:
            _state["client"] = Client()
        return _state["client"]


def current_async_client() -> AsyncClient:
    """The asyncio client of the running event loop, with the settings of the current client."""
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
