"""Definitions of periodic jobs, published so that a leader that does not know the job fires it too."""

from typing import Any

import msgspec

from jobrunner.errors import JobrunnerError
from jobrunner.jobs.build import Placement, build_task
from jobrunner.jobs.registry import JobDefinition, all_jobs
from jobrunner.schedule import CatchUp, Schedule, parse_catch_up, parse_spec


class PeriodicDefinition(msgspec.Struct, kw_only=True):
    """One periodic job as published: its schedule, and the task that a tick makes."""

    name: str
    queue: str
    schedule: dict[str, str | float]
    payload: bytes
    catch_up: CatchUp
    overlap: str
    jitter: float
    priority: int | None = None
    keepalive_ms: int | None = None
    max_attempts: int | None = None
    expires_in_ms: int | None = None

    def parsed(self) -> Schedule:
        """The schedule. Raises InvalidOption when it is damaged."""
        return parse_spec(self.schedule)


def local_definitions() -> dict[str, bytes]:
    """The periodic jobs of this process, by name, as they are published."""
    return {job.name: msgspec.json.encode(define(job)) for job in all_jobs() if job.periodic is not None}


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
        priority=task.priority,
        keepalive_ms=task.keepalive_ms,
        max_attempts=task.max_attempts,
        expires_in_ms=task.expires_in_ms,
    )


def read_definition(raw: bytes) -> PeriodicDefinition | None:
    """A published definition; None for a damaged one."""
    try:
        definition: Any = msgspec.json.decode(raw, type=PeriodicDefinition)
        definition.parsed()
        parse_catch_up(definition.catch_up)
    except (msgspec.MsgspecError, JobrunnerError, ValueError):
        return None
    return definition  # type: ignore[no-any-return]
