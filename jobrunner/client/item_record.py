"""Items as a program reads them: popped items, and the records of items that are still stored."""

from dataclasses import dataclass, field, fields
from typing import Any

from jobrunner.client.item import read_payload
from jobrunner.codec import decode
from jobrunner.errors import EncryptionError, PayloadStoreError
from jobrunner.task_record import TaskRecord


@dataclass(frozen=True, slots=True)
class Popped:
    """An item taken by `pop`: it is out of the queue and will not come back."""

    id: str
    headers: dict[str, str]
    stored: bytes = field(repr=False)
    """The payload in its stored form; there is no other copy of it."""
    _found: Any
    attempts: int = 1
    """As in a lease: 1 for an item that was never handed out before."""
    retry_count: int = 0
    """How often the item was handed out before and came back: failures, and leases that ended without a report."""

    @property
    def payload(self) -> Any:
        """The pushed payload. Raises ValueError for a damaged JSON payload, EncryptionError for a payload that cannot
        be decrypted or verified, PayloadStoreError for a payload that cannot be read from the payload store."""
        if isinstance(self._found, EncryptionError | PayloadStoreError | ValueError):
            raise self._found
        return self._found


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRecord(TaskRecord):
    """An item at the time of the read. `payload` is the pushed value, and `result` the value of the commit; for a task
    of a job, as with a lease, `payload` is the JSON of its parameters.

    Values that cannot be decrypted or read are in their stored form, and `unread` is the error.
    """

    payload: Any = field(repr=False)
    result: Any = field(repr=False, default=None)
    raw_payload: bytes = field(repr=False)
    """The bytes that were stored, decrypted where they were encrypted."""
    raw_result: bytes | None = field(repr=False, default=None)
    """The JSON of the result; None when there is none."""


def item_record(record: TaskRecord) -> ItemRecord:
    """The record with decoded values."""
    found: dict[str, Any] = {one.name: getattr(record, one.name) for one in fields(TaskRecord)}
    found |= {"raw_payload": record.payload, "raw_result": record.result}
    if record.unread is None:
        try:
            found["payload"] = read_payload(record.payload, record.fields.get("encoding"))
            found["result"] = None if record.result is None else decode(record.result)
        except ValueError as error:
            found |= {"payload": record.payload, "result": record.result, "unread": error}
    return ItemRecord(**found)
