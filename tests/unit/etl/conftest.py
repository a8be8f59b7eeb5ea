"""A pipeline, and items at a station without a worker."""

from collections.abc import Callable
from typing import Any

import pytest

from jobrunner.attempt import Attempt
from jobrunner.client.client import broker_of, keys_of
from jobrunner.codec import encode
from jobrunner.etl.pipeline import Pipeline
from jobrunner.jobs.progress_notes import ProgressNotes
from jobrunner.jobs.running_task import JobRun
from tests.support.registries import forget_pipelines, station_of


@pytest.fixture(autouse=True)
def _no_other_pipelines() -> None:
    """Modules that other tests import declare some."""
    forget_pipelines()


@pytest.fixture
def orders() -> Pipeline:
    """A pipeline without stations."""
    return Pipeline("orders")


@pytest.fixture
def visit(current: Any) -> Callable[..., Any]:
    """visit("orders/raw", payload): the outcome of an item with that payload at that station."""

    def run(queue: str, payload: Any = None, **fields: Any) -> Any:
        definition = station_of(queue)
        assert definition is not None
        broker = broker_of(current)
        attempt = Attempt(
            queue, "id-1", "7", 2000.0, 1000.0, "", encode(payload, what="payload"), 1, 0, 1000.0, 5,
            fields.get("headers"), b"json",
        )  # fmt: skip
        notes, keys = ProgressNotes(broker), keys_of(current)
        run = JobRun(attempt, definition.name, broker, keys, notes, lambda token: False)
        return definition.build(attempt, run).run()

    return run
