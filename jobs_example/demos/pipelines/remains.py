"""The keys and items that the server still holds of the pipeline at the end."""

from collections.abc import Iterator
from dataclasses import dataclass

from jobrunner import Client
from jobrunner.broker.call import command
from jobrunner.client.client import broker_of, keys_of
from jobrunner.etl import Pipeline

_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """Of one pipeline."""

    open: int
    """Items that are waiting, scheduled or pending."""
    dead: dict[str, str]
    """Id and error of each dead item."""
    staged: tuple[str, ...]
    """Keys of a batch that has not ended: its members, rows, manifest; none when all is done."""
    items: int
    """Items the server knows in any way, the dead among them."""


def remains(client: Client, pipeline: Pipeline) -> Remains:
    """Reads every queue and every key of the pipeline."""
    queues = [client.queue(node.queue) for node in pipeline.graph.nodes]
    counts = [queue.counts() for queue in queues]
    base = keys_of(client).tag_base(pipeline.name)
    return Remains(
        open=sum(count[state] for count in counts for state in ("waiting", "scheduled", "pending")),
        dead={task.id: task.error for queue in queues for task in queue.tasks("dead", limit=_AT_ONCE)},
        staged=tuple(
            key.removeprefix(base).decode()
            for pattern in (b"batch:*:*", b"*:batches", b"*:finishing")
            for key in _keys(client, base + pattern)
        ),
        items=sum(1 for _ in _keys(client, base + b"task:*")),
    )


def _keys(client: Client, pattern: bytes) -> Iterator[bytes]:
    cursor = b"0"
    while True:
        cursor, found = broker_of(client).run(command("SCAN", cursor, "MATCH", pattern, "COUNT", _AT_ONCE, read=list))
        yield from found
        if cursor == b"0":
            return
