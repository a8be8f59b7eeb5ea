"""An attempt: one try at a task, under a lease. Built for every task that is handed out, so it is kept small."""

from datetime import datetime
from typing import Any

import msgspec

from jobrunner.clock import from_ms


class Attempt(msgspec.Struct, gc=False):
    """A task in a worker's hands. Numbers come from the server; `number` is 1 on the first try."""

    queue: str
    id: str
    token: str
    deadline_ms: float
    keepalive_ms: float
    type: str
    payload: bytes | None
    number: int
    retry_count: int
    enqueue_time_ms: float
    max_attempts: int | None
    headers: bytes | None
    encoding: bytes | None = None

    @property
    def deadline(self) -> datetime:
        """When the lease ended as it was handed out; renewal moves it on."""
        return from_ms(self.deadline_ms)

    @property
    def enqueue_time(self) -> datetime:
        """When the task was first enqueued."""
        return from_ms(self.enqueue_time_ms)


def read_attempt(queue: str, token: str, raw: list[Any]) -> Attempt:
    """The attempt of one lease in the reply of lua/reserve.lua. Damaged numbers read as zero, never as an error."""
    task_id, deadline, keepalive, type_, payload, number, retry_count, enqueue_time, max_attempts = raw[:9]
    return Attempt(
        queue,
        task_id.decode(),
        token,
        float(deadline),
        float(keepalive),
        type_.decode("utf-8", "replace") if type_ else "",
        payload,
        number,
        _whole(retry_count) or 0,
        _decimal(enqueue_time),
        _whole(max_attempts) if max_attempts is not None else None,
        raw[9],
        raw[10],
    )


def _whole(raw: bytes | None) -> int | None:
    try:
        return int(raw or 0)
    except ValueError:
        return None


def _decimal(raw: bytes | None) -> float:
    try:
        return float(raw or 0)
    except ValueError:
        return 0.0
