"""Names of shards. A queue with `partitions` is held by several queues, its shards, each with a hash tag of its own.

The first shard is the queue itself, the others are called `mail@1`, `mail@2`, … `@` is in no name that a user may
choose, so a shard is never taken for another queue. docs/queues.md says what shards are for, decision 51 why.
"""

import re

MOST_SHARDS = 1000
SHARD_SUFFIX = "(?:@[1-9][0-9]{0,2})"
_SHARD = re.compile(r"([^/@]{1,128})@[1-9][0-9]{0,2}")


def shard_name(queue: str, number: int) -> str:
    """The name of one shard of a queue, counted from 0."""
    return f"{queue}@{number}" if number else queue


def whole_queue(name: str) -> str:
    """The queue that a shard is of; the name itself for any other queue."""
    return name.partition("@")[0]


def is_shard(name: str) -> bool:
    """Whether that is a shard other than the first."""
    return _SHARD.fullmatch(name) is not None


def shard_names(queue: str, count: int) -> list[str]:
    """The names of the first shards of a queue."""
    return [shard_name(queue, number) for number in range(count)]
