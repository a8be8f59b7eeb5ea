"""Reads one slice of a queue as Arrow record batches. Runs on executors and depends on no other part of the read.

The next page is requested before the present one is converted to Arrow, so the server works meanwhile. Pages shrink
when payloads are large: a page has a few MB at most.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType

from jobrunner.broker.broker import Broker
from jobrunner.broker.bulk_reader import BulkReader, broker_at, pack_hash_reads
from jobrunner.broker.call import command
from jobrunner.broker.keys import Keys
from jobrunner.encryption.envelope import is_protected
from jobrunner.errors import HistoryTrimmed, ParameterError
from jobrunner.spark.collection import without_collection
from jobrunner.spark.columns import ItemChunk, Selection, texts
from jobrunner.spark.payload_columns import PayloadColumns
from jobrunner.spark.payloads import PROTECTED
from jobrunner.spark.source.options import MISFIT, PAYLOAD, ReadOptions, ReadSchema
from jobrunner.spark.source.scan import QueueSlice, ScanPage, SetScan

_FIRST_PAGE = 500
_PAGE = 2_000
_PAGE_BYTES = 4 << 20
_ALWAYS = ("queue",)
_ENQUEUED = "enqueue_time"


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRead:
    """The parameters that executors need. `types`: only these jobs; `whole`: a deleted entry is an error."""

    options: ReadOptions
    shape: ReadSchema
    types: frozenset[str] | None = None
    whole: bool = False

    def batches(self, piece: QueueSlice) -> Iterator[pa.RecordBatch]:
        """The items of a slice."""
        with (
            without_collection(),
            broker_at(self.options.url, self.options.prefix) as broker,
            BulkReader(broker, Keys(self.options.prefix).queue(piece.queue).base) as reader,
            closing(_SliceReader(self, piece, reader, broker).batches()) as batches,
        ):
            yield from batches


class _SliceReader:
    """Reads one slice over one connection."""

    def __init__(self, read: ItemRead, piece: QueueSlice, reader: BulkReader, broker: Broker) -> None:
        self._read, self._piece, self._reader, self._broker = read, piece, reader, broker
        keys = Keys(read.options.prefix).queue(piece.queue)
        self._tasks = keys.tasks
        key = getattr(keys, piece.state)
        self._walk = SetScan(key, piece.up_to_the_end(broker, key))
        self._selection = Selection(read.shape.item)
        self._payloads = PayloadColumns(read.shape.fields) if read.shape.fields.fields else None
        of_payload = (read.shape.schema[name] for name in read.shape.fields.names)
        self._without_null = next((one.name for one in of_payload if not one.nullable), None)
        """A column that the user's own schema says has no null, so that a payload must fit."""
        self._fields = self._wanted()
        self._packed_fields = [field.encode() for field in self._fields]
        self._schema = to_arrow_schema(read.shape.schema, timezone="UTC")
        self._name = piece.queue.encode()
        self._types = None if read.types is None else {one.encode() for one in read.types}
        self._size = _FIRST_PAGE

    def _wanted(self) -> tuple[str, ...]:
        shape = self._read.shape
        wanted = [*_ALWAYS, *self._selection.fields(self._piece.state)]
        if shape.raw or shape.fields.fields:
            wanted.append("payload")
        if self._read.types is not None:
            wanted.append("type")
        if self._piece.state == "done":
            wanted.append(_ENQUEUED)
        return tuple(dict.fromkeys(wanted))

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        reader, walk = self._reader, self._walk
        reader.send(walk.packed(self._size))
        page = walk.take(reader.receive(1)[0], reader.ask)
        self._ask_for(page)
        while page.ids:
            before = reader.received
            replies = reader.receive(len(page.ids) + (not walk.ended))
            following = ScanPage(ids=[], scores=[]) if walk.ended else walk.take(replies.pop(), reader.ask)
            self._size = self._next_size(len(page.ids), reader.received - before)
            self._ask_for(following)
            batch = self._batch(page, replies)
            if batch is not None:
                yield batch
            page = following

    def _ask_for(self, page: ScanPage) -> None:
        if not page.ids:
            return
        packed = pack_hash_reads(self._tasks, page.ids, self._packed_fields)
        self._reader.send(packed if self._walk.ended else packed + self._walk.packed(self._size))

    def _next_size(self, rows: int, size: int) -> int:
        return max(16, min(_PAGE, 2 * rows, _PAGE_BYTES // (size // rows + 1)))

    def _batch(self, page: ScanPage, replies: list[Any]) -> pa.RecordBatch | None:
        chunk = self._chunk(page, replies)
        if chunk is None:
            return None
        made = {name: column.make(chunk) for name, column in self._selection.columns.items()}
        self._add_payload(chunk, made)
        return pa.RecordBatch.from_arrays([made[name] for name in self._schema.names], schema=self._schema)

    def _chunk(self, page: ScanPage, replies: list[Any]) -> ItemChunk | None:
        if self._piece.state == "done":
            replies = self._without_later_tasks(page, replies)
        ids, scores, rows = page.ids, page.scores, replies
        if self._read.whole:
            self._refuse_gap(page, rows)
        columns = self._columns_of(rows)
        if columns is None:
            kept = [place for place, row in enumerate(rows) if self._is_wanted(row)]
            ids, scores, rows = ([found[place] for place in kept] for found in (ids, scores, rows))
            columns = tuple(zip(*rows, strict=True))
        if not ids:
            return None
        values = dict(zip(self._fields, columns, strict=True))
        return ItemChunk(queue=self._piece.queue, state=self._piece.state, ids=ids, scores=scores, values=values)

    def _without_later_tasks(self, page: ScanPage, rows: list[Any]) -> list[Any]:
        """The rows without those of a later task that reuses the id. A task's hash may expire before its history entry,
        when the history's retention was raised since; the id may then be in use again. A row belongs to a later task
        when its enqueue time is after the finish time of the entry, unless a clock was set back: then its hash has an
        expiry, as only hashes of finished tasks have. The times are texts of one length."""
        at = self._fields.index(_ENQUEUED)
        later = [
            place
            for place, (row, score) in enumerate(zip(rows, page.scores, strict=True))
            if type(row) is list and row[at] is not None and row[at] > score
        ]
        if not later:
            return rows
        asked = [command("PTTL", self._tasks + page.ids[place], read=int) for place in later]
        found = list(rows)
        for place, left_ms in zip(later, self._broker.run_many(asked), strict=True):
            if left_ms < 0:
                found[place] = [None] * len(self._fields)
        return found

    def _columns_of(self, rows: list[Any]) -> Sequence[Sequence[bytes | None]] | None:
        """The values by field, when every row is wanted; else None, also when a hash is damaged."""
        try:
            columns = tuple(zip(*rows, strict=True))
        except TypeError:  # a hash is damaged: its reply is an error instead of a list
            return None
        if self._types is not None or columns[0].count(self._name) < len(rows):
            return None
        return columns

    def _is_wanted(self, row: Any) -> bool:
        if type(row) is not list or row[0] != self._name:
            return False
        return self._types is None or (row[self._fields.index("type")] or b"") in self._types

    def _refuse_gap(self, page: ScanPage, rows: list[Any]) -> None:
        gone = [one for one, row in zip(page.ids, rows, strict=True) if type(row) is list and row[0] is None]
        if gone:
            raise HistoryTrimmed(
                f"{len(gone)} tasks in the history of {self._piece.queue!r} were deleted before they were read, "
                f"{gone[0].decode('utf-8', 'replace')} first; keep history longer"
            )

    def _add_payload(self, chunk: ItemChunk, made: dict[str, pa.Array]) -> None:
        shape = self._read.shape
        if shape.raw:
            is_text = isinstance(shape.schema[PAYLOAD].dataType, StringType)
            payloads = chunk.values["payload"]
            made[PAYLOAD] = texts(payloads) if is_text else pa.array(payloads, pa.binary())
        misfits: dict[int, str] = {}
        if self._payloads is not None:
            arrays, misfits = self._payloads.read(chunk.values["payload"])
            self._explain(chunk, misfits)
            if misfits and (self._read.options.fails_fast or self._without_null):
                place = min(misfits)
                hint = f"; its row needs a null in {self._without_null!r}: drop NOT NULL" if self._without_null else ""
                raise ParameterError(f"task {chunk.ids[place].decode('utf-8', 'replace')}: {misfits[place]}{hint}")
            made.update(zip(shape.fields.names, arrays, strict=True))
        if shape.misfit:
            made[MISFIT] = pa.array([misfits.get(place) for place in range(len(chunk.ids))], pa.string())

    def _explain(self, chunk: ItemChunk, misfits: dict[int, str]) -> None:
        """Replaces the reason of payloads that do not fit because they are protected. Fetches the encoding of misfits
        only, over another connection, to spare all other items the cost."""
        asked = [command("HGET", self._tasks + chunk.ids[place], "encoding", read=is_protected) for place in misfits]
        for place, hides in zip(list(misfits), self._broker.run_many(asked) if asked else (), strict=True):
            if hides:
                misfits[place] = PROTECTED
