"""What travels with an item: payload, headers, options; and the words a report is answered with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec

from jobrunner.codec import decode, encode
from jobrunner.errors import InvalidOption, LeaseLost, NotReserved, PayloadTooLarge, QueueFull, SealError
from jobrunner.retry import seconds
from jobrunner.settings import Duration, check_options
from jobrunner.shown import shown

LONGEST_KEY = 256
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A payload with options, for `push_many`; as popped, with the id it has."""

    payload: Any
    in_: Duration | None = None
    at: datetime | float | None = None
    priority: int | None = None
    keepalive: Duration | None = None
    max_attempts: int | None = None
    max_expiries: int | None = None
    expires_in: Duration | None = None
    id: str | None = None
    headers: Mapping[str, str] | None = None
    key: str | None = None

    def __init__(self, payload: Any, **options: Any) -> None:
        check_options(options, self.__slots__[1:], "option of an item")
        object.__setattr__(self, "payload", payload)
        for name in self.__slots__[1:]:
            object.__setattr__(self, name, options.get(name))


@dataclass(frozen=True, slots=True)
class Popped:
    """An item taken by `pop`: it is out of the queue and will not come back."""

    id: str
    headers: dict[str, str]
    stored: bytes = field(repr=False)
    """The payload as the server had it: there is no other copy of it."""
    _found: Any

    @property
    def payload(self) -> Any:
        """What was pushed. Raises SealError for an encrypted or signed one that cannot be opened."""
        if isinstance(self._found, SealError):
            raise self._found
        return self._found


def write_payload(payload: Any, limit: int) -> tuple[bytes, str]:
    """(bytes, encoding) of a payload. Raises PayloadTooLarge."""
    raw, encoding = (payload, "") if isinstance(payload, bytes) else (encode(payload, what="payload"), "json")
    check_size(raw, limit)
    return raw, encoding


def check_verdict(word: str, task_id: str) -> str:
    """Returns what a report was answered. Raises NotReserved or LeaseLost for one that came too late."""
    if word == "not_reserved":
        raise NotReserved(f"nobody holds task {task_id}: its lease ended or never was; its report changed nothing")
    if word == "lost":
        raise LeaseLost(f"task {task_id} is held by another attempt, or was moved; this report changed nothing")
    if word == "full":
        raise QueueFull(f"task {task_id} stays where it is: the queue it should move to has reached its max_size")
    return word


def check_size(payload: bytes, limit: int) -> None:
    """Raises PayloadTooLarge for more bytes than the limit."""
    if len(payload) > limit:
        raise PayloadTooLarge(
            f"the payload has {len(payload)} bytes, the limit is {limit}; store it elsewhere and send a reference, "
            "or raise payload_limit"
        )


def read_payload(raw: bytes | None, encoding: bytes | None) -> Any:
    """What was pushed."""
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
        raise InvalidOption(f"headers={shown(headers)}: give strings by name")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidOption(f"header {shown(name)}: {shown(value)}: give strings")
    return msgspec.json.encode(dict(headers))


def check_key(key: object) -> str | None:
    """Returns what limits per key may go by. Raises InvalidOption."""
    if key is None or (isinstance(key, str) and 1 <= len(key) <= LONGEST_KEY):
        return key
    raise InvalidOption(f"key={shown(key)}: give a text of 1 to {LONGEST_KEY} characters")


def milliseconds(value: timedelta | float | None, option: str) -> int | None:
    """A duration in whole milliseconds, at least 1; None for None. Raises InvalidOption for 0 or less."""
    if value is None:
        return None
    length_s = seconds(value, option=option)
    if length_s <= 0:
        raise InvalidOption(f"{option}={shown(value)}: give more than 0")
    return max(round(length_s * 1000), 1)
