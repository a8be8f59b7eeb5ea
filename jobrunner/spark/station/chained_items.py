"""Runs the Python stations of a chain item by item, on Spark's executors.

An item passes through stations until the next one is on Spark. An error makes the item dead with the reason, as a chain
has no queue in which the item could wait for another attempt.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StringType, StructField, StructType

from jobrunner.attempt import Attempt
from jobrunner.client.item import read_payload
from jobrunner.clock import unix_ms
from jobrunner.errors import ParameterError, StationError
from jobrunner.etl.chain import PythonStep
from jobrunner.etl.station import StationItem
from jobrunner.jobs.running_task import JobRun
from jobrunner.logs import logger
from jobrunner.outcome import Fail, Moved, Retry, Snooze, Steer
from jobrunner.spark.columns import UTC
from jobrunner.spark.payload_columns import payload_reader
from jobrunner.spark.row_errors import CAUSED_BY_CODE, one_line
from jobrunner.spark.running import text_of
from jobrunner.spark.station.payload_shape import OWN, OWN_FIELDS, OWN_KINDS, arrow_fields, spark_fields

_AHEAD_MS = 86_400_000.0
"""The deadline of items in a chain, in ms from now: nothing ends them, but code that computes timeouts from the
deadline needs a value."""
_OWN = [*zip(OWN, OWN_KINDS, strict=True), ("_to", pa.string()), ("_error", pa.string())]
_TO_AND_ERROR = [StructField("_to", StringType()), StructField("_error", StringType())]


class TargetPayloads:
    """The columns in which rows carry their payloads to the next stations on Spark: one set for each schema, shared by
    all queues with that schema, and null for rows that go to other queues. The driver and each Spark task create their
    own."""

    def __init__(self, schemas: Mapping[str, StructType | None], zone: str) -> None:
        distinct: list[StructType | None] = []
        for schema in schemas.values():
            if schema not in distinct:
                distinct.append(schema)
        self.readers = [payload_reader(schema, zone) for schema in distinct]
        self.place_of = {queue: distinct.index(schema) for queue, schema in schemas.items()}
        """The index of each queue's reader."""

    @staticmethod
    def prefix(place: int) -> str:
        """The prefix of the column names of a reader."""
        return f"{place}."

    def spark_schema(self) -> StructType:
        """The Spark schema of the rows that ItemRows returns."""
        fields = [one for place, reader in enumerate(self.readers) for one in spark_fields(reader, self.prefix(place))]
        return StructType([*fields, *OWN_FIELDS, *_TO_AND_ERROR])

    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of these rows."""
        fields = [one for place, reader in enumerate(self.readers) for one in arrow_fields(reader, self.prefix(place))]
        return pa.schema([*fields, *_OWN])


class _Row(msgspec.Struct, gc=False):
    """An item after the stations in Python: on its way to `queue`, or dead there with `error`."""

    id: str
    type: str
    number: int
    time_us: int
    queue: str
    payload: bytes = b""
    headers: str | None = None
    error: str | None = None


class ItemRows:
    """Turns items of one queue into rows for the next stations on Spark; `_to` is the full name of their queue.
    Lifetime: each Spark task creates its own."""

    def __init__(self, queue: str, steps: Mapping[str, PythonStep], targets: TargetPayloads) -> None:
        self._queue = queue
        self._steps = steps
        self._targets = targets
        self._schema = targets.arrow_schema()
        self._deadline_ms = unix_ms() + _AHEAD_MS

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of one Arrow batch, without those of items that a station dropped."""
        times = pc.cast(pc.cast(batch.column("_enqueue_time"), pa.timestamp("us")), pa.int64()).to_pylist()
        names = ("_id", "payload", "_type", "_attempts", "_headers")
        items = zip(*[batch.column(name).to_pylist() for name in names], times, strict=True)
        rows = [row for item in items if (row := self._row(item)) is not None]
        arrays = [array for place in range(len(self._targets.readers)) for array in self._payloads(rows, place)]
        own = [
            pa.array([row.id for row in rows], pa.string()),
            pa.array([row.type for row in rows], pa.string()),
            pa.array([row.number for row in rows], pa.int32()),
            pa.array([row.time_us for row in rows], pa.int64()).cast(UTC),
            pa.array([row.headers for row in rows], pa.string()),
            pa.array([row.queue for row in rows], pa.string()),
            pa.array([row.error for row in rows], pa.string()),
        ]
        return pa.record_batch([*arrays, *own], schema=self._schema)

    def _payloads(self, rows: Sequence[_Row], place: int) -> Iterable[pa.Array]:
        """The columns of one reader for all rows; sets the error of rows whose payload does not fit."""
        place_of = self._targets.place_of
        at = [number for number, row in enumerate(rows) if row.error is None and place_of[row.queue] == place]
        arrays, misfits = self._targets.readers[place].read([rows[number].payload for number in at])
        for position, reason in misfits.items():
            rows[at[position]].error = f"PipelineError: {reason}"
        if len(at) == len(rows):
            return arrays
        sources: list[int | None] = [None] * len(rows)
        for position, number in enumerate(at):
            sources[number] = position
        taken = pa.array(sources, pa.int32())
        return [array.take(taken) for array in arrays]

    def _row(self, item: tuple[str, str, str | None, int | None, str | None, int | None]) -> _Row | None:
        """The row of an item; None for an item that ends here."""
        task_id, payload, kind, number, headers, time_us = item
        kind, number, time_us = kind or "", number or 1, time_us or 0  # null after an outer join, say
        attempt = Attempt(
            queue=self._queue, id=task_id, token="", deadline_ms=self._deadline_ms, keepalive_ms=0.0, type=kind,
            payload=payload.encode(), number=number, retry_count=number - 1, enqueue_time_ms=time_us / 1000,
            max_attempts=0, headers=None if headers is None else headers.encode(), encoding=b"json",
        )  # fmt: skip
        row = _Row(id=task_id, type=kind, number=number, time_us=time_us, queue=self._queue)
        while attempt.queue in self._steps:
            step = self._steps[attempt.queue]
            try:
                moved = _outcome(step, attempt)
            except CAUSED_BY_CODE:
                raise
            except _Asked as asked:
                raise StationError(str(asked)) from None
            except Fail as failed:
                row.queue, row.error = attempt.queue, text_of(failed)
                return row
            except Exception as error:
                row.queue, row.error = attempt.queue, one_line(error)
                return row
            if moved is None:
                return None
            _move(attempt, moved)
        row.queue, row.payload = attempt.queue, attempt.payload or b""
        row.headers = None if attempt.headers is None else attempt.headers.decode()
        if attempt.encoding != b"json":
            row.error = "PipelineError: the payload is no JSON: the payload is bytes, not JSON"
        return row


class _Asked(Exception):
    """A station asked for an operation that a chain cannot do for a single item: the batch fails."""


def _outcome(step: PythonStep, attempt: Attempt) -> Moved | None:
    """The queue that the item moves to; None when it ends here. Raises the errors of the station, and Fail."""
    queue = step.link.queue
    try:
        payload = read_payload(attempt.payload, attempt.encoding)
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"station {queue!r} cannot read the payload of item {attempt.id}: {error}") from error
    try:
        found = step.link.outcome(step.function(StationItem(payload, cast(JobRun, _ItemRun(attempt)))), attempt)
    except Steer as steer:
        found = steer
    if isinstance(found, Moved):
        if found.delay_s:
            raise _Asked(f"station {queue!r} returned a delay for item {attempt.id}: a chain has no queue to wait in")
        return found
    if isinstance(found, Fail):
        raise found
    if isinstance(found, (Retry, Snooze)):
        raise _Asked(
            f"station {queue!r} asked to try item {attempt.id} again ({type(found).__name__}: {found}), which a chain "
            "does with whole batches only: raise Fail for it, or take the station out of the chain"
        )
    return None  # dropped or cancelled


def _move(attempt: Attempt, moved: Moved) -> None:
    attempt.queue = moved.queue
    if moved.payload is not None:
        attempt.payload, attempt.encoding = moved.payload, moved.encoding.encode()
    if moved.headers is not None:
        attempt.headers = moved.headers


class _ItemRun:
    """The run of a StationItem, for use without a worker."""

    __slots__ = ("attempt",)
    deadline: datetime | None = None
    cancelled = False

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt

    @property
    def log(self) -> Any:
        """A structlog logger bound to queue, item and attempt."""
        attempt = self.attempt
        return logger("jobrunner.job").bind(queue=attempt.queue, task=attempt.id, attempt=attempt.number)

    def progress(self, done: float, total: float, note: str = "") -> None:
        """Reports nothing: the item has no attempt of its own."""
