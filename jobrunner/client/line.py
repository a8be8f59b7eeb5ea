"""What the operations on one queue know of it, and what is pushed to it."""

from jobrunner.broker.keys import Keys, QueueKeys, check_id
from jobrunner.client.item import Item, check_key, milliseconds, write_headers, write_payload
from jobrunner.errors import InvalidName, UsageError
from jobrunner.settings import check_whole
from jobrunner.shown import shown
from jobrunner.task import Task, check_priority, due, new_id


class Line:
    """A queue by name, without a connection."""

    def __init__(self, keys: Keys, name: str, payload_limit: int) -> None:
        self.name = name
        self.keys = keys.queue(name)
        self.all_keys = keys
        self.payload_limit = payload_limit
        self.is_registered = False
        """Whether the registry of all queues has been told of it; telling it twice does no harm."""

    def neighbour(self, name: str) -> QueueKeys:
        """The keys of another queue of the same pipeline, by short or full name. Raises UsageError for any other."""
        if not isinstance(name, str):
            raise InvalidName(f"queue name {shown(name)} is not allowed: give a text")
        full = name if "/" in name or "/" not in self.name else f"{self.keys.tag}/{name}"
        keys = self.all_keys.queue(full)
        if keys.tag != self.keys.tag:
            raise UsageError(f"queue {full!r} is not of pipeline {self.keys.tag!r}: a move is atomic within one only")
        return keys

    def task(self, item: Item) -> Task:
        """What is enqueued for an item. Raises UsageError."""
        delay_ms, at_ms = due(item.in_, item.at)
        raw, encoding = write_payload(item.payload, self.payload_limit)
        for option in ("max_attempts", "max_expiries"):
            if (limit := getattr(item, option)) is not None:
                check_whole(limit, option, minimum=0)
        return Task(
            id=new_id(self.keys.tag) if item.id is None else check_id(item.id),
            queue=self.name,
            payload=raw,
            encoding=encoding,
            priority=check_priority(item.priority),
            delay_ms=delay_ms,
            at_ms=at_ms,
            keepalive_ms=milliseconds(item.keepalive, "keepalive"),
            max_attempts=item.max_attempts,
            max_expiries=item.max_expiries,
            expires_in_ms=milliseconds(item.expires_in, "expires_in"),
            key=check_key(item.key),
            headers=None if item.headers is None else write_headers(item.headers),
        )
