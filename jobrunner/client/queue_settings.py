"""Settings of a queue, to and from the hash they are stored in."""

from collections.abc import Mapping
from typing import Any

import msgspec

from jobrunner.client.item import milliseconds
from jobrunner.errors import InvalidOption
from jobrunner.retry import Backoff
from jobrunner.settings import QueueSettings, check_options, check_whole


def write_settings(options: Mapping[str, Any]) -> dict[str, str | int | float]:
    """The fields of the settings hash; '' for an option that goes back to its default."""
    check_options(options, QueueSettings.__slots__, "setting of a queue")
    fields: dict[str, str | int | float] = {}
    for name, value in options.items():
        field = _STORED_AS.get(name, name)
        if value is None:
            fields[field] = ""
        elif name == "backoff":
            if not isinstance(value, Backoff):
                raise InvalidOption(f"backoff={value!r}: give a Backoff(...)")
            shape = [value.base, value.factor, value.cap, value.jitter]
            fields[field] = msgspec.json.encode(shape).decode()
        elif name in ("max_attempts", "dead_max"):
            fields[field] = check_whole(value, name, minimum=0)
        else:
            fields[field] = milliseconds(value, name) or 1
    return fields


_STORED_AS = {"keepalive": "keepalive_ms", "dead_ttl": "dead_ttl_ms"}


def read_settings(stored: Mapping[str, bytes]) -> QueueSettings:
    """The settings in force; a damaged field reads as its default."""
    read: dict[str, Any] = {}
    for name in QueueSettings.__slots__:
        raw = stored.get(_STORED_AS.get(name, name))
        if raw is None:
            continue
        try:
            if name == "backoff":
                read[name] = Backoff(*msgspec.json.decode(raw, type=list[float]))
            else:
                read[name] = float(raw) / 1000 if name in _STORED_AS else int(raw)
        except (ValueError, TypeError, msgspec.MsgspecError):
            continue
    return QueueSettings(**read)
