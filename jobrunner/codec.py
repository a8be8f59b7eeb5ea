"""Encodes values to bytes and back: JSON by msgspec. Never pickle: a payload is data and names no code."""

import math
import re
from collections import deque
from collections.abc import Coroutine, Generator, ItemsView, Iterable, KeysView, ValuesView
from datetime import UTC, datetime
from typing import Any

import msgspec

from jobrunner.errors import ResultTooLarge, UsageError
from jobrunner.formatting import describe

NULL = b"null"
_NOT_UTC = re.compile(rb"T[0-9:.]+[+-][0-9]{2}:[0-9]{2}\"")
"""The end of an instant with another zone, in JSON; also of a text that looks like such an instant."""
_CONVERSIONS = (
    ("model_dump", 'convert it with .model_dump(mode="json")'),  # pydantic
    ("to_pydatetime", "convert it with .to_pydatetime()"),  # pandas, of one instant
    ("tolist", "convert it with .tolist()"),  # numpy, also a single number; a column of pandas
    ("to_dict", "convert it with .to_dict(), or store it elsewhere"),  # a table of pandas
    ("__fspath__", "convert it with str()"),
)
"""The conversion that an error suggests for a value whose class has this method."""
_LISTED = (Generator, KeysView, ValuesView, ItemsView, range, map, filter, zip, deque)
"""Types of values that are passed where a list is meant; a comprehension in parentheses makes a generator."""
_encoder = msgspec.json.Encoder(enc_hook=lambda value: refuse(value))
_decoder = msgspec.json.Decoder()
to_json = _encoder.encode
"""JSON of a value, with null for numbers that are not finite. Raises TypeError, ValueError or RecursionError when the
value has no JSON form; the error of `encode` names the fault."""


class NoJsonForm(TypeError):
    """The error for a value that JSON cannot represent, with the remedy."""


def _shown(value: object) -> str:
    """The value; of an array or a table its shape, as errors with its rows would be in a group of errors each."""
    try:
        shape = getattr(value, "shape", ())
    except Exception:
        shape = ()
    # A repr may raise, too, as for an object whose database session is closed.
    return f"a value of shape {shape}" if isinstance(shape, tuple) and shape else describe(value)


def refuse(value: object) -> Any:
    """Raises NoJsonForm for a value without a JSON form, as an `enc_hook` of msgspec."""
    shown = _shown(value)
    if value is None or isinstance(value, bool | tuple | frozenset):  # as values they have a JSON form
        raise TypeError(f"{shown} of type {type(value).__name__} cannot be the key of a JSON object")
    if isinstance(value, Coroutine):  # such as from a plain decorator on an `async def`: none of its code has run
        raise NoJsonForm(f"{shown} is a coroutine, which nothing awaited: what returns it has to be async def, too")
    plain = "convert it with list()" if isinstance(value, _LISTED) else "return or pass plain data"
    remedy = next((does for method, does in _CONVERSIONS if hasattr(type(value), method)), plain)
    raise NoJsonForm(f"{shown} of type {type(value).__name__} has no JSON form; {remedy}")


def encode(value: Any, *, what: str) -> bytes:
    """JSON of a value. Raises UsageError, which names `what`, for a value without a JSON form, such as nan or
    infinity."""
    try:
        raw = to_json(value)
    except NoJsonForm as error:
        raise UsageError(f"{what} cannot be stored as JSON: {error}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{what} cannot be stored as JSON: {error}; return or pass plain data") from error
    if NULL in raw and not _all_finite(plain := [msgspec.to_builtins(value)]):  # msgspec writes null for these
        found = not_finite(plain[0], "$")
        raise UsageError(f"{what} cannot be stored as JSON: {found}, which JSON does not have; give None or a text")
    return raw


def to_equal_json(value: Any) -> bytes:
    """JSON of a value with a JSON form, the same for equal values: sorted sets and names, and instants in UTC."""
    raw = msgspec.json.encode(value, order="deterministic")
    if _NOT_UTC.search(raw) is None:
        return raw
    plain = _in_utc(msgspec.to_builtins(value, builtin_types=(datetime,), order="deterministic"))
    return msgspec.json.encode(plain, order="deterministic")


def _in_utc(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        try:
            return value.astimezone(UTC)
        except OverflowError:  # the last day of the year 9999, say
            return value
    if isinstance(value, dict):
        return {_in_utc(name): _in_utc(one) for name, one in value.items()}
    return [*map(_in_utc, value)] if isinstance(value, (list, tuple)) else value


def _all_finite(values: Iterable[Any]) -> bool:
    """Whether plain data has only finite numbers: a fast form of `not_finite`, as most nulls were None."""
    for value in values:
        if isinstance(value, float):
            if not math.isfinite(value):
                return False
        elif isinstance(value, dict):
            if not _all_finite(value.values()):
                return False
        elif isinstance(value, (list, tuple)) and not _all_finite(value):
            return False
    return True


def not_finite(value: object, path: str) -> str | None:
    """The first number that is not finite, with its path."""
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{path} is {value}"
    if isinstance(value, dict):
        parts: Iterable[tuple[str, object]] = ((f"{path}.{name}", one) for name, one in value.items())
    elif isinstance(value, (list, tuple)):
        parts = ((f"{path}[{n}]", one) for n, one in enumerate(value))
    else:
        return None
    return next((found for at, one in parts if (found := not_finite(one, at))), None)


def write_result(result: Any, limit: int, *, what: str = "the result") -> bytes:
    """A result as JSON, empty for None. Raises ResultTooLarge, UsageError for a result without a JSON form."""
    if result is None:
        return b""
    raw = encode(result, what=what)
    if len(raw) > limit:
        raise ResultTooLarge(
            f"{what} has {len(raw)} bytes, the limit is {limit}; store it elsewhere and return a reference, or raise "
            "result_limit"
        )
    return raw


def decode(raw: bytes) -> Any:
    """The value of JSON bytes; None for no bytes. Raises ValueError when they are not JSON, or nested too deeply."""
    try:
        return _decoder.decode(raw) if raw else None
    except RecursionError as error:
        raise ValueError(f"JSON that is nested too deeply: {error}") from error
