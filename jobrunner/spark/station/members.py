"""The members of a batch as Arrow tables, read in chunks wherever Spark runs.

Items whose payload does not fit are not in the table: they are staged as dead, each with its reason, under a staging
key that begins with `misfits`. Whether a payload fits depends on nothing but the payload, so it does no harm that a
chunk may be read several times, or by a Spark task that does not count in the end.
"""

import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from jobrunner.broker.broker import Broker
from jobrunner.broker.bulk_reader import BulkReader, pack_hash_reads
from jobrunner.broker.calls.batches import ROWS_AT_ONCE, stage
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.client.adaptive_slices import AdaptiveSlice
from jobrunner.encryption.cipher import is_protected
from jobrunner.lease_number import number_from
from jobrunner.spark.columns import UTC, instants, numbers, texts
from jobrunner.spark.payloads import Check, misfit

CHUNK = 2_000
"""Items of one round trip and of one Arrow batch."""
MISFITS = "misfits."
_NO_JSON = "the payload is bytes, not JSON"
_PROTECTED = "the payload is encrypted or signed, and Spark reads none"
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

    def open(self) -> "BatchConnections":
        """Connections to the batch, to be closed."""
        return BatchConnections(self)


class BatchConnections:
    """Connections to the server of one batch, opened when needed. Ends with its `with` block."""

    def __init__(self, place: BatchRef) -> None:
        self.place = place
        self._endpoint = Endpoint(place.url, client_name="jobrunner-spark")
        self._broker = Broker(self._endpoint, retry_timeout_s=5.0)
        self.keys: QueueKeys = Keys(place.prefix).queue(place.queue)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if "reader" in self.__dict__:
            self.reader.close()
        self._broker.close()
        self._endpoint.release()

    @cached_property
    def reader(self) -> BulkReader:
        """The connection for bulk reads."""
        return BulkReader(self._endpoint, self.keys.base)

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
    """The members that no other half has ended. In earlier versions the ranges of two halves could overlap: only the
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
