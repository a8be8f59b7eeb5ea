"""The input of a station: the members of a batch as a DataFrame, read in chunks wherever Spark runs.

Small batches go through the driver, which saves Spark a stage of Python; larger batches are read where Spark runs, and
never pass the driver.

Items whose payload does not fit are not in the table: they are staged as dead, each with its reason, under a staging
key that begins with `misfits`. Whether a payload fits depends on nothing but the payload, so it does no harm that a
chunk may be read several times, or by a Spark task that does not count in the end.
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Self, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.types import StructType

from jobrunner.attempt import number_from
from jobrunner.broker.broker import Broker
from jobrunner.broker.bulk_reader import BulkReader, broker_at, pack_hash_reads
from jobrunner.broker.calls.batches import ROWS_AT_ONCE, stage
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.client.adaptive_slices import AdaptiveSlice
from jobrunner.encryption.envelope import is_protected
from jobrunner.errors import InvalidOption
from jobrunner.spark.columns import UTC, instants, numbers, texts
from jobrunner.spark.payloads import Check, misfit, payload_check
from jobrunner.spark.shipping import Shipped

CHUNK = 2_000
"""Items of one round trip and of one Arrow batch."""
MISFITS = "misfits."
_NO_JSON = "the payload is bytes, not JSON"
_PROTECTED = "the payload is encrypted, signed or in a payload store, and Spark reads none such"
_FIELDS = (b"payload", b"encoding", b"type", b"retry_count", b"enqueue_time", b"headers", b"finished_at")
COLUMNS = pa.schema(
    [
        ("_id", pa.string()),
        ("payload", pa.string()),
        ("_type", pa.string()),
        ("_attempts", pa.int32()),
        ("_enqueue_time", UTC),
        ("_headers", pa.string()),
    ]
)
DDL = "_id string, payload string, _type string, _attempts int, _enqueue_time timestamp, _headers string"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRef:
    """The address of a batch, for other processes; it is sent inside functions, never in a plan or a log."""

    url: str = field(repr=False)
    prefix: str
    queue: str
    batch: str
    epoch: int
    root: str
    """Id of the batch whose list has the members: `size` of them, from `first` on, are of this one."""
    first: int
    size: int
    failures: int = 0

    @contextmanager
    def open(self) -> Iterator["BatchConnections"]:
        """Connections to the batch, for a process that Spark started."""
        with (
            broker_at(self.url) as broker,
            BatchConnections(self, broker, Keys(self.prefix).queue(self.queue)) as access,
        ):
            yield access


class BatchConnections:
    """Connections to the server of one batch. The reader's is taken when needed, and given back with the end of the
    `with` block."""

    def __init__(self, place: BatchRef, broker: Broker, keys: QueueKeys) -> None:
        self.place = place
        self.keys = keys
        self._broker = broker

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if "reader" in self.__dict__:
            self.reader.give_back() if error is None else self.reader.close()

    @cached_property
    def reader(self) -> BulkReader:
        """The connection for bulk reads."""
        return BulkReader(self._broker, self.keys.base)

    @cached_property
    def _pace(self) -> AdaptiveSlice:
        return AdaptiveSlice(self._broker, ROWS_AT_ONCE)

    def stage(self, nonce: str, words: Sequence[bytes | str], *, after: int) -> None:
        """Appends any number of rows behind the `after` that are there. Raises BatchLost when another driver
        holds the batch."""
        for part in self._pace.portions(words):
            self._broker.run(stage(self.keys, self.place.batch, self.place.epoch, nonce, part, after=after))
            after += len(part) // 4


def new_nonce(kind: str = "") -> str:
    """A name for a staging key that no other attempt has."""
    return f"{kind}{secrets.token_hex(8)}"


def read_members(access: BatchConnections, start: int, count: int, check: Check) -> pa.RecordBatch:
    """Up to `count` members from position `start` on, without those that do not fit: they are staged as dead."""
    place, reader = access.place, access.reader
    first, last = place.first + start, place.first + min(start + count, place.size) - 1
    ids: list[bytes] = reader.ask(b"LRANGE", access.keys.batch + place.root.encode() + b":members", first, last)
    if place.root != place.batch:
        ids = _still_members(access, ids)
    reader.send(pack_hash_reads(access.keys.tasks, ids, _FIELDS))
    rows: list[list[bytes | None]] = reader.receive(len(ids))
    kept, misfits = _sorted_out(ids, rows, check)
    if misfits:
        access.stage(new_nonce(MISFITS), misfits, after=0)
    return _table(kept, place.failures)


def _still_members(access: BatchConnections, ids: list[bytes]) -> list[bytes]:
    """The members that no other part has ended. In earlier versions the ranges of two halves could overlap: only the
    first half may pass a member to the function, or a sink would write it twice."""
    if not ids:
        return ids
    number = number_from(access.place.root)
    held: list[bytes | None] = access.reader.ask(b"ZMSCORE", access.keys.leases, *ids)
    return [one for one, lease in zip(ids, held, strict=True) if lease is not None and float(lease) == number]


def _sorted_out(ids: list[bytes], rows: list[Any], check: Check) -> tuple[list[Any], list[bytes | str]]:
    """(ids and fields of the members that fit, by column; staged words for the others)."""
    with suppress(msgspec.MsgspecError, ValueError, RecursionError, TypeError):
        columns = list(zip(*rows, strict=True))
        if columns and columns[1].count(b"json") == columns[6].count(None) == len(rows):
            for payload in columns[0]:
                check(payload)
            return [ids, *columns], []
    return _one_by_one(ids, rows, check)


def _one_by_one(ids: list[bytes], rows: list[Any], check: Check) -> tuple[list[Any], list[bytes | str]]:
    kept: list[Any] = []
    misfits: list[bytes | str] = []
    for task_id, row in zip(ids, rows, strict=True):
        payload, encoding, finished_at = row[0], row[1], row[6]
        if finished_at is not None:
            continue  # it was deleted meanwhile, and is history; a member ends in no other way and keeps its hash
        if encoding == b"json":
            try:
                check(payload)
                kept.append((task_id, *row))
                continue
            except (msgspec.MsgspecError, ValueError, RecursionError, TypeError) as error:
                reason = misfit(error)
        elif payload is None:
            continue  # it was cancelled or deleted meanwhile: its hash is gone
        else:
            reason = _PROTECTED if is_protected(encoding) else _NO_JSON
        misfits += (task_id, b"", f"PipelineError: {reason} (item {task_id.decode()})", b"")
    return list(zip(*kept, strict=True)) or [()] * (1 + len(_FIELDS)), misfits


def _table(kept: list[Any], failures: int) -> pa.RecordBatch:
    ids, payloads, _, types, retries, times, headers, _ = kept
    columns = [
        texts(ids),
        texts(payloads),
        pc.fill_null(texts(types), ""),
        pc.cast(pc.add(pc.fill_null(numbers(retries), 0.0), failures + 1.0), pa.int32(), safe=False),
        instants(numbers(times)),
        texts(headers),
    ]
    return pa.record_batch(columns, schema=COLUMNS)


THROUGH_DRIVER = 10_000
"""Largest batch, in items, that is read by the driver."""
VARIANT = "variant"
PAYLOAD = "payload"
OWN = ("_id", "_type", "_attempts", "_enqueue_time", "_headers")


@dataclass(frozen=True, slots=True)
class PayloadShape:
    """How a station sees payloads: by columns, or as one column of JSON text or of variants."""

    columns: StructType | None = None
    is_variant: bool = False
    check: Check = field(default=payload_check(None), repr=False, compare=False)
    """Raises for a payload that does not fit."""


def shape_of(schema: str | StructType | None, queue: str) -> PayloadShape:
    """The shape that a schema declares. Needs a session. Raises InvalidOption that names the column."""
    if schema is None or (isinstance(schema, str) and schema.strip().lower() == VARIANT):
        return PayloadShape(is_variant=schema is not None)
    try:
        columns = schema if isinstance(schema, StructType) else cast(StructType, StructType.fromDDL(schema))
    except PySparkException as error:
        said = str(error).split("\n")[0]
        raise InvalidOption(f"schema={schema!r} of queue {queue!r}: {said}; write 'id int, name string'") from error
    for name in columns.fieldNames():
        if name.startswith("_"):
            raise InvalidOption(
                f"column {name!r} in the schema of queue {queue!r}: names that begin with _ are the item's own; "
                "leave the schema out and read it from the column payload"
            )
    return PayloadShape(columns, check=payload_check(columns))


def members_frame(spark: SparkSession, access: BatchConnections, shape: PayloadShape) -> DataFrame:
    """The items of a batch whose payloads fit; the others are staged as dead when the frame is evaluated, or now."""
    place = access.place
    if place.size <= THROUGH_DRIVER:
        with access:
            read = [read_members(access, start, CHUNK, shape.check) for start in range(0, place.size, CHUNK)]
        return dress(spark.createDataFrame(pa.Table.from_batches(read, COLUMNS)), shape)
    chunks = spark.range(0, place.size, CHUNK)
    return dress(chunks.mapInArrow(Shipped(partial(_read_task, place, shape.columns, CHUNK)), DDL), shape)


def without_members(df: DataFrame, members: frozenset[str]) -> DataFrame:
    """The rows of a batch but those of these members."""
    table = df.sparkSession.createDataFrame(pa.table({"_id": pa.array(sorted(members), pa.string())}))
    return df.join(F.broadcast(table), "_id", "left_anti").select(*[F.col(f"`{name}`") for name in df.columns])


def _read_task(
    place: BatchRef, columns: StructType | None, size: int, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One Spark task: each row says where a chunk begins."""
    check = payload_check(columns)
    with place.open() as access:
        for batch in rows:
            for start in batch.column(0).to_pylist():
                yield read_members(access, start, size, check)


def as_read(rows: DataFrame, payload: Column) -> DataFrame:
    """Rows with a payload, in the columns of DDL: the opposite of `dress`."""
    own = [F.col(name) for name in OWN if name not in ("_id", "_headers")]
    return rows.select(F.col("_id"), payload.alias(PAYLOAD), *own, F.to_json("_headers").alias("_headers"))


def dress(read: DataFrame, shape: PayloadShape) -> DataFrame:
    """Rows as a station sees them, made of the columns of DDL."""
    headers = F.from_json("_headers", "map<string,string>").alias("_headers")
    own: list[Column] = [F.col("_id"), F.col("_type"), F.col("_attempts"), F.col("_enqueue_time"), headers]
    if shape.columns is not None:
        # Misfits were sorted out before; the mode makes sure that no value turns into null silently.
        parsed = F.from_json(PAYLOAD, shape.columns, {"mode": "FAILFAST"}).alias(PAYLOAD)
        named: list[Column] = [F.col(f"`{PAYLOAD}`.`{name}`") for name in shape.columns.fieldNames()]
        return read.select(parsed, *own).select(*named, *map(F.col, OWN))
    payload = F.parse_json(PAYLOAD).alias(PAYLOAD) if shape.is_variant else F.col(PAYLOAD)
    return read.select(payload, *own)
