"""From a job with its parameters to the task that is sent."""

import hashlib
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from jobrunner.broker.keys import check_id, split_queue
from jobrunner.client.call_ids import sending_of
from jobrunner.client.item import LONGEST_KEY
from jobrunner.jobs.registry import JobDefinition
from jobrunner.settings import Duration
from jobrunner.task import Task, check_priority, due, new_id


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when one task goes, as told at enqueueing; None means: as its job says."""

    in_: Duration | None = None
    at: datetime | float | None = None
    priority: int | None = None
    queue: str | None = None
    id: str | None = None
    wait: Duration = 0
    """How long to wait for room in a full queue."""


KEPT_S = 10.0
"""As long as lua/lib/enqueue_call.lua keeps its notes."""
NOW = Placement()
OPTIONS = Placement.__struct_fields__
"""Names of what is said at enqueueing."""


def build_task(definition: JobDefinition, values: Any, placement: Placement) -> Task:
    """The task of a job with these parameters. Raises the errors of a wrong parameter, option or name."""
    options = definition.options
    queue = placement.queue if placement.queue is not None else options.queue
    delay_ms, at_ms = due(placement.in_, placement.at)
    priority = check_priority(placement.priority)
    return Task(
        id=new_id(_tag_of(queue)) if placement.id is None else check_id(placement.id),
        queue=queue,
        type=definition.name,
        payload=definition.parameters.write(values),
        priority=options.priority if priority is None else priority,
        delay_ms=delay_ms,
        at_ms=at_ms,
        keepalive_ms=_ms(options.keepalive),
        max_attempts=options.max_attempts,
        max_stalled=options.max_stalled,
        expires_in_ms=_ms(options.expires_in),
        key=None if options.partition_by is None else key_of(getattr(values, options.partition_by)),
        lock=None if options.unique is None else options.unique.lock(definition.name, values),
        is_kept=placement.id is None and options.result_ttl >= KEPT_S,
        sending="" if placement.id is None else sending_of(queue, placement.id),
    )


def key_of(value: Any) -> str | None:
    """The value of a parameter as the key of its task: text, or JSON, or the digest of what is long. None is no key."""
    if value is None:
        return None
    text = value if isinstance(value, str) else msgspec.json.encode(value, order="deterministic").decode()
    return text if 1 <= len(text) <= LONGEST_KEY else hashlib.sha256(text.encode()).hexdigest()


def _tag_of(queue: object) -> str:
    return _tag_of_name(queue) if isinstance(queue, str) else split_queue(queue)[0]


@lru_cache(maxsize=1024)
def _tag_of_name(queue: str) -> str:
    return split_queue(queue)[0]


def _ms(length_s: float | None) -> int | None:
    return None if length_s is None else max(round(length_s * 1000), 1)
