"""Items of a queue as a program lists them: with values, as leases and `pop` give them."""

from dataclasses import dataclass, field, fields
from typing import Any

from jobrunner.client.item import read_payload
from jobrunner.codec import decode
from jobrunner.encryption.cipher import is_encrypted_result
from jobrunner.task import TaskRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRecord(TaskRecord):
    """An item as it stood when it was read. `payload` and `result` are what was pushed and what it was committed with;
    of a task of a job, as with a lease, `payload` is the JSON of its parameters.

    What cannot be opened or read stands there as it is stored, and `unread` says why.
    """

    payload: Any = field(repr=False)
    result: Any = field(repr=False, default=None)
    raw_payload: bytes = field(repr=False)
    """The bytes that were stored, opened where they were sealed."""
    raw_result: bytes | None = field(repr=False, default=None)
    """The JSON of the result; None when there is none."""

    @property
    def has_encrypted_result(self) -> bool:
        """Whether the result stands here as ciphertext."""
        return is_encrypted_result(self.raw_result or b"")


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


def stored_record(item: ItemRecord) -> TaskRecord:
    """The record with the bytes, as `TaskHandle.record` gives it."""
    found: dict[str, Any] = {one.name: getattr(item, one.name) for one in fields(TaskRecord)}
    return TaskRecord(**(found | {"payload": item.raw_payload, "result": item.raw_result}))
