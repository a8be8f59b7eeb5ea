"""Lists of tasks: rows without payloads for tables, and full records. Reads only."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from jobrunner.broker.call import Call
from jobrunner.broker.calls.search import SearchChunk, search_state
from jobrunner.client.client import Client
from jobrunner.client.internals import keys_of
from jobrunner.clock import from_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPosition:
    """A task and where it stands: `score` is its due time, the end of its lease or its death (Unix ms), by state."""

    queue: str
    state: str
    id: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task as one row of a list."""

    id: str
    type: str
    queue: str
    state: str
    when: datetime | None
    """Due time, end of lease or time of death, by state; None for one that waits."""
    attempt: int
    """Which try runs or is next; of a dead task the last one."""
    started: datetime | None
    """Known of queues that keep history."""
    enqueued: datetime
    error: str
    """The line of the last error that says most."""


def first_lines(client: Client, queue: str, state: str, *, count: int, newest: bool = False) -> Call[list[TaskRow]]:
    """The lines of up to `count` tasks of one state in one command, first in line first; with `newest` of the last
    ones, the last one first. Those that are damaged are left out."""

    hide = client.redaction().text

    def read(sifted: SearchChunk) -> list[TaskRow]:
        return [
            line_of(TaskPosition(queue=queue, state=state, id=task_id, score=score), fields, hide)
            for task_id, score, fields in sifted.tasks
        ]

    found = search_state(keys_of(client).queue(queue), state, start=0, count=count, most=count, newest=newest)
    return replace(found, read=lambda reply: read(found.read(reply)))  # type: ignore[arg-type]


def last_line(error: str) -> str:
    """The summary of an error: the last line of a traceback, else the first line."""
    lines = error.strip().splitlines()
    if not lines:
        return ""
    return lines[-1].strip() if lines[0].startswith("Traceback") else lines[0].strip()


def line_of(place: TaskPosition, fields: dict[str, str], hide: Callable[[str], str]) -> TaskRow:
    """`hide` redacts the error."""
    failures = int(_number(fields["retry_count"]) or 0)
    return TaskRow(
        id=place.id,
        type=fields["type"],
        queue=place.queue,
        state=place.state,
        when=from_ms(place.score) if place.state != "waiting" else None,
        attempt=failures + (place.state != "dead"),
        started=_instant(fields["started_at"]),
        enqueued=_instant(fields["enqueue_time"]) or from_ms(0),
        error=hide(last_line(fields["error"])),
    )


def _instant(text: str) -> datetime | None:
    number = _number(text)
    try:
        return None if number is None else from_ms(number)
    except (ValueError, OverflowError, OSError):  # damage
        return None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
