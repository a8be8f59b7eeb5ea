"""Packs the rows of a write into the arguments of the staging script, four for each new task.

Works column by column and leaves the work on single rows to C: a struct of the columns is encoded. An error names the
column and the row, and nothing is written.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from jobrunner.broker.keys import check_id, split_queue
from jobrunner.client.item import LONGEST_KEY, write_headers
from jobrunner.errors import InvalidName, InvalidOption, ParameterError, PayloadTooLarge
from jobrunner.formatting import describe
from jobrunner.jobs.build import key_of
from jobrunner.jobs.registry import JobDefinition
from jobrunner.spark.columns import checked_priority, delay_s, refuses
from jobrunner.spark.payloads import UNREADABLE, check_json
from jobrunner.spark.sink.json_values import json_values
from jobrunner.spark.sink.options import WriteOptions, WriteShape
from jobrunner.task import derived_id, instant_ms

_encode = msgspec.json.Encoder().encode
_headers = msgspec.json.Decoder(dict[str, str]).decode
_FORMLESS = (ValueError, TypeError, OverflowError, KeyError, pa.ArrowException)
"""Errors of pyarrow for a value without a JSON form: an instant in the year 10000, a map that has a key twice."""
_NEW = b'{"new":1}'
_LONGEST_SHOWN = 100
Columns = dict[str, list[Any]]


class RowPacker:
    """Packs record batches into arguments. `source` is a unique name of the packed rows: of one part of one write."""

    def __init__(self, options: WriteOptions, shape: WriteShape, source: str) -> None:
        self._options, self._shape = options, shape
        self._tag, self._to = split_queue(options.queue)
        self._definition = options.definition()
        self._made_ids = _ids_of(source, self._tag)
        self._payload_of = _payload_struct(shape.payload)
        self._before = 0

    def pack(self, batch: pa.RecordBatch) -> list[bytes | str]:
        """The arguments for the rows. Raises ParameterError, InvalidOption, InvalidName, PayloadTooLarge."""
        columns = self._columns(batch)
        payloads = self._payloads(columns, batch.num_rows)
        ids = self._ids(columns, payloads)
        words: list[Any] = [self._to] * (4 * batch.num_rows)
        words[0::4] = ids
        words[2::4] = payloads
        words[3::4] = self._mores(columns, payloads)
        self._before += batch.num_rows
        return words

    def _columns(self, batch: pa.RecordBatch) -> Columns:
        found: Columns = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                found[name] = json_values(column)
            except _FORMLESS as error:
                at = next(n for n in range(len(column)) if refuses(json_values, column.slice(n, 1)))
                why = error.args[0] if isinstance(error, KeyError) else error
                raise InvalidOption(f"{self._row(at, b'')}: column {name!r} has no JSON form: {why}") from error
        return found

    def _payloads(self, columns: Columns, count: int) -> list[bytes]:
        values = [columns[name] for name in self._shape.payload]
        if self._shape.is_raw:
            payloads = [one if isinstance(one, bytes) else _utf8(one) for one in values[0]]
            self._check_each(check_json, payloads, "column 'payload' is no JSON; use to_json, or other columns")
        elif values:
            try:
                payloads = list(map(_encode, map(self._payload_of, *values)))
            except (TypeError, ValueError) as error:
                raise self._unfit(values, error) from error
        else:
            payloads = [b"{}"] * count
        if self._definition is not None:
            self._check_parameters(self._definition, payloads)
        if payloads and len(longest := max(payloads, key=len)) > self._options.payload_limit:
            at = payloads.index(longest)
            raise PayloadTooLarge(
                f"{self._row(at, longest)}: a payload of {len(longest)} bytes, the limit is "
                f"{self._options.payload_limit}; store it elsewhere and send a reference, or raise payload_limit"
            )
        return payloads

    def _check_parameters(self, definition: JobDefinition, payloads: list[bytes]) -> None:
        try:
            for payload in payloads:
                definition.parameters.read(payload)
        except Exception as error:  # also of a parameter's own __post_init__
            at = next(n for n, payload in enumerate(payloads) if refuses(definition.parameters.read, payload))
            cause = error.__cause__ or error
            raise ParameterError(
                f"{self._row(at, payloads[at])}: {_column_of(cause)}does not fit job {definition.name!r}: {cause}"
            ) from error

    def _check_each(self, check: Callable[[bytes], object], payloads: list[bytes], told: str) -> None:
        try:
            for payload in payloads:
                check(payload)
        except UNREADABLE as error:
            at = next(n for n, payload in enumerate(payloads) if refuses(check, payload))
            raise InvalidOption(f"{self._row(at, payloads[at])}: {told} ({error})") from error

    def _unfit(self, values: list[list[Any]], error: Exception) -> InvalidOption:
        for name, column in zip(self._shape.payload, values, strict=True):
            for at, value in enumerate(column):
                if refuses(_encode, value):
                    return InvalidOption(f"{self._row(at, b'')}: column {name!r} has no JSON form: {error}")
        return InvalidOption(f"a row has no JSON form: {error}")

    def _ids(self, columns: Columns, payloads: list[bytes]) -> list[Any]:
        if self._options.id_from:
            parts = zip(*(columns[name] for name in self._options.id_from), strict=True)
            return [derived_id(self._options.queue, _text(_encode(part)), self._tag) for part in parts]
        name = self._options.id_column or "_id"
        if name not in columns:
            return [next(self._made_ids) for _ in payloads]
        try:
            if self._options.id_column is None:
                return [next(self._made_ids) if one is None else check_id(one) for one in columns[name]]
            return [
                check_id(one if isinstance(one, str) else str(one) if one is not None else "") for one in columns[name]
            ]
        except InvalidName as error:
            at = next(n for n, one in enumerate(columns[name]) if refuses(check_id, "" if one is None else str(one)))
            raise InvalidName(f"{self._row(at, payloads[at])}: column {name!r}: {error}") from error

    def _mores(self, columns: Columns, payloads: list[bytes]) -> list[bytes]:
        replies: list[dict[str, Any]] = []
        for column, word, read, told in _STEERING:
            for at, value in enumerate(columns.get(column, ())):
                if value is None:
                    continue
                try:
                    found = read(value)
                except (ValueError, TypeError, InvalidOption) as error:
                    what = f"column {column!r} is {describe(value)}; give {told}"
                    raise InvalidOption(f"{self._row(at, payloads[at])}: {what}") from error
                replies = replies or [{"new": 1} for _ in payloads]
                replies[at][word] = found
        if self._definition is not None and (name := self._definition.options.partition_by) is not None:
            replies = replies or [{"new": 1} for _ in payloads]
            for more, payload in zip(replies, payloads, strict=True):
                key = key_of(getattr(self._definition.parameters.read(payload), name))
                more |= {} if key is None else {"key": key}
        if not replies:
            return [_NEW] * len(payloads)
        both = next((at for at, one in enumerate(replies) if "delay_ms" in one and "at_ms" in one), None)
        if both is not None:
            raise InvalidOption(
                f"{self._row(both, payloads[both])}: both '_delay' and '_at' are given; give one of them"
            )
        return list(map(_encode, replies))

    def _row(self, at: int, payload: bytes) -> str:
        shown = payload[:_LONGEST_SHOWN].decode(errors="replace")
        more = "…" if len(payload) > _LONGEST_SHOWN else ""
        return f"row {self._before + at + 1} of its partition" + (f" ({shown}{more})" if shown else "")


def _payload_struct(names: tuple[str, ...]) -> Any:
    """A struct whose positional fields are encoded under these names, whatever characters they have."""
    fields = [(f"f{at}", Any) for at in range(len(names))]
    renamed = {f"f{at}": name for at, name in enumerate(names)}
    return msgspec.defstruct("Payload", fields, rename=renamed, gc=False)


def _ids_of(source: str, tag: str) -> Iterator[str]:
    """Ids in the shape of generated ids, in order."""
    digest = hashlib.sha256(source.encode()).hexdigest()
    first = int(digest[:10], 16) << 24
    for number in range(first, first + (1 << 40)):
        yield f"{number:016x}{digest[-12:]}-{tag}"


def _delay_ms(value: Any) -> float:
    return max(delay_s(value), 0.0) * 1000


def _given_headers(value: Any) -> dict[str, str]:
    given = _headers(value if isinstance(value, str) else _encode(value))
    write_headers(given)
    return given


def _key(value: str) -> str:
    if not 1 <= len(value) <= LONGEST_KEY:
        raise ValueError(value)
    return value


_STEERING: tuple[tuple[str, str, Callable[[Any], Any], str], ...] = (
    ("_priority", "priority", checked_priority, "0, 1 or 2; higher goes first"),
    ("_delay", "delay_ms", _delay_ms, "seconds until it is due, at most a century"),
    ("_at", "at_ms", instant_ms, "the instant at which it is due"),
    ("_headers", "headers", _given_headers, "a map of strings, of 64 KiB in all"),
    ("_partition", "key", _key, f"a text of 1 to {LONGEST_KEY} characters"),
)


def _column_of(error: BaseException) -> str:
    _, _, path = str(error).partition("`$.")
    return f"column {path.rstrip('`')!r} " if path else ""


def _utf8(text: str | None) -> bytes:
    return b"null" if text is None else text.encode()


def _text(raw: bytes) -> str:
    return raw.decode()
