"""Definitions of the periodic jobs of this process, as they are published."""

from collections.abc import Iterable

import msgspec

from jobrunner.jobs.build import Placement, build_task
from jobrunner.jobs.registry import JobDefinition
from jobrunner.periodic import OF_ITS_TASKS, PeriodicDefinition


def published(jobs: Iterable[JobDefinition]) -> dict[str, bytes]:
    """Periodic jobs by name, as they are published."""
    return {job.name: msgspec.json.encode(define(job)) for job in jobs}


def define(job: JobDefinition) -> PeriodicDefinition:
    """The definition of a periodic job."""
    periodic = job.periodic
    assert periodic is not None
    task = build_task(job, job.parameters.read(b"{}"), Placement())
    return PeriodicDefinition(
        name=job.name,
        queue=task.queue,
        schedule=periodic.schedule.spec(),
        payload=task.payload,
        catch_up=periodic.catch_up,
        overlap=periodic.overlap,
        jitter=periodic.jitter,
        **{option: getattr(task, option) for option in OF_ITS_TASKS},
    )
