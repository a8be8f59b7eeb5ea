"""Both clients behind one interface: a test through `way` runs for threads and for asyncio."""

import inspect
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self

import pytest

from jobrunner.broker.keys import Keys
from jobrunner.client.async_client import AsyncClient
from jobrunner.client.client import Client, broker_of
from tests.reliability.proxy import Proxy

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Awaited:
    """Gives an asyncio object the interface of its blocking twin: results are awaited on the test's event loop."""

    def __init__(self, real: Any, on_loop: Run) -> None:
        self.real = real
        self._on_loop = on_loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.real, name)
        if not callable(found):
            return found
        return lambda *given, **named: self._call(found, given, named)

    def __enter__(self) -> Self:
        self._on_loop(self.real.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._on_loop(self.real.__aexit__(kind, error, trace))

    def _call(self, found: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        answer = found(*map(_bare, given), **{name: _bare(value) for name, value in named.items()})
        return self._faced(self._on_loop(answer) if inspect.iscoroutine(answer) else answer)

    def _faced(self, answer: Any) -> Any:
        if isinstance(answer, list):
            return [self._faced(one) for one in answer]
        return Awaited(answer, self._on_loop) if type(answer).__name__.startswith("Async") else answer


def _bare(given: Any) -> Any:
    if isinstance(given, list):
        return [_bare(one) for one in given]
    return given.real if isinstance(given, Awaited) else given


@pytest.fixture
def proxy(server: Any) -> Iterator[Proxy]:
    """A way to the server that can lose replies; on a cluster it leads to one server only."""
    laid = Proxy(server.socket)
    yield laid
    laid.close()


@pytest.fixture(params=["threads", "asyncio"])
def way(request: pytest.FixtureRequest, client: Client, clock: Any, on_loop: Run) -> Iterator[Any]:
    """A client for threads, and one for asyncio with the same face, on the test's server, prefix and clock."""
    if request.param == "threads":
        yield client
        return
    with Awaited(AsyncClient(client.settings.url, client.settings.prefix, now_ms=clock), on_loop) as faced:
        yield faced


@pytest.fixture
def trips(way: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many calls each round trip of the client carried, from now on."""
    carried: list[int] = []
    broker = broker_of(way.real) if isinstance(way, Awaited) else broker_of(way)
    replies = broker._replies

    def count(calls: Any, *meanwhile: Any) -> Any:
        carried.append(len(calls))
        return replies(calls, *meanwhile)

    monkeypatch.setattr(broker, "_replies", count)
    return carried


@pytest.fixture
def mail(keys: Keys) -> Any:
    """The keys of the queue mail."""
    return keys.queue("mail")
