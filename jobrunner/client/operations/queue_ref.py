"""The reference to a queue that operations work on, and the tasks made of pushed items."""

from jobrunner.broker.keys import Keys, QueueKeys, check_id
from jobrunner.client.call_ids import sending_of
from jobrunner.client.item import Item, check_partition, write_headers, write_payload
from jobrunner.errors import InvalidName, UsageError
from jobrunner.formatting import describe
from jobrunner.retry import milliseconds
from jobrunner.settings import DEFAULT_RESULT_LIMIT, check_whole
from jobrunner.task import Task, check_priority, due, new_id


class QueueRef:
    """A queue by name, without a connection."""

    def __init__(self, keys: Keys, name: str, payload_limit: int, result_limit: int = DEFAULT_RESULT_LIMIT) -> None:
        self.name = name
        self.keys = keys.queue(name)
        self.all_keys = keys
        self.payload_limit = payload_limit
        self.result_limit = result_limit
        self.is_registered = False
        """Whether the queue is in the registry of all queues; registering it twice does no harm."""
        self.targets: set[str] = set()
        """Full names of queues that items may move to, as far as that was looked up."""

    def neighbour(self, name: str) -> QueueKeys:
        """The keys of another queue of the same pipeline, by short or full name. Raises UsageError for any other."""
        if not isinstance(name, str):
            raise InvalidName(f"queue name {describe(name)} is not allowed: give a text")
        full = name if "/" in name or "/" not in self.name else f"{self.keys.tag}/{name}"
        keys = self.all_keys.queue(full)
        if keys.tag != self.keys.tag:
            raise UsageError(f"queue {full!r} is not of pipeline {self.keys.tag!r}: a move is atomic within one only")
        return keys

    def task(self, item: Item) -> Task:
        """The task that is enqueued for an item. Raises UsageError."""
        delay_ms, at_ms = due(item.in_, item.at)
        raw, encoding = write_payload(item.payload, self.payload_limit)
        if item.max_attempts is not None:
            check_whole(item.max_attempts, "max_attempts", minimum=0)
        if item.max_stalled is not None:
            check_whole(item.max_stalled, "max_stalled", minimum=0)
        return Task(
            id=new_id(self.keys.tag) if item.id is None else check_id(item.id),
            queue=self.name,
            payload=raw,
            encoding=encoding,
            priority=None if item.priority is None else check_priority(item.priority),
            delay_ms=delay_ms,
            at_ms=at_ms,
            keepalive_ms=None if item.keepalive is None else milliseconds(item.keepalive, "keepalive"),
            max_attempts=item.max_attempts,
            max_stalled=item.max_stalled,
            expires_in_ms=None if item.expires_in is None else milliseconds(item.expires_in, "expires_in"),
            key=None if item.partition is None else check_partition(item.partition),
            headers=None if item.headers is None else write_headers(item.headers),
            sending="" if item.id is None else sending_of(self.name, item.id),
        )
