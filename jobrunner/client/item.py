"""An item: payload, headers, options, its record as programs list it; and the errors for the replies to a report."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jobrunner.codec import decode, encode
from jobrunner.errors import (
    EncryptionError,
    InvalidOption,
    LeaseLost,
    NotReserved,
    PayloadStoreError,
    TargetFull,
    TooManyHops,
)
from jobrunner.formatting import describe
from jobrunner.option_names import check_options
from jobrunner.settings import Duration
from jobrunner.task import TaskRecord, check_size

LONGEST_KEY = 256
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


class _ItemMeta(msgspec.StructMeta):
    """Unknown options are our error, which names the nearest one."""

    if not TYPE_CHECKING:  # a type checker would take its signature for that of Item

        def __call__(cls, *args, **options):  # noqa: N805
            try:
                return super().__call__(*args, **options)
            except TypeError:
                check_options(options, ("payload", *ITEM_OPTIONS), "option of an item")
                raise


class _Payload(msgspec.Struct, frozen=True, metaclass=_ItemMeta):
    payload: Any


class Item(_Payload, frozen=True, kw_only=True):
    """A payload with options, for `push` and `push_many`."""

    in_: Duration | None = None
    at: datetime | float | None = None
    priority: int | None = None
    keepalive: Duration | None = None
    max_attempts: int | None = None
    max_stalled: int | None = None
    expires_in: Duration | None = None
    id: str | None = None
    headers: Mapping[str, str] | None = None
    partition: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.payload, Item):
            raise InvalidOption("Item(Item(…)): an item cannot be the payload of another one; give its payload")


ITEM_OPTIONS: Final = Item.__struct_fields__[1:]
_PUSH_OPTIONS: Final = (*ITEM_OPTIONS, "wait", "on_clash")


@dataclass(frozen=True, slots=True)
class Popped:
    """An item taken by `pop`: it is out of the queue and will not come back."""

    id: str
    headers: dict[str, str]
    stored: bytes = field(repr=False)
    """The payload as the server had it: there is no other copy of it."""
    _found: Any
    attempts: int = 1
    """As of a lease: 1 when it was never handed out before."""
    retry_count: int = 0
    """How often it was handed out before and came back: failures, and leases that ended without a report."""

    @property
    def payload(self) -> Any:
        """The pushed payload. Raises EncryptionError for an encrypted or signed one that cannot be decrypted,
        PayloadStoreError for one that the payload store does not give."""
        if isinstance(self._found, EncryptionError | PayloadStoreError):
            raise self._found
        return self._found


def item_of(payload: Any, options: Mapping[str, Any]) -> Item:
    """The arguments of `push`: a payload and options, or an Item whose unset fields the options fill.

    Raises UnknownOption, and InvalidOption for an option that contradicts the Item.
    """
    if options:
        check_options(options, _PUSH_OPTIONS, "option of push()")
    if not isinstance(payload, Item):
        return Item(payload, **options)
    if not options:
        return payload
    merged = {name: getattr(payload, name) for name in ITEM_OPTIONS}
    for name, value in options.items():
        if value is None:
            continue
        if merged[name] is not None and merged[name] != value:
            raise InvalidOption(
                f"{name}={describe(value)} contradicts the Item, which has {name}={describe(merged[name])}; "
                "give it once"
            )
        merged[name] = value
    return Item(payload.payload, **merged)


def write_payload(payload: Any, limit: int) -> tuple[bytes, str]:
    """Encodes a payload as (bytes, encoding). Raises PayloadTooLarge; InvalidOption for an Item."""
    if isinstance(payload, Item):
        raise InvalidOption("an Item is given where a payload belongs; only push and push_many take an Item")
    raw, encoding = (payload, "") if isinstance(payload, bytes) else (encode(payload, what="payload"), "json")
    check_size(raw, limit)
    return raw, encoding


def check_verdict(word: str, task_id: str, *, max_hops: int = 0) -> str:
    """Returns what a report was answered. Raises NotReserved or LeaseLost for one that came too late, TargetFull and
    TooManyHops for a move that cannot be."""
    if word == "not_reserved":
        raise NotReserved(f"nobody holds task {task_id}: its lease ended or never was; its report changed nothing")
    if word == "lost":
        raise LeaseLost(f"task {task_id} is held by another attempt, or was moved; this report changed nothing")
    if word == "full":
        raise TargetFull(f"task {task_id} stays where it is: the queue it should move to has reached its max_size")
    if word == "hops":
        most = f"{max_hops} hops, the most allowed" if max_hops else "as many hops as max_hops allows"
        raise TooManyHops(f"task {task_id} made {most}; look for a loop without an end")
    return word


def read_payload(raw: bytes | None, encoding: bytes | None) -> Any:
    """The pushed payload."""
    return decode(raw or b"") if encoding == b"json" else raw


def read_headers(raw: bytes | None) -> dict[str, str]:
    """Headers of a task; damaged ones read as none."""
    try:
        return _decode_headers(raw) if raw else {}
    except msgspec.MsgspecError:
        return {}


def write_headers(headers: Mapping[str, str]) -> bytes:
    """JSON of headers. Raises InvalidOption unless they are strings by name."""
    if not isinstance(headers, Mapping):
        raise InvalidOption(f"headers={describe(headers)}: give strings by name")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidOption(f"header {describe(name)}: {describe(value)}: give strings")
    return msgspec.json.encode(dict(headers))


def check_partition(partition: object) -> str | None:
    """Returns what limits per partition may go by. Raises InvalidOption."""
    if partition is None or (isinstance(partition, str) and 1 <= len(partition) <= LONGEST_KEY and _is_utf8(partition)):
        return partition
    raise InvalidOption(
        f"partition={describe(partition)}: give a text of 1 to {LONGEST_KEY} characters, without lone surrogates"
    )


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRecord(TaskRecord):
    """An item as it stood when it was read. `payload` and `result` are what was pushed and what it was committed with;
    of a task of a job, as with a lease, `payload` is the JSON of its parameters.

    What cannot be decrypted or read stands there as it is stored, and `unread` says why.
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


def stored_record(item: ItemRecord) -> TaskRecord:
    """The record with the bytes, as `TaskHandle.record` gives it."""
    found: dict[str, Any] = {one.name: getattr(item, one.name) for one in fields(TaskRecord)}
    return TaskRecord(**(found | {"payload": item.raw_payload, "result": item.raw_result}))
