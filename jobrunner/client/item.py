"""Items with their payload, headers and options, and the errors for refused reports."""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypedDict

import msgspec

from jobrunner.codec import decode, encode
from jobrunner.errors import (
    InvalidOption,
    LeaseLost,
    NotReserved,
    OutcomeUnknown,
    ReportUnknown,
    TargetFull,
    TooManyHops,
)
from jobrunner.formatting import describe
from jobrunner.option_names import check_options
from jobrunner.settings import Duration
from jobrunner.task import check_size

LONGEST_KEY = 256
MOST_HEADERS_BYTES = 64 << 10
"""A hand-out reads the headers of its tasks, which its bound on payloads does not count."""
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


class _ItemMeta(msgspec.StructMeta):
    """Raises UnknownOption for unknown options, which names the nearest known option."""

    if not TYPE_CHECKING:  # a type checker would take its signature for Item's

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


class ItemKeywords(TypedDict, total=False):
    """The options of an Item, as `push` takes them."""

    in_: Duration | None
    at: datetime | float | None
    priority: int | None
    keepalive: Duration | None
    max_attempts: int | None
    max_stalled: int | None
    expires_in: Duration | None
    id: str | None
    headers: Mapping[str, str] | None
    partition: str | None


ITEM_OPTIONS: Final = Item.__struct_fields__[1:]
_PUSH_OPTIONS: Final = (*ITEM_OPTIONS, "wait", "on_clash")


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


def check_verdict(word: str, task_id: str, *, to: str = "", max_hops: int = 0) -> str:
    """Returns the verdict on a report. Raises NotReserved or LeaseLost for a report that came too late, TargetFull and
    TooManyHops for a refused move to the queue `to`, ReportUnknown for a report whose first reply was lost."""
    if word == "unknown":
        raise ReportUnknown(_lost_reply(task_id))
    if word == "not_reserved":
        raise NotReserved(f"nobody holds task {task_id}: its lease ended or never was; its report changed nothing")
    if word == "lost":
        raise LeaseLost(f"task {task_id} is held by another attempt, or was moved; this report changed nothing")
    if word == "full":
        raise TargetFull(f"task {task_id} stays where it is: queue {to!r} has reached its max_size", queue=to)
    if word == "hops":
        most = f"{max_hops} hops, the most allowed" if max_hops else "as many hops as max_hops allows"
        raise TooManyHops(f"task {task_id} made {most}; look for a loop without an end")
    return word


def check_known(word: str, task_id: str) -> None:
    """Raises OutcomeUnknown when the call was sent again and may have been applied the first time."""
    if word == "unknown":
        raise OutcomeUnknown(_lost_reply(task_id))


def _lost_reply(task_id: str) -> str:
    return (
        f"the reply about task {task_id} was lost, and when the call was sent again there was nothing to do: most "
        "likely it was applied the first time, else the task had changed before"
    )


def read_payload(raw: bytes | None, encoding: bytes | None) -> Any:
    """The pushed payload."""
    return decode(raw or b"") if encoding == b"json" else raw


def read_headers(raw: bytes | None) -> dict[str, str]:
    """Headers of a task; damaged headers read as none."""
    try:
        return _decode_headers(raw) if raw else {}
    except ValueError:  # msgspec's errors are ValueErrors, and so are those for bytes that are not UTF-8
        return {}


def write_headers(headers: Mapping[str, str]) -> bytes:
    """JSON of headers. Raises InvalidOption unless they are strings by name, of 64 KiB in all."""
    if not isinstance(headers, Mapping):
        raise InvalidOption(f"headers={describe(headers)}: give strings by name")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidOption(f"header {describe(name)}: {describe(value)}: give strings")
    try:
        written = msgspec.json.encode(dict(headers))
    except UnicodeEncodeError as error:
        raise InvalidOption(f"headers={describe(headers)}: give strings without lone surrogates: {error}") from error
    if len(written) > MOST_HEADERS_BYTES:
        raise InvalidOption(
            f"headers of {len(written):,} bytes, such as {max(headers, key=lambda name: len(headers[name]))!r}: give "
            f"{MOST_HEADERS_BYTES:,} at most, and put large data into the payload"
        )
    return written


def check_partition(partition: object) -> str | None:
    """Returns a valid partition key. Raises InvalidOption."""
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
