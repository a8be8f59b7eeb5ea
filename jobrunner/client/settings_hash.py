"""Converts settings of a queue to and from the hash in which they are stored."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from jobrunner.broker.keys import split_queue
from jobrunner.broker.shards import MOST_SHARDS
from jobrunner.clock import from_ms
from jobrunner.errors import InvalidOption
from jobrunner.formatting import describe
from jobrunner.option_names import check_options
from jobrunner.queue_settings import QueueSettings, RateLimit
from jobrunner.retry import Backoff, lease_ms, milliseconds, seconds
from jobrunner.settings import check_whole

Stored = Mapping[str, bytes]
Fields = dict[str, str | int | float]


@dataclass(frozen=True, slots=True)
class _Form:
    """The stored form of one setting: its fields, and the conversions to and from them. `read` may raise for damaged
    fields."""

    fields: tuple[str, ...]
    write: Callable[[Any, str], tuple[Any, ...]]
    read: Callable[..., Any]


def write_settings(options: Mapping[str, Any], queue: str) -> Fields:
    """The fields of a queue's settings hash for these options; '' for an option that is reset to its default.

    Raises UnknownOption, InvalidOption, InvalidName.
    """
    check_options(options, QueueSettings.__slots__, "setting of a queue")
    fields: Fields = {}
    for name, value in options.items():
        form = _FORMS[name]
        written = ("",) * len(form.fields) if value is None else form.write(value, name)
        fields.update(zip(form.fields, written, strict=True))
    _check_forward(options.get("dead_letter_queue"), queue)
    return fields


def read_settings(stored: Stored) -> QueueSettings:
    """The settings in force; a damaged field reads as its default."""
    read: dict[str, Any] = {}
    for name, form in _FORMS.items():
        raw = [stored.get(field) for field in form.fields]
        if None in raw:
            continue
        try:
            read[name] = form.read(*raw)
        except (ValueError, TypeError, msgspec.MsgspecError):
            continue
    return QueueSettings(**read)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingOrigin:
    """The origin of a setting's value: a declaration, or a change by hand."""

    declared: Any = None
    """The declared value; None when no declaration names the setting, or for its default."""
    is_declared: bool = False
    place: str = ""
    """module:line of the declaration in force, or the file; empty when the setting is not declared."""
    changed_by: str = ""
    """The user who changed it by hand since; else empty. Such a value is kept until the setting is declared anew."""
    changed_at: datetime | None = None

    @property
    def is_overridden(self) -> bool:
        """Whether a change by hand overrides the declared value."""
        return self.is_declared and bool(self.changed_by)


def read_origins(stored: Stored) -> dict[str, SettingOrigin]:
    """The origins of the settings that are declared or were changed by hand, by name. `stored`: the hash `declared`."""
    declared = read_settings({name[1:]: value for name, value in stored.items() if name[0] == "="})
    place = stored.get("place", b"").decode("utf-8", "replace")
    found = {}
    for name, form in _FORMS.items():
        is_declared = f"={form.fields[0]}" in stored
        at, _, by = stored.get(f"by:{form.fields[0]}", b"").decode("utf-8", "replace").partition(" ")
        if is_declared or by:
            found[name] = SettingOrigin(
                declared=getattr(declared, name) if is_declared else None,
                is_declared=is_declared,
                place=place if is_declared else "",
                changed_by=by,
                changed_at=from_ms(int(at)) if by and at.isdecimal() else None,
            )
    return found


def stored_settings(stored: Stored) -> dict[str, bytes]:
    """The fields of a settings hash that `configure` sets, without the fields that scripts keep there."""
    known = {field for form in _FORMS.values() for field in form.fields}
    return {field: value for field, value in stored.items() if field in known}


def settings_named(changed: Iterable[str]) -> list[str]:
    """The names of the settings that one of these fields belongs to."""
    known = set(changed)
    return [name for name, form in _FORMS.items() if known.intersection(form.fields)]


def _check_forward(to: str | None, queue: str) -> None:
    if to is None:
        return
    tag, _ = split_queue(to)
    if tag != split_queue(queue)[0] or to == queue:
        raise InvalidOption(
            f"dead_letter_queue={to!r}: give another queue of the pipeline of {queue!r}, by its full name; dead "
            "tasks are forwarded in one step, and that is possible within one pipeline only"
        )


def _length(value: Any, name: str) -> tuple[Any, ...]:
    return (milliseconds(value, name),)


def _lease(value: Any, _: str) -> tuple[Any, ...]:
    return (lease_ms(value),)


def _length_or_none_at_all(value: Any, name: str) -> tuple[Any, ...]:
    return (0,) if seconds(value, option=name) == 0 else _length(value, name)


def _count(value: Any, name: str) -> tuple[Any, ...]:
    return (check_whole(value, name, minimum=0),)


def _size(value: Any, name: str) -> tuple[Any, ...]:
    return (check_whole(value, name, minimum=1),)


def _limit(value: Any, name: str) -> tuple[Any, ...]:
    return (check_whole(value, name, minimum=0) or "",)


def _partitions(value: Any, name: str) -> tuple[Any, ...]:
    return ("" if check_whole(value, name, minimum=1, maximum=MOST_SHARDS) == 1 else value,)


def _switch(value: Any, name: str) -> tuple[Any, ...]:
    if not isinstance(value, bool):
        raise InvalidOption(f"{name}={describe(value)}: give True or False")
    return (1 if value else "",)


def _name(value: Any, _: str) -> tuple[Any, ...]:
    split_queue(value)
    return (value,)


def _backoff(value: Any, name: str) -> tuple[Any, ...]:
    if not isinstance(value, Backoff):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        raise InvalidOption(f"{name}={describe(value)}: say Backoff({value if is_number else 'base, factor, cap'})")
    return (msgspec.json.encode([value.base, value.factor, value.cap, value.jitter]).decode(),)


def _rate(value: Any, name: str) -> tuple[Any, ...]:
    if not isinstance(value, RateLimit):
        described = describe(value)
        raise InvalidOption(f"{name}={described}: give a RateLimit(15, per=timedelta(hours=1)), or None")
    return value.max_tokens, value.seconds * 1_000_000, value.interval, value.interval_unit


def _read_length(raw: bytes) -> float:
    return float(raw) / 1000


def _read_switch(raw: bytes) -> bool:
    return raw == b"1"


def _read_backoff(raw: bytes) -> Backoff:
    return Backoff(*msgspec.json.decode(raw, type=list[float]))


def _read_rate(max_tokens: bytes, _: bytes, interval: bytes, unit: bytes) -> RateLimit:
    return RateLimit(max_tokens=int(max_tokens), interval=int(interval), interval_unit=unit.decode())


_FORMS = {
    "keepalive": _Form(("keepalive_ms",), _lease, _read_length),
    "max_attempts": _Form(("max_attempts",), _count, int),
    "backoff": _Form(("backoff",), _backoff, _read_backoff),
    "dead_ttl": _Form(("dead_ttl_ms",), _length_or_none_at_all, _read_length),
    "dead_max": _Form(("dead_max",), _count, int),
    "dead_letter_queue": _Form(("dead_letter_queue",), _name, bytes.decode),
    "max_inflight": _Form(("max_inflight",), _limit, int),
    "rate": _Form(("max_tokens", "interval_us", "interval", "interval_unit"), _rate, _read_rate),
    "max_inflight_per_partition": _Form(("key_inflight",), _limit, int),
    "rate_per_partition": _Form(
        ("key_tokens", "key_interval_us", "key_interval", "key_interval_unit"), _rate, _read_rate
    ),
    "fair": _Form(("fair",), _switch, _read_switch),
    "max_size": _Form(("max_size",), _size, int),
    "expires_in": _Form(("expires_in_ms",), _length, _read_length),
    "history": _Form(("history_ms",), _length, _read_length),
    "history_max": _Form(("history_max",), _size, int),
    "partitions": _Form(("partitions",), _partitions, int),
}
