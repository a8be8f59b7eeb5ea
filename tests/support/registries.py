"""Restores the registries of jobs, stations, drivers, pipelines and queues after a test."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobrunner.etl import pipeline
from jobrunner.jobs import declared_queues, job_defaults, registry

_PROJECT = Path(__file__).parents[1]
_JOBS, _STATIONS, _DRIVERS, _PIPELINES, _QUEUES, _SETTINGS = (
    registry._definitions, registry._stations, registry._drivers, pipeline._known, declared_queues._declared,
    declared_queues._of_pipelines,
)  # fmt: skip


def forget_pipelines() -> None:
    """Empties the registry of pipelines until the test ends."""
    for name in list(_PIPELINES):
        pipeline.forget_pipeline(name)


def station_of(queue: str) -> registry.StationDefinition | None:
    """The station of a queue; None without one."""
    return next((one for one in registry.all_stations() if one.queue == queue), None)


@contextmanager
def as_before() -> Iterator[None]:
    """Restores the registries when the block ends.

    Declarations of a project module that was first imported in the block stay, as it is not imported a second time.
    Those of a module that a test wrote end with the test.
    """
    modules = set(sys.modules)
    registries: tuple[dict[str, Any], ...] = (_JOBS, _STATIONS, _DRIVERS, _PIPELINES, _QUEUES, _SETTINGS)
    before = [dict(known) for known in registries]
    try:
        yield
    finally:
        new = _of_modules(_of_project(set(sys.modules) - modules))
        for known, earlier, stays in zip(registries, before, new, strict=True):
            known.clear()
            known.update(earlier | stays)
        job_defaults.forget_defaults()


def _of_project(names: set[str]) -> set[str]:
    files = {name: getattr(sys.modules[name], "__file__", None) or "" for name in names}
    return {name for name, file in files.items() if Path(file).is_relative_to(_PROJECT)}


def _of_modules(new: set[str]) -> tuple[dict[str, Any], ...]:
    """The declarations of these modules, per registry."""

    def is_new(origin: str) -> bool:
        return origin.partition(":")[0] in new

    pipelines = {name: known for name, known in _PIPELINES.items() if is_new(known[0])}
    lines = {node.queue for _, one in pipelines.values() for node in one.graph.nodes}
    return (
        {name: known for name, known in _JOBS.items() if is_new(known.origin)},
        {queue: known for queue, known in _STATIONS.items() if queue in lines or is_new(known.origin)},
        {queue: known for queue, known in _DRIVERS.items() if queue in lines or is_new(known[0])},
        pipelines,
        {queue: known for queue, known in _QUEUES.items() if is_new(known.place)},
        {queue: known for queue, known in _SETTINGS.items() if queue in lines},
    )
