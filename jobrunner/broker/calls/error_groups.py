"""Calls that read the groups of failed attempts of queues.

A group is a hash. `definition`: five lines, of its job, the class of the error, the message, the place in the code, and
the release that reported it first. `first`, `last`: when it was first and last seen, Unix ms. `task`: the id of a task
as an example. `dead`: how many of its tasks are dead now. `<n>`: how many attempts failed in the n-th half hour since
1970, for a day; `before`: how many failed before that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobrunner.broker.call import Call, ScriptCommand, in_slices, text, text_fields
from jobrunner.broker.keys import QueueKeys

BUCKET_MS, BUCKETS_KEPT = 1_800_000, 48
"""The length of a step of the counts of a group, and for how many steps they are kept."""
QUEUES_AT_ONCE = 100
"""Queues of one call. Fewer would cost pages with hundreds of queues more than their fifty commands."""
_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A group as the server has it."""

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
        """All attempts that were counted."""
        return self.before + sum(self.buckets.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueErrors:
    """The groups of a queue, and how many of its tasks are dead, in a group or not. `problem`: the server's error for a
    queue that cannot be read."""

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
    """A number of the server; 0 for damage."""
    try:
        return float(word or 0)
    except ValueError:
        return 0.0


_groups = ScriptCommand("error_groups", _read)


def error_groups(
    queues: Sequence[QueueKeys], *, group: str = "", brief: bool = False
) -> list[Call[list[QueueErrors]]]:
    """Calls that together read the groups of these queues, in order; with `group` only that one of each, with `brief`
    without their counts of failed attempts."""
    return [
        _groups.for_each(tuple(one.errors for one in some), group=group, brief=int(brief))
        for some in in_slices(queues, QUEUES_AT_ONCE)
    ]
