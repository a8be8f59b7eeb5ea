"""Reads history as a stream.

An offset is an instant of the server's clock, and a micro-batch the tasks that finished in [start, end). A task that
finishes after the server's time was read has that time or a later one (in a cluster, the earliest clock of the
primaries counts). So a range in the past is complete and yields the same rows in each read, and a checkpoint suffices.
Invariant: entries that were deleted before they were read are an error, not a gap.
"""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from jobrunner.broker.broker import Broker
from jobrunner.broker.bulk_reader import broker_at
from jobrunner.broker.call import command
from jobrunner.broker.calls.server import earliest_time
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.records import queue_names
from jobrunner.errors import HistoryTrimmed, InvalidOption, JobrunnerError, NaiveDatetime
from jobrunner.formatting import describe
from jobrunner.spark.brief_errors import brief, brief_rows
from jobrunner.spark.shipping import sent
from jobrunner.spark.source.items import ItemRead
from jobrunner.spark.source.options import ReadOptions, ReadSchema
from jobrunner.spark.source.queue_checks import check_queues
from jobrunner.spark.source.scan import QueueSlice, ScoreSpan, slices_of

_AT = "at"
_EARLIEST = -math.inf


class HistoryStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads history as a stream. Sent to the executors; holds no connection."""

    def __init__(self, options: ReadOptions, shape: ReadSchema) -> None:
        self._options = options
        self._shape = shape
        self._first = _starting(options.starting)
        self._target: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return sent(self)

    @brief
    def initialOffset(self) -> dict[str, str]:  # noqa: N802  its name in Spark
        """The first offset of a query without a checkpoint. Raises InvalidOption for a queue that would never yield a
        row."""
        with broker_at(self._options.url, self._options.prefix) as broker:
            if self._options.needs_queues:
                registered = run_operation(broker, queue_names(Keys(self._options.prefix)))
                check_queues(broker, self._options, registered)
            return _offset(broker.run(earliest_time()) if self._first is None else self._first)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxRowsPerTrigger`, when it is given."""
        rows = self._options.rows_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    @brief
    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802
        """The server's time, or the earlier instant by which `limit` rows finished; `start` when there are none."""
        begins = _instant(start)
        with broker_at(self._options.url, self._options.prefix) as broker:
            now = broker.run(earliest_time())
            end = now if self._target is None else min(now, self._target)
            history = _History(broker, self._keys(broker), begins)
            count = history.count(end) if end > begins else 0
            if not count:  # unread entries may all be deleted, with none after them
                check_untrimmed(broker, history.queues, begins)
            if count and isinstance(limit, ReadMaxRows) and count > limit.max_rows:
                end = history.end_of(limit.max_rows, end)
        return _offset(end) if count else start

    @brief
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Records the present instant as the end of the run: the next run reads tasks that finish later."""
        self._target = self._now()

    @brief
    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        """Slices of the tasks that finished from `start` on and before `end`. Raises HistoryTrimmed."""
        span = ScoreSpan(first=_instant(start), end=_instant(end))
        found: list[QueueSlice] = []
        with broker_at(self._options.url, self._options.prefix) as broker:
            queues = self._keys(broker)
            for keys in queues:
                found += slices_of(broker, keys, "done", span, self._options.rows_per_partition)
            check_untrimmed(broker, queues, span.first)  # each slice checks for later deletions
        for piece in found:
            piece.is_whole = span.first > _EARLIEST
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The tasks of one slice. Raises HistoryTrimmed when tasks were deleted meanwhile."""
        return brief_rows(self._rows(partition))

    def _rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, QueueSlice):
            return
        read = ItemRead(options=self._options, shape=self._shape, whole=partition.is_whole)
        yield from read.batches(partition)
        with broker_at(self._options.url, self._options.prefix) as broker:
            check_untrimmed(broker, [Keys(self._options.prefix).queue(partition.queue)], partition.begins)

    def _keys(self, broker: Broker) -> list[QueueKeys]:
        keys = Keys(self._options.prefix)
        return [keys.queue(name) for name in self._options.select(run_operation(broker, queue_names(keys)))]

    def _now(self) -> float:
        with broker_at(self._options.url, self._options.prefix) as broker:
            return broker.run(earliest_time())


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader for invalid options: the first call of any method raises their error. PySpark would lose an error
    raised by the constructor, and report `UnboundLocalError`."""

    def __init__(self, error: JobrunnerError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, str]:  # noqa: N802  its name in Spark
        """Raises the error."""
        return self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """No limit: Spark asks for it before it asks for an offset."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: ARG002, N802
        """Raises the error."""
        return self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Raises the error."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Is never called."""
        yield from ()

    @brief
    def _refuse(self) -> dict[str, str]:
        raise self._error


class _History:
    """Counts the finished tasks of some queues from one instant on."""

    def __init__(self, broker: Broker, queues_: Sequence[QueueKeys], begins: float) -> None:
        self._broker, self.queues, self._begins = broker, queues_, begins

    def count(self, end: float) -> int:
        """The number of tasks that finished before `end`."""
        span = ScoreSpan(first=self._begins, end=end)
        asked = [command("ZCOUNT", one.done, span.lower, span.upper, read=int) for one in self.queues]
        return sum(self._broker.run_many(asked))

    def end_of(self, rows: int, end: float) -> float:
        """The latest instant before which at most `rows` tasks finished, or just after the first instant when more than
        `rows` tasks finished at it."""
        low = self._first()
        if self.count(math.nextafter(low, math.inf)) > rows:
            return math.nextafter(low, math.inf)
        high = end
        while (middle := low + (high - low) / 2) not in (low, high):
            low, high = (middle, high) if self.count(middle) <= rows else (low, middle)
        return max(low, math.nextafter(self._first(), math.inf))

    def _first(self) -> float:
        lower = ScoreSpan(first=self._begins).lower
        asked = [
            command("ZRANGEBYSCORE", one.done, lower, "+inf", "WITHSCORES", "LIMIT", 0, 1, read=only_score)
            for one in self.queues
        ]
        return min((score for score in self._broker.run_many(asked) if score is not None), default=self._begins)


def check_untrimmed(broker: Broker, queues: Sequence[QueueKeys], begins: float) -> None:
    """Raises HistoryTrimmed when tasks that finished at `begins` or later were deleted from the history of a queue."""
    if begins == _EARLIEST:
        return
    noted = [command("HMGET", one.settings, "history_noted", "history_trimmed", read=_numbers) for one in queues]
    entries = [command("EXISTS", one.done, read=int) for one in queues]
    found = broker.run_many([*noted, *entries])
    for keys, (last, trimmed), has_entries in zip(queues, found, found[len(queues) :], strict=False):
        gone = trimmed if has_entries else last
        if gone is not None and gone >= begins:
            until = datetime.fromtimestamp(gone / 1000).astimezone()
            behind = until + timedelta(microseconds=1)
            raise HistoryTrimmed(
                f"history of queue {keys.name!r} was trimmed up to {until.isoformat()}, beyond what this stream has "
                "read; keep it longer (configure(history=...)) and begin anew with another checkpoint "
                f"(startingOffset={behind.isoformat()} goes on behind that)"
            )


def _starting(given: str) -> float | None:
    """Unix ms of the option; None for the present."""
    if given in ("earliest", "latest"):
        return _EARLIEST if given == "earliest" else None
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        raise InvalidOption(
            f"startingOffset={given!r}: give earliest, latest or an instant like 2026-01-31T00:00:00Z"
        ) from None
    if at.tzinfo is None:
        instant = at.isoformat()
        raise NaiveDatetime(f"startingOffset={given!r} has no time zone; write {instant}Z or {instant}+01:00")
    return at.timestamp() * 1000


def _offset(at: float) -> dict[str, str]:
    return {_AT: repr(at)}


def _instant(offset: dict[str, str]) -> float:
    """The instant in an offset. Raises InvalidOption for the offset of another source in the checkpoint, which Spark
    passes on unchanged."""
    try:
        return float(offset[_AT])
    except (LookupError, TypeError, ValueError):
        raise InvalidOption(
            f"the checkpoint has the offset {describe(offset)}, which is none of history: it is that of a query with "
            "another source, or damaged; give this query a checkpointLocation of its own"
        ) from None


def only_score(reply: list[Any]) -> float | None:
    """The score in a reply with at most one member and its score."""
    return float(reply[1]) if reply else None


def _numbers(reply: list[bytes | None]) -> list[float | None]:
    return [None if word is None else float(word) for word in reply]
