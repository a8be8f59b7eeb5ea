"""Staging on executors: checks and packs the rows of one task attempt, and stages them under a key of their own.

Invariant: only keys of task attempts that Spark counts reach the driver, as only Spark knows which count; so a task
that runs again, or twice at once, stages nothing twice. Rows are packed column by column into four arguments each; a
column that no row uses costs nothing. An error names the column and the item.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from jobrunner.broker.shards import whole_queue
from jobrunner.client.item import write_headers
from jobrunner.errors import InvalidOption, PayloadTooLarge, PipelineError
from jobrunner.etl.graph import nearest
from jobrunner.etl.spark_station import SparkStation
from jobrunner.formatting import describe
from jobrunner.spark.columns import checked_priority, delay_s, refuses
from jobrunner.spark.payloads import UNREADABLE, check_json
from jobrunner.spark.row_errors import ERROR
from jobrunner.spark.station.members import BatchConnections, BatchRef, new_nonce
from jobrunner.task import derived_id

_headers = msgspec.json.Decoder(dict[str, str | None]).decode
_encode = msgspec.json.Encoder().encode
Ids = list[bytes | None]
ERRORS = "errors."
"""Prefix of the staging keys of rows with errors. These rows are applied first, so that a failed parent has no
children."""
LONGEST_ERROR = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """The rules for rows of a station; plain data that is sent to the executors."""

    station: str
    targets: Mapping[str, str]
    """Short name of a target by each name that a row may use."""
    never_full: frozenset[str]
    """Short names of targets that accept an item even when they are full."""
    fan_out: bool
    emits_new: bool
    payload_limit: int
    checks_payload: bool = False
    """Whether the payload is the user's own text, which may be no JSON."""


def rules_of(station: SparkStation, *, payload_limit: int) -> RowRules:
    """The rules of a declared station."""
    short = {name: name.partition("/")[2] for name in station.targets}
    whole = {whole_queue(name): own for name, own in short.items()}
    return RowRules(
        station=station.queue,
        targets=short | whole | {name: name for name in short.values()},
        never_full=frozenset(short[name] for name in station.targets if not station.link.waits(name)),
        fan_out=station.fan_out,
        emits_new=station.emits_new,
        payload_limit=payload_limit,
    )


def pack_rows(batch: pa.RecordBatch, rules: RowRules, source: str, before: int) -> tuple[list[bytes | str], Ids]:
    """(staging arguments of the rows, their ids as the function returned them). `source` and the position after the
    `before` rows of that source packed earlier identify a row uniquely in its batch."""
    words: list[Any] = [b""] * (4 * batch.num_rows)
    ids: Ids = _binary(batch, "_id")
    targets = _targets(batch, ids, rules)
    words[0::4] = ids
    words[1::4] = targets
    words[2::4] = _payloads(batch, ids, rules)
    more = _steering(batch, ids, rules)
    if rules.never_full:
        _say(more, "over", [1 if target in rules.never_full else None for target in targets])
    if rules.fan_out or None in ids:
        _make_new(words, ids, more, rules, source, before)
    if more:
        words[3::4] = [_encode(more[place]) if place in more else b"" for place in range(len(ids))]
    return words, ids


def _binary(batch: pa.RecordBatch, name: str) -> list[Any]:
    found: list[Any] = batch.column(batch.schema.get_field_index(name)).cast(pa.binary()).to_pylist()
    return found


def _column(batch: pa.RecordBatch, name: str) -> list[Any]:
    """The values of a column; empty when it is missing or has only nulls."""
    place = batch.schema.get_field_index(name)
    if place < 0 or batch.column(place).null_count == batch.num_rows:
        return []
    values: list[Any] = batch.column(place).to_pylist()
    return values


def _targets(batch: pa.RecordBatch, ids: Ids, rules: RowRules) -> list[str]:
    known = sorted(set(rules.targets.values()))
    named = _column(batch, "_to") or [None] * batch.num_rows
    if len(known) == 1:
        named = [known[0] if name is None else name for name in named]
    try:
        return [rules.targets[name] for name in named]
    except KeyError:
        wrong, task_id = next((name, one) for name, one in zip(named, ids, strict=True) if name not in rules.targets)
        hint = f"give one of {', '.join(map(repr, known))}" if wrong is None else nearest(wrong, known)
        raise _wrong(rules, "_to", wrong, task_id, hint) from None


def _payloads(batch: pa.RecordBatch, ids: Ids, rules: RowRules) -> list[bytes]:
    column = batch.column(batch.schema.get_field_index("payload"))
    payloads: list[bytes] = _binary(batch, "payload")
    if (pc.max(pc.binary_length(column)).as_py() or 0) > rules.payload_limit:
        size, task_id = max(zip(map(len, payloads), ids, strict=True), key=lambda pair: pair[0])
        raise PayloadTooLarge(
            f"station {rules.station!r} returned a payload of {size} bytes for item {_shown(task_id)}, more than "
            f"payload_limit={rules.payload_limit}; keep large data elsewhere and pass a reference"
        )
    if rules.checks_payload:
        for task_id, payload in zip(ids, payloads, strict=True):
            try:
                check_json(payload)
            except UNREADABLE as error:
                raise _wrong(rules, "payload", payload[:60], task_id, f"no JSON ({error}); use to_json") from error
    return payloads


def _steering(batch: pa.RecordBatch, ids: Ids, rules: RowRules) -> dict[int, dict[str, Any]]:
    """The fields of the fourth argument, for each row that needs it."""
    more: dict[int, dict[str, Any]] = {}
    for column, word, read, should in _STEERING:
        values = _column(batch, column)
        try:
            _say(more, word, [None if value is None else read(value) for value in values])
        except (ValueError, InvalidOption):
            at = next(n for n, value in enumerate(values) if value is not None and refuses(read, value))
            raise _wrong(rules, column, values[at], ids[at], should) from None
    return more


def _say(more: dict[int, dict[str, Any]], word: str, values: list[Any]) -> None:
    for place, value in enumerate(values):
        if value is not None:
            more.setdefault(place, {})[word] = value


def _delay_ms(value: float) -> int | None:
    if (length_s := delay_s(value)) < 0:
        raise ValueError(value)
    return round(length_s * 1000) or None


def _given_headers(text: str) -> dict[str, str] | None:
    given = {name: word for name, word in _headers(text).items() if word is not None}
    write_headers(given)
    return given or None


_STEERING: tuple[tuple[str, str, Callable[[Any], Any], str], ...] = (
    ("_delay", "delay_ms", _delay_ms, "give seconds, from 0 to a century"),
    ("_priority", "priority", checked_priority, "give 0, 1 or 2; higher goes first"),
    ("_headers", "headers", _given_headers, "give a map of strings, of 64 KiB in all"),
)


def _make_new(
    words: list[Any], ids: Ids, more: dict[int, dict[str, Any]], rules: RowRules, source: str, before: int
) -> None:
    """Gives rows that are new items their ids and their origin."""
    tag = rules.station.partition("/")[0]
    for place, task_id in enumerate(ids):
        if task_id is not None and not rules.fan_out:
            continue
        if task_id is None and not rules.emits_new:
            payload = words[4 * place + 2][:60].decode(errors="replace")
            raise PipelineError(
                f"station {rules.station!r} returned a row without a value in column '_id' (payload {payload}): keep "
                "the id of the item, or declare emits_new=True for new items"
            )
        parent = None if task_id is None else task_id.decode()
        # A source is no item, so these ids are all digest: with a time in front, two of a million might be equal.
        words[4 * place] = derived_id(parent or f"new.{source}", f"{source}.{before + place}", tag)
        entries = more.setdefault(place, {})
        entries["new"] = 1
        if parent is not None:
            entries["parent"] = parent


def _wrong(rules: RowRules, column: str, value: object, task_id: bytes | None, what: str) -> PipelineError:
    return PipelineError(
        f"station {rules.station!r} returned {describe(value)} in column {column!r} of item {_shown(task_id)}: {what}"
    )


def _shown(task_id: bytes | None) -> str:
    return "without id" if task_id is None else task_id.decode(errors="replace")


def pack_errors(batch: pa.RecordBatch, rules: RowRules, before: int = 0) -> tuple[list[bytes | str], Ids]:  # noqa: ARG001
    """(staging arguments, ids) of rows with an error: their items become dead with it, and keep their payload."""
    ids: Ids = _binary(batch, "_id")
    words: list[bytes | str] = []
    for task_id, error in zip(ids, batch.column(batch.schema.get_field_index(ERROR)).to_pylist(), strict=True):
        if task_id is None:
            raise _wrong(rules, ERROR, error, None, "an error is that of an item; keep its _id")
        words += (task_id, b"", " ".join(error.split())[:LONGEST_ERROR] or "no reason given", b"")
    return words, ids


STAGED = "nonce string, rows long, digests binary"


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows that one counted task attempt staged."""

    nonce: str
    rows: int
    digests: bytes
    """64 bits for each id that rows name (in a fan-out: for each parent), to find doubled and missing items."""


def stage_rows(place: BatchRef, rules: RowRules, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stages the rows of a Spark task, then yields a row with the result for each key (none without rows)."""
    context = TaskContext.get()
    with place.open() as access:
        staged = stage_batches(access, rules, batches, context.partitionId() if context else 0)
    for one in staged:
        digests = pa.array([one.digests], pa.binary())
        yield pa.record_batch({"nonce": [one.nonce], "rows": [one.rows], "digests": digests})


def stage_batches(
    access: BatchConnections, rules: RowRules, batches: Iterable[pa.RecordBatch], partition: int
) -> list[StagedRows]:
    """Stages record batches under a new key, and rows with errors under another. Raises PipelineError that names column
    and item, BatchLost."""
    source = f"{access.place.batch}.{partition}"
    good, bad = _StagedKey(access, new_nonce(), partial(pack_rows, rules=rules, source=source)), None
    for batch in batches:
        failed = pc.is_valid(batch.column(place)) if (place := batch.schema.get_field_index(ERROR)) >= 0 else None
        if failed is not None and failed.true_count:
            bad = bad or _StagedKey(access, new_nonce(ERRORS), partial(pack_errors, rules=rules))
            bad.add(batch.filter(failed))
        good.add(batch if failed is None else batch.filter(pc.invert(failed)))
    return [one.staged for one in (good, bad) if one is not None and one.rows]


class _StagedKey:
    """A staging key that is being written."""

    def __init__(
        self, access: BatchConnections, nonce: str, pack: Callable[..., tuple[list[bytes | str], Ids]]
    ) -> None:
        self.rows = 0
        self._access = access
        self._nonce = nonce
        self._pack = pack
        self._digests = [b""]

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        words, ids = self._pack(batch, before=self.rows)
        self._digests.append(digests_of(ids).tobytes())
        self._access.stage(self._nonce, words, after=self.rows)
        self.rows += len(words) // 4

    @property
    def staged(self) -> StagedRows:
        return StagedRows(self._nonce, self.rows, b"".join(self._digests))


def digests_of(ids: Iterable[bytes | None]) -> "np.ndarray[Any, np.dtype[np.uint64]]":
    """64 bits for each id; nothing for those that are None."""
    present = np.array([one for one in ids if one is not None], dtype=object)
    found: np.ndarray[Any, np.dtype[np.uint64]] = pd.util.hash_array(present, categorize=False)
    return found
