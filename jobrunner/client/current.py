"""The client of this process, which `enqueue()` uses when no other is set."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Unpack

from jobrunner.broker.broker import server_clock
from jobrunner.client.client import OF_WORKER, Client
from jobrunner.settings import ClientOptions

if TYPE_CHECKING:
    from jobrunner.client.async_client import AsyncClient

_lock = threading.RLock()
_state: dict[str, Client] = {}
_pins: "list[tuple[Client, AsyncClient | None]]" = []
_listeners: "list[Callable[[], None]]" = []


def configure(
    url: str | None = None,
    prefix: str | None = None,
    *,
    now_ms: Callable[[], bytes] = server_clock,
    **options: Unpack[ClientOptions],
) -> Client:
    """Sets the client of this process, through which jobs are enqueued, and returns it. Nothing is connected yet.

    Options are those of Client: `durability`, `buffer_tasks`, `payload_keys`, `middleware` and more.
    """
    return use(Client(url, prefix, now_ms=now_ms, **options))


def use(client: Client) -> Client:
    """Makes `client` the client of this process and closes the previous client. No effect while another is pinned."""
    with _lock:
        if _pins:
            return client
        before = _state.get("client")
        _state["client"] = client
    if before is not None and before is not client:
        before.close()
    for listener in _listeners:
        listener()
    return client


def on_use(listener: "Callable[[], None]") -> None:
    """Has `listener` called whenever the client of this process is set. A listener added twice is called once."""
    if listener not in _listeners:
        _listeners.append(listener)


@contextmanager
def within(client: Client) -> Iterator[None]:
    """Makes `client` the current client in this context only: a worker's jobs enqueue through the worker's client."""
    before = OF_WORKER.set(client)
    try:
        yield
    finally:
        OF_WORKER.reset(before)


@contextmanager
def pinned(client: Client, twin: "AsyncClient | None" = None) -> Iterator[None]:
    """Makes `client` the client of this process until the block ends, whatever an application configures meanwhile.

    For tests: restores the previous client afterwards. `twin` is the asyncio client to use with it in any event loop.
    """
    with _lock:
        _pins.append((client, twin))
    try:
        yield
    finally:
        with _lock:
            _pins.remove((client, twin))


def current_client() -> Client:
    """In a job the client of its worker, else that of this process: the one of `configure(…)`, or one with default
    settings, made at first use.

    Jobs enqueue through it. Do not close it, as `with` would. `Client()` in its place takes its server and prefix from
    the environment or pyproject.toml, whatever `configure` or the worker's `--url` name.
    """
    if (client := OF_WORKER.get(None)) is not None:
        return client
    if not _pins and (client := _state.get("client")) is not None:
        return client
    with _lock:
        if _pins:
            return _pins[-1][0]
        if "client" not in _state:
            _state["client"] = Client()
        return _state["client"]


def pinned_twin(client: Client) -> "AsyncClient | None":
    """The asyncio client that was pinned with `client`."""
    return next((twin for pin, twin in reversed(_pins) if pin is client and twin is not None), None)


def configured_client() -> Client | None:
    """The client of this context, else of this process, ignoring pinned clients; None when none is configured."""
    return OF_WORKER.get(None) or _state.get("client")


def forget() -> None:
    """Closes and forgets the client of this process; the next use makes a new one."""
    with _lock:
        before = _state.pop("client", None)
    if before is not None:
        before.close()
