"""The input of a station: the members of a batch as a DataFrame, read in chunks wherever Spark runs.

The driver reads small batches, which saves Spark a Python stage; executors read larger ones, by their items or by their
bytes, which never pass the driver.

Items whose payload does not fit are not in the table: they are staged as dead, each with its reason, under a staging
key that begins with `misfits`. Whether a payload fits depends only on the payload, so a chunk may be read several
times, or by a Spark task that does not count in the end.
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.types import StructType

from jobrunner.attempt import number_from
from jobrunner.broker.broker import Broker
from jobrunner.broker.bulk_reader import BulkReader, broker_at, pack_hash_reads
from jobrunner.broker.calls.batches import ROWS_AT_ONCE, stage
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.client.adaptive_slices import AdaptiveSlice
from jobrunner.encryption.envelope import is_protected
from jobrunner.spark.collection import without_collection
from jobrunner.spark.columns import instants, numbers, quoted, texts
from jobrunner.spark.payload_columns import PayloadReader, payload_reader
from jobrunner.spark.payloads import PROTECTED
from jobrunner.spark.shipping import Shipped
from jobrunner.spark.station.payload_shape import PayloadShape, arrow_schema, spark_schema, time_zone

CHUNK = 2_000
"""Most items of one round trip and of one Arrow batch."""
_CHUNK_BYTES = 8 << 20
"""Bytes of a round trip, about: the server holds them all, and Python the replies and their Arrow batch."""
_FIRST_CHUNK = 32
"""Items of a first round trip, which shows how large they are."""
MISFITS = "misfits."
CANCELLED = b"cancelled before this attempt"
_NO_JSON = "the payload is bytes, not JSON"
_FIELDS = (b"payload", b"encoding", b"type", b"retry_count", b"enqueue_time", b"headers", b"finished_at")
THROUGH_DRIVER = 10_000
"""Largest batch, in items, that is read by the driver."""
THROUGH_DRIVER_BYTES = 16 << 20
"""Largest batch, in bytes, that is read by the driver. Java holds its rows several times, for each lane of a station;
when the thread that starts Spark tasks finds no memory for them, it ends alone, and no job of the session ends again.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRef:
    """The address of a batch, for other processes; it is sent inside functions, never in a plan or a log."""

    url: str = field(repr=False)
    prefix: str
    queue: str
    batch: str
    epoch: int
    root: str
    """Id of the batch whose list has the members: `size` of them, from `first` on, belong to this batch."""
    first: int
    size: int
    failures: int = 0
    cancelled: frozenset[bytes] = field(default=frozenset(), repr=False)
    """Members that this attempt leaves out, see `cancelled_members`."""

    @contextmanager
    def open(self) -> Iterator["BatchConnections"]:
        """Connections to the batch, for a process that Spark started."""
        with (
            broker_at(self.url, self.prefix) as broker,
            BatchConnections(self, broker, Keys(self.prefix).queue(self.queue)) as access,
        ):
            yield access


class BatchConnections:
    """Connections to the server of one batch. The reader's connection is opened on demand, and released at the end of
    the `with` block."""

    def __init__(self, place: BatchRef, broker: Broker, keys: QueueKeys) -> None:
        self.place = place
        self.keys = keys
        self.reads_later = False
        """Whether Spark reads the members when it evaluates their frame; else they were read to make it."""
        self._broker = broker
        self._at_once = _FIRST_CHUNK

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if "reader" in self.__dict__:
            self.reader.give_back() if error is None else self.reader.close()

    @cached_property
    def reader(self) -> BulkReader:
        """The connection for bulk reads."""
        return BulkReader(self._broker, self.keys.base)

    def chunks(self, start: int, stop: int, payloads: PayloadReader, most: int) -> Iterator[pa.RecordBatch]:
        """The members from position `start` up to `stop`, each chunk as `read_members` returns it: up to `most` items,
        fewer where the last ones were large."""
        while start < stop:
            before, count = self.reader.received, min(self._at_once, most, stop - start)
            yield read_members(self, start, count, payloads)
            start += count
            self._at_once = max(count * _CHUNK_BYTES // max(self.reader.received - before, 1), 1)

    @cached_property
    def _pace(self) -> AdaptiveSlice:
        return AdaptiveSlice(self._broker, ROWS_AT_ONCE)

    def stage(self, nonce: str, words: Sequence[bytes | str], *, after: int) -> None:
        """Appends any number of rows to the `after` rows staged before. Raises BatchLost when another driver holds the
        batch."""
        for part in self._pace.portions(words):
            self._broker.run(stage(self.keys, self.place.batch, self.place.epoch, nonce, part, after=after))
            after += len(part) // 4


def new_nonce(kind: str = "") -> str:
    """A name for a staging key that no other attempt has."""
    return f"{kind}{secrets.token_hex(8)}"


def cancelled_members(access: BatchConnections) -> frozenset[bytes]:
    """Ids of the members whose cancellation was requested before this attempt, so that no attempt begins for them. A
    row is staged for each, which ends the member as cancelled. Read once, so that all reads of an attempt agree."""
    place, found = access.place, list[bytes]()
    for start in range(0, place.size, CHUNK):
        ids = _ids(access, start, CHUNK)
        rows = _hashes(access, ids, (b"cancel_requested", b"finished_at"))
        for one, (is_asked, finished_at) in zip(ids, rows, strict=True):
            if is_asked is not None and finished_at is None:  # otherwise it was deleted since, and is history
                found.append(one)
    if found:
        access.stage(new_nonce(MISFITS), [word for one in found for word in (one, b"", CANCELLED, b"")], after=0)
    return frozenset(found)


def _ids(access: BatchConnections, start: int, count: int) -> list[bytes]:
    place = access.place
    first, last = place.first + start, place.first + min(start + count, place.size) - 1
    key = access.keys.batch + place.root.encode() + b":members"
    ids: list[bytes] = access.reader.ask(b"LRANGE", key, first, last)
    return [one for one in ids if one not in place.cancelled] if place.cancelled else ids


def _hashes(access: BatchConnections, ids: list[bytes], fields: Sequence[bytes]) -> list[Any]:
    """These fields of the members; nulls for a member whose hash is gone or damaged."""
    access.reader.send(pack_hash_reads(access.keys.tasks, ids, fields))
    nulls = [None] * len(fields)
    return [row if type(row) is list else nulls for row in access.reader.receive(len(ids))]


def read_members(access: BatchConnections, start: int, count: int, payloads: PayloadReader) -> pa.RecordBatch:
    """Up to `count` members from position `start` on, without misfits, which are staged as dead."""
    place = access.place
    ids = _still_members(access, _ids(access, start, count))
    kept, refused = _of_json(ids, _hashes(access, ids, _FIELDS))
    arrays, misfits = payloads.read(kept[1])
    found = _table(kept, arrays, payloads, place.failures)
    if misfits:
        refused += [(kept[0][at], reason) for at, reason in misfits.items()]
        found = found.take(pa.array([at for at in range(found.num_rows) if at not in misfits], pa.int64()))
    if refused:
        rows = ((one, b"", f"PipelineError: {reason}", b"") for one, reason in refused)
        access.stage(new_nonce(MISFITS), [word for row in rows for word in row], after=0)
    return found


def _still_members(access: BatchConnections, ids: list[bytes]) -> list[bytes]:
    """The members under the lease of the batch. Parts share one lease number, so a row of one part may end a member of
    another; and an item that was deleted may have been pushed again under its id. A sink would write both twice."""
    if not ids:
        return ids
    number = number_from(access.place.root)
    held: list[bytes | None] = access.reader.ask(b"ZMSCORE", access.keys.leases, *ids)
    return [one for one, lease in zip(ids, held, strict=True) if lease is not None and float(lease) == number]


def _of_json(ids: list[bytes], rows: list[Any]) -> tuple[list[Any], list[tuple[bytes, str]]]:
    """(ids and fields of the members whose payload is JSON text, by column; ids of other existing members, each with
    the reason)."""
    columns = list(zip(*rows, strict=True))
    if columns and columns[1].count(b"json") == columns[6].count(None) == len(rows):
        return [ids, *columns], []
    kept: list[Any] = []
    refused: list[tuple[bytes, str]] = []
    for task_id, row in zip(ids, rows, strict=True):
        payload, encoding, finished_at = row[0], row[1], row[6]
        if finished_at is not None:
            continue  # it was deleted meanwhile, and is history; a member ends in no other way and keeps its hash
        if encoding == b"json":
            kept.append((task_id, *row))
        elif payload is not None:  # otherwise it was cancelled or deleted meanwhile: its hash is gone
            refused.append((task_id, PROTECTED if is_protected(encoding) else _NO_JSON))
    return list(zip(*kept, strict=True)) or [()] * (1 + len(_FIELDS)), refused


def _table(kept: list[Any], payload: list[pa.Array], reader: PayloadReader, failures: int) -> pa.RecordBatch:
    ids, _, _, types, retries, times, headers, _ = kept
    own = [
        texts(ids),
        pc.fill_null(texts(types), ""),
        pc.cast(pc.add(pc.fill_null(numbers(retries), 0.0), failures + 1.0), pa.int32(), safe=False),
        instants(numbers(times)),
        texts(headers),
    ]
    return pa.record_batch([*payload, *own], schema=arrow_schema(reader))


def members_frame(spark: SparkSession, access: BatchConnections, shape: PayloadShape) -> DataFrame:
    """The items of a batch whose payloads fit; the others are staged as dead when the frame is evaluated, or now."""
    place, zone = access.place, time_zone(spark, [shape.columns])
    reader = payload_reader(shape.columns, zone)
    read = _read_here(access, reader) if place.size <= THROUGH_DRIVER else None
    if read is not None:
        rows = pa.Table.from_batches(read, arrow_schema(reader))
        # Spark Connect refuses a table without rows (no payload of the batch fits), unless it has a schema.
        return shape.dress(spark.createDataFrame(rows, spark_schema(reader)), reader)
    access.reads_later = True
    read_task = Shipped(partial(_read_task, place, shape.columns, zone, CHUNK))
    return shape.dress(spark.range(0, place.size, CHUNK).mapInArrow(read_task, spark_schema(reader)), reader)


def _read_here(access: BatchConnections, payloads: PayloadReader) -> list[pa.RecordBatch] | None:
    """The members of a batch; None when they are too large for this process and its Java."""
    found: list[pa.RecordBatch] = []
    with access:
        before = access.reader.received
        for chunk in access.chunks(0, access.place.size, payloads, CHUNK):
            found.append(chunk)
            if access.reader.received - before > THROUGH_DRIVER_BYTES:
                return None
    return found


def without_members(df: DataFrame, members: frozenset[str]) -> DataFrame:
    """The rows of a batch without those of `members`."""
    table = df.sparkSession.createDataFrame(pa.table({"_id": pa.array(sorted(members), pa.string())}))
    return df.join(F.broadcast(table), "_id", "left_anti").select(*[F.col(quoted(name)) for name in df.columns])


def _read_task(
    place: BatchRef, columns: StructType | None, zone: str, size: int, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Reads members in a Spark task: each row has the position at which a chunk begins."""
    reader = payload_reader(columns, zone)
    with place.open() as access:
        for batch in rows:
            for start in batch.column(0).to_pylist():
                chunks = access.chunks(start, min(start + size, place.size), reader, size)
                while True:
                    with without_collection():
                        found = next(chunks, None)
                    if found is None:
                        break
                    yield found
