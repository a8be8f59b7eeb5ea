"""Definitions of the periodic jobs of this process, as they are published."""

from collections.abc import Iterable

import msgspec

from jobrunner.encryption.cipher import PayloadEncryption
from jobrunner.jobs.build import EnqueueOptions, build_task
from jobrunner.jobs.registry import JobDefinition
from jobrunner.periodic import OF_ITS_TASKS, PeriodicDefinition


def published(jobs: Iterable[JobDefinition], seal: PayloadEncryption | None = None) -> dict[str, bytes]:
    """Periodic jobs by name, as they are published; with keys, sealed."""
    found: dict[str, bytes] = {}
    for job in jobs:
        definition = define(job)
        if seal is not None:
            definition.seal = seal.sign_parameters(definition.payload, definition.bound)
        found[job.name] = msgspec.json.encode(definition)
    return found


def define(job: JobDefinition) -> PeriodicDefinition:
    """The definition of a periodic job."""
    periodic = job.periodic
    assert periodic is not None
    task = build_task(job, job.parameters.read(b"{}"), EnqueueOptions())
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
