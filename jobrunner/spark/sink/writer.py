"""Writes DataFrames into a queue, one task for each row; as a whole or not at all, and each row once.

The rows are staged under a batch without members (docs/how-batches-work.md), and the driver decides. Invariants:

1. a Spark task that runs again, or twice at once, stages under another name, and the decision takes only the names of
   the task attempts that Spark counts; so no row is doubled, without an id for each row;
2. a write that fails leaves nothing on the server; a decided write is never undone, even when Spark misses the result
   of the decision and calls `abort`;
3. the batch of a micro-batch is named after its query and number, in `writeStream` and, by options, in a write of
   `foreachBatch`: when Spark repeats it after a crash, the write finds the batch decided and adds nothing; with another
   number of rows, it is another micro-batch under an old number, and the write fails.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from jobrunner.broker.bulk_reader import broker_at
from jobrunner.broker.keys import Keys, split_queue
from jobrunner.client.batches import Batches, BatchLease
from jobrunner.clock import sleep
from jobrunner.errors import BatchLost, InvalidOption, MicroBatchChanged
from jobrunner.jobs.registry import JobDefinition
from jobrunner.logs import SafeLogger
from jobrunner.spark.brief_errors import brief
from jobrunner.spark.shipping import sent
from jobrunner.spark.sink.held_lease import LEASE_S, UNBEGUN_LEASE_S, held
from jobrunner.spark.sink.micro_batch import of_this_task
from jobrunner.spark.sink.options import WriteOptions, WriteShape, write_options, write_shape
from jobrunner.spark.sink.rows import RowPacker
from jobrunner.task import new_id

_PACKED_AT_ONCE = 2_000
_WAIT_S, _WAITED_FOR_ROOM_S = 0.05, 30.0
_log = SafeLogger("jobrunner.spark")


@dataclass
class StagedWrite(WriterCommitMessage):
    """The rows that one Spark task staged. `is_over`: the batch was decided before, so they were only counted."""

    batch: str
    epoch: int
    nonce: str
    rows: int
    is_over: bool = False


class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write`: created on the driver, where it opens a batch; pickled to the executors, which stage
    the rows."""

    def __init__(self, schema: StructType, given: Any, overwrite: bool) -> None:
        self._options = _append_only(write_options(given), overwrite)
        self._shape = write_shape(schema, self._options)
        self._batch = new_id(split_queue(self._options.queue)[0])
        with _batches(self._options) as batches:
            self._epoch = batches.open(
                lease_s=UNBEGUN_LEASE_S, batch_id=self._batch, shared=_shared(self._options)
            ).epoch

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return sent(self)

    @brief
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages the rows of one Spark task."""
        with _batches(self._options) as batches:
            return _stage(
                batches.resume(self._batch, self._epoch, lease_s=LEASE_S), self._options, self._shape, iterator
            )

    @brief
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Decides the batch, and puts the tasks into their queue."""
        with _batches(self._options) as batches:
            _decide(batches.resume(self._batch, self._epoch, lease_s=LEASE_S), messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Removes staged rows; a batch that was decided stays decided."""
        with _batches(self._options) as batches, suppress(BatchLost):
            batches.resume(self._batch, self._epoch, lease_s=LEASE_S).dissolve()


class _MicroBatchWrite:
    """The executor side of both writers of a micro-batch: their Spark tasks open the batch, which is named after the
    micro-batch."""

    streams = False

    def __init__(self, schema: StructType, given: Any, overwrite: bool) -> None:
        options = _append_only(write_options(given, streams=self.streams), overwrite)
        self._write = _NamedWrite(options, write_shape(schema, options))

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return sent(self)

    @brief
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages the rows of one Spark task, unless this micro-batch was decided before."""
        return self._write.stage(iterator)


class MicroBatchWriter(_MicroBatchWrite, DataSourceArrowWriter):
    """The writer of `df.write` for one micro-batch in `foreachBatch`."""

    @brief
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Decides the batch, or completes a batch that was decided before."""
        self._write.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Removes staged rows; a batch that was decided stays decided."""
        self._write.abort(messages)


class StreamWriter(_MicroBatchWrite, DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`: created for each micro-batch, whose number only the executors know."""

    streams = True

    @brief
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Decides the batch, or completes a batch that was decided before."""
        self._write.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Removes staged rows; a batch that was decided stays decided."""
        self._write.abort(messages)


def batch_writer(schema: StructType, given: Any, overwrite: bool) -> DataSourceArrowWriter:
    """The writer of `df.write` with these options."""
    named = write_options(given).micro_batch is not None
    return (MicroBatchWriter if named else BatchWriter)(schema, given, overwrite)


class _NamedWrite:
    """A write whose batch is named after its micro-batch. Its tasks share the batch by the name of their attempt."""

    def __init__(self, options: WriteOptions, shape: WriteShape) -> None:
        self._options, self._shape = options, shape
        self._attempt = secrets.token_hex(8)

    def stage(self, iterator: Iterator[pa.RecordBatch]) -> StagedWrite:
        micro_batch = self._options.micro_batch or of_this_task()
        batch_id = micro_batch.batch_id(*_target_of(self._options))
        with _batches(self._options) as batches:
            opened = batches.open(
                lease_s=UNBEGUN_LEASE_S, batch_id=batch_id, shared=_shared(self._options), attempt=self._attempt
            )
            if opened.state != "open":
                rows = sum(batch.num_rows for batch in iterator)
                return StagedWrite(opened.id, opened.epoch, "", rows, is_over=True)
            lease = batches.resume(opened.id, opened.epoch, lease_s=LEASE_S)
            return _stage(lease, self._options, self._shape, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = [message for message in messages if isinstance(message, StagedWrite)]
        if not staged:
            return
        with _batches(self._options) as batches:
            if any(message.is_over for message in staged):
                lease = batches.open(lease_s=UNBEGUN_LEASE_S, batch_id=staged[0].batch, attempt=self._attempt)
                _roll_forward(lease)
                self._check_same(lease.rows_before, sum(message.rows for message in staged))
                _log.info("the micro-batch was written before; nothing is added", queue=self._options.queue)
            else:
                _decide(batches.resume(staged[0].batch, staged[0].epoch, lease_s=LEASE_S), messages)

    def _check_same(self, before: int | None, rows: int) -> None:
        """Refuses another micro-batch that has the number of an earlier one, as its rows would be lost."""
        if before is not None and before != rows:
            raise MicroBatchChanged(
                f"this micro-batch was written to {self._options.queue} before with {before} rows, and has {rows} now; "
                "nothing is added: the checkpoint is older than the queue (restored or copied), so begin with a new "
                "one, and with ids (idFrom) where rows must not double; or the rows come of a table that has changed, "
                "or of history that was trimmed"
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = [message for message in messages if isinstance(message, StagedWrite) and not message.is_over]
        if staged:
            with _batches(self._options) as batches, suppress(BatchLost):
                batches.resume(staged[0].batch, staged[0].epoch, lease_s=LEASE_S).dissolve()


def _target_of(options: WriteOptions) -> tuple[str, ...]:
    """Identifies a write among the writes of one micro-batch. A stream has one sink; `foreachBatch` may write several
    jobs."""
    is_one_of_several = options.micro_batch is not None and options.type
    return (options.queue, options.type) if is_one_of_several else (options.queue,)


def _stage(
    lease: BatchLease, options: WriteOptions, shape: WriteShape, batches: Iterator[pa.RecordBatch]
) -> StagedWrite:
    nonce, rows = secrets.token_hex(8), 0
    packer = RowPacker(options, shape, f"{lease.id}.{nonce}")
    with held(lease):
        for batch in batches:
            for start in range(0, batch.num_rows, _PACKED_AT_ONCE):
                words = packer.pack(batch.slice(start, _PACKED_AT_ONCE))
                lease.stage_all(nonce, words, after=rows)
                rows += len(words) // 4
    return StagedWrite(lease.id, lease.epoch, nonce, rows)


def _decide(lease: BatchLease, messages: list[WriterCommitMessage | None]) -> None:
    staged = [message for message in messages if isinstance(message, StagedWrite) and message.rows]
    lease.decide({message.nonce: message.rows for message in staged}, rest="succeeded")
    _roll_forward(lease)


def _roll_forward(lease: BatchLease) -> None:
    """Moves decided rows until all are in the queue. Stops when the queue stays full for long: any worker continues
    then."""
    waited_s = 0.0
    while not (step := lease.advance()).done:
        if step.full is None:
            waited_s = 0.0
        elif waited_s >= _WAITED_FOR_ROOM_S:
            _log.warning("the queue is full; workers add the rest later", queue=step.full, batch=lease.id)
            return
        else:
            sleep(_WAIT_S)
            waited_s += _WAIT_S


@contextmanager
def _batches(options: WriteOptions) -> Iterator[Batches]:
    with broker_at(options.url, options.prefix) as broker:
        yield Batches(broker, Keys(options.prefix).queue(options.queue))


def _shared(options: WriteOptions) -> dict[str, str | int]:
    definition = options.definition()
    return {} if definition is None else _fields_of(definition)


def _fields_of(definition: JobDefinition) -> dict[str, str | int]:
    options = definition.options
    given = {
        "type": definition.name,
        "priority": options.priority,
        "max_attempts": options.max_attempts,
        "max_stalled": options.max_stalled,
        "keepalive_ms": _ms(options.keepalive),
        "expires_in_ms": _ms(options.expires_in),
    }
    return {name: value for name, value in given.items() if value is not None}


def _ms(length_s: float | None) -> int | None:
    return None if length_s is None else max(round(length_s * 1000), 1)


def _append_only(options: WriteOptions, overwrite: bool) -> WriteOptions:
    if overwrite:
        raise InvalidOption('a write cannot overwrite tasks of a queue: use mode("append"), or outputMode("append")')
    return options
