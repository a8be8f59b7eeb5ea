"""Queues and tasks for the tests of commands."""

from collections.abc import Iterator
from typing import Any

import pytest

from jobrunner.jobs.decorator import job
from jobrunner.jobs.registry import forget


@pytest.fixture
def add() -> Iterator[Any]:
    """A job `add` on the queue `maths`."""

    @job(queue="maths", max_attempts=1)
    def add(x: int, y: int = 0) -> int:
        return x + y

    yield add
    forget("add")
