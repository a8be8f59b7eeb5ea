"""Both drivers behind one interface: a test through `connect` runs for threads and for asyncio."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from jobrunner.broker.async_broker import AsyncBroker
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.connect import Endpoint


class Awaited:
    """An AsyncBroker behind the face of a Broker."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._broker = AsyncBroker(*args, **options)

    def run(self, call: Call[Any]) -> Any:
        return self._runner.run(self._broker.run(call))

    def run_many(self, calls: Sequence[Call[Any]]) -> list[Any]:
        return self._runner.run(self._broker.run_many(calls))

    def run_each(self, calls: Sequence[Call[Any]]) -> list[Any]:
        return self._runner.run(self._broker.run_each(calls))

    def write(self, calls: Sequence[Call[Any]]) -> list[Any]:
        return self._runner.run(self._broker.write(calls))

    def close(self) -> None:
        self._runner.run(self._broker.close())


@pytest.fixture(params=[Broker, Awaited], ids=["threads", "asyncio"])
def connect(request, clock) -> Iterator[Callable[..., Any]]:
    """connect(url): a driver; connect(url, retry_timeout_s=0, timeout_s=0.2)."""
    made = []

    def make(url: str, *, timeout_s: float = 5.0, **options: Any) -> Any:
        made.append(request.param(Endpoint(url, timeout_s=timeout_s), now_ms=clock, **options))
        return made[-1]

    yield make
    for driver in made:
        driver.close()


@pytest.fixture
def mail(keys):
    return keys.queue("mail")
