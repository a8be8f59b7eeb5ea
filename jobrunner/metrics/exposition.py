"""The text that Prometheus reads. All processes of a prefix show the same numbers: scrape one of them."""

import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from jobrunner.client.client import Client
from jobrunner.clock import monotonic
from jobrunner.errors import ServerError
from jobrunner.metrics.families import families
from jobrunner.metrics.reading import take

CONTENT_TYPE = CONTENT_TYPE_LATEST
_LONG_S, _REST = 0.25, 4
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Mapping[str, Any], Callable[[], Awaitable[Any]], Send], Awaitable[None]]


class JobrunnerCollector(Collector):
    """For programs that expose a registry of their own: `REGISTRY.register(JobrunnerCollector(client))`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def collect(self) -> Iterator[Metric]:
        """Reads the server and yields every metric. Raises ServerError."""
        return families(take(self._client))

    def describe(self) -> list[Metric]:
        """Nothing, so that registering reads nothing."""
        return []


def render(client: Client) -> bytes:
    """All metrics in Prometheus' text format. Raises ServerError."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(JobrunnerCollector(client))
    return generate_latest(registry)


def metrics_app(client: Client) -> AsgiApp:
    """An ASGI application that answers with the metrics, or with 503 while the server is away."""

    scrapes = Scrapes(client)

    async def app(scope: Mapping[str, Any], _receive: Callable[[], Awaitable[Any]], send: Send) -> None:
        import asyncio

        if scope["type"] != "http":
            return
        status, body = await asyncio.to_thread(scrapes.answer)
        kind = CONTENT_TYPE if status == 200 else "text/plain; charset=utf-8"
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


class Scrapes:
    """Answers scrapes, one after the other. With many thousands of queues a reading takes a while: it then serves for
    four times as long, so that scrapes take a fifth of the time at most, however many scrape."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._last = b""
        self._lasts_until = float("-inf")

    def answer(self) -> tuple[int, bytes]:
        """Status and body of a scrape."""
        with self._lock:
            if (began := monotonic()) >= self._lasts_until:
                try:
                    self._last = render(self._client)
                except ServerError as error:
                    return 503, f"{error}\n".encode()
                took_s = monotonic() - began
                self._lasts_until = monotonic() + (took_s * _REST if took_s > _LONG_S else 0.0)
            return 200, self._last
