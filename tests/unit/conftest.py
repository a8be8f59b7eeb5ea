"""Coroutines in tests that are written for threads."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest


@pytest.fixture
def on_loop() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """on_loop(coroutine): its value, from any thread. All of a test run on one event loop, in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)
    asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
    loop.close()
