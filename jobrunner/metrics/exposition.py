"""The text that Prometheus reads. All processes of a prefix show the same numbers: scrape one of them."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from jobrunner.client.client import Client
from jobrunner.errors import ServerError
from jobrunner.metrics.families import families
from jobrunner.metrics.reading import take

CONTENT_TYPE = CONTENT_TYPE_LATEST
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

    async def app(scope: Mapping[str, Any], _receive: Callable[[], Awaitable[Any]], send: Send) -> None:
        import asyncio

        if scope["type"] != "http":
            return
        status, body = await asyncio.to_thread(answer, client)
        kind = CONTENT_TYPE if status == 200 else "text/plain; charset=utf-8"
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def answer(client: Client) -> tuple[int, bytes]:
    """Status and body of a scrape."""
    try:
        return 200, render(client)
    except ServerError as error:
        return 503, f"{error}\n".encode()
