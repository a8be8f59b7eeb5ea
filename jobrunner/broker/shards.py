"""Names of shards. A queue with `partitions` is held by several queues, its shards, each with a hash tag of its own.

The first shard is the queue itself, the others are called `mail@1`, `mail@2`, … A pipeline is partitioned as a whole:
the shards of its queues that have equal numbers, `orders@1/raw` and `orders@1/clean`, share the tag `orders@1`, so a
move between them is one step. `@` is in no name that a user may choose, so a shard is never taken for another queue.
docs/queues.md says what shards are for, decisions 51 and 54 why.
"""

import re
from collections.abc import Sequence
from zlib import crc32

MOST_SHARDS = 1000
SHARD_SUFFIX = "(?:@[1-9][0-9]{0,2})"
_SHARD = re.compile(rf"[^/@]{{1,128}}{SHARD_SUFFIX}(?:/[^/@]{{1,128}})?")


def shard_name(queue: str, number: int) -> str:
    """The name of one shard of a queue, counted from 0."""
    return _numbered(queue, f"@{number}") if number else queue


def whole_queue(name: str) -> str:
    """The queue that a shard belongs to; for a shard's hash tag the tag of the first shard; any other name
    unchanged."""
    if "@" not in name:
        return name
    pipeline, _, rest = name.partition("@")
    _, slash, queue = rest.partition("/")
    return pipeline + slash + queue


def is_shard(name: str) -> bool:
    """Whether the name is a shard's other than the first, or such a shard's hash tag."""
    return _SHARD.fullmatch(name) is not None


def shard_names(queue: str, count: int) -> list[str]:
    """The names of the first shards of a queue."""
    return [shard_name(queue, number) for number in range(count)]


def shard_of_key(key: str, names: Sequence[str]) -> str:
    """The shard that has all tasks with this partition key; `names` are the shards over which keys are spread."""
    return names[crc32(key.encode()) % len(names)]


def tag_of(name: str) -> str:
    """The hash tag of a queue or shard, by its full name, which must be valid."""
    return name.partition("/")[0]


def in_partition_of(place: str, queue: str) -> str:
    """The shard of a queue with the same number as `place`, a shard or a shard's hash tag. In one pipeline both share a
    slot."""
    _, at, number = tag_of(place).partition("@")
    return _numbered(queue, at + number) if at else queue


def _numbered(queue: str, suffix: str) -> str:
    tag, slash, own = queue.partition("/")
    return f"{tag}{suffix}{slash}{own}"
