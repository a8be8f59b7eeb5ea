"""An item under a lease: its properties that need no call to the server."""

from datetime import datetime
from typing import Any

from jobrunner.attempt import Attempt
from jobrunner.broker.keys import QueueKeys
from jobrunner.client.encryption import opened
from jobrunner.client.item import read_headers, read_payload


class ReservedItem:
    """The common part of Lease and AsyncLease: everything except the reports."""

    def __init__(self, attempt: Attempt, keys: QueueKeys) -> None:
        self.attempt = attempt
        self._keys = keys
        self.id = attempt.id
        self.queue = attempt.queue
        self.token = attempt.token
        self.attempts = attempt.number
        self.retry_count = attempt.retry_count
        self.keepalive_ms = attempt.keepalive_ms
        self.deadline: datetime = attempt.deadline
        self.then = attempt.then or b""
        self.headers: dict[str, str] = read_headers(attempt.headers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, attempts={self.attempts}, deadline={self.deadline.isoformat()})"

    @property
    def payload(self) -> Any:
        """The pushed payload: the same bytes, or the same JSON value. Raises ValueError for a damaged JSON payload,
        EncryptionError for an encrypted or signed one that cannot be opened."""
        return read_payload(*opened(self.attempt, self._keys))

    @property
    def enqueue_time(self) -> datetime:
        """When the item was first pushed."""
        return self.attempt.enqueue_time
