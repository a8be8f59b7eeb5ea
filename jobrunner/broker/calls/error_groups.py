"""Calls that read the error groups of queues: failed attempts, grouped by error.

A group is a hash. `definition`: five lines: the job, the class of the error, the message, the place in the code, and
the release that reported the error first. `first`, `last`: Unix ms of the first and the last failure. `task`: the id
of an example task. `dead`: the number of its tasks that are dead now. `<n>`: the number of attempts that failed in the
n-th half hour since 1970, kept for a day; `before`: the number of earlier failures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobrunner.broker.call import Call, ScriptCommand, in_slices, text, text_fields
from jobrunner.broker.keys import QueueKeys

BUCKET_MS, BUCKETS_KEPT = 1_800_000, 48
"""The length of a time bucket of a group, and the number of buckets kept."""
QUEUES_AT_ONCE = 100
"""Queues per call. With fewer, pages with hundreds of queues would exceed their limit of fifty commands."""
_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """The stored fields of an error group."""

    id: str
    job: str
    error_type: str
    message: str
    place: str
    release: str
    first_ms: float
    last_ms: float
    task: str
    dead: int
    before: int
    buckets: Mapping[int, int]

    @property
    def count(self) -> int:
        """The total of failed attempts."""
        return self.before + sum(self.buckets.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueErrors:
    """The error groups of a queue. `dead`: the number of all dead tasks of the queue, in a group or not; `problem`: the
    server's error for a queue that cannot be read."""

    dead: int
    groups: tuple[StoredGroup, ...]
    problem: str = ""


def _read(replies: list[Any]) -> list[QueueErrors]:
    return [
        QueueErrors(dead=0, groups=(), problem=text(reply)) if isinstance(reply, bytes) else _queue(*reply)
        for reply in replies
    ]


def _queue(dead: int, *words: Any) -> QueueErrors:
    pairs = zip(words[::2], words[1::2], strict=True)
    return QueueErrors(dead=dead, groups=tuple(_group(text(raw), text_fields(fields), dead) for raw, fields in pairs))


def _group(group_id: str, fields: Mapping[str, str], most: int) -> StoredGroup:
    job, error_type, message, place, release = (fields.get("definition", "").split("\n") + [""] * _LINES)[:_LINES]
    return StoredGroup(
        id=group_id, job=job, error_type=error_type, message=message, place=place, release=release,
        first_ms=_number(fields.get("first")), last_ms=_number(fields.get("last")), task=fields.get("task", ""),
        dead=min(max(int(_number(fields.get("dead"))), 0), most), before=int(_number(fields.get("before"))),
        buckets={int(name): int(_number(many)) for name, many in fields.items() if name.isdecimal()},
    )  # fmt: skip


def _number(word: str | None) -> float:
    """A stored number; 0 for a damaged one."""
    try:
        return float(word or 0)
    except ValueError:
        return 0.0


_groups = ScriptCommand("error_groups", _read)


def error_groups(
    queues: Sequence[QueueKeys], *, group: str = "", brief: bool = False
) -> list[Call[list[QueueErrors]]]:
    """Calls that together read the groups of these queues, in order. `group` selects the group with that id in each
    queue; `brief` leaves out the counts of failed attempts."""
    return [
        _groups.for_each(tuple(one.errors for one in some), group=group, brief=int(brief))
        for some in in_slices(queues, QUEUES_AT_ONCE)
    ]
