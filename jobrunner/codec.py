"""Values to bytes and back: JSON by msgspec. Never pickle: a payload is data and names no code."""

from typing import Any

import msgspec

from jobrunner.errors import UsageError

_encoder = msgspec.json.Encoder(enc_hook=lambda value: _refuse(value))
_decoder = msgspec.json.Decoder()


def _refuse(value: object) -> Any:
    raise TypeError(f"{value!r} of type {type(value).__name__} has no JSON form")


def encode(value: Any, *, what: str) -> bytes:
    """JSON of a value. Raises UsageError that names `what` when the value has no JSON form."""
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{what} cannot be stored as JSON: {error}; return or pass plain data") from error


def decode(raw: bytes) -> Any:
    """The value of JSON bytes; None for no bytes. Raises ValueError when they are not JSON."""
    return _decoder.decode(raw) if raw else None
