"""The two readers of the data source: the batch read of queues or history, and history as a stream.

The batch read cuts the sets into slices as they stand when it is planned, and reads them as they stand when it runs.

An offset of the stream is an instant of the server's clock, and a micro-batch the tasks that finished in [start, end).
A task that finishes after the server was asked for its time has that time or a later one, so a range in the past is
complete, and reading it again gives the same rows: therefore a checkpoint suffices. Invariant: entries that were
deleted before they were read are an error, not a gap.
"""

import math
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from jobrunner.broker.broker import Broker
from jobrunner.broker.bulk_reader import broker_at
from jobrunner.broker.call import command
from jobrunner.broker.calls.server import server_time
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.records import queue_names
from jobrunner.errors import HistoryTrimmed, InvalidOption, NaiveDatetime
from jobrunner.spark.brief_errors import brief, brief_rows
from jobrunner.spark.shipping import sent
from jobrunner.spark.source.items import ItemRead
from jobrunner.spark.source.options import ReadOptions, ReadSchema
from jobrunner.spark.source.scan import QueueSlice, ScoreSpan, slices_of

_NEVER_NULL = ("_queue", "_state", "_type")
_TIMES = {"_when": ("scheduled", "pending", "dead", "done"), "_finished_at": ("done",)}
_FROM = (EqualTo, GreaterThan, GreaterThanOrEqual)
_TO = (EqualTo, LessThan, LessThanOrEqual)


class BatchReader(DataSourceReader):
    """Reads queues or history, all rows. Sent to the executors; holds no connection.

    Spark up to 4.3 plans a frame once, and reads these slices each time that the frame is used. So together they have
    all items that there are when they are read, and none is planned for a filter: another use has another one.
    """

    def __init__(self, options: ReadOptions, shape: ReadSchema) -> None:
        self._read = ItemRead(options=options, shape=shape)
        self._queues: frozenset[str] | None = None
        self._states = options.states
        self._final: frozenset[str] | None = None
        self._span = ScoreSpan()

    @brief
    def partitions(self) -> Sequence[InputPartition]:
        """Slices as the sets stand now, without reading them."""
        options, found = self._read.options, list[QueueSlice]()
        with broker_at(options.url) as broker:
            registered = self._registered(broker)
            options.check_there(registered)
            for keys, state in self._sets(registered):
                slices = slices_of(broker, keys, state, self._span, options.rows_per_partition)
                if slices and self._span.is_open:
                    slices[-1].is_open = True
                found += slices
        if not found:
            return [InputPartition(None)]
        found[-1].planned = frozenset((piece.queue, piece.state) for piece in found)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The items of one slice; with one of the slices, those of all sets that were empty when they were planned."""
        return brief_rows(self._rows(partition))

    def _rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        planned: frozenset[tuple[str, str]] | None = frozenset()
        if isinstance(partition, QueueSlice):
            planned = partition.planned
            yield from self._read.batches(partition)
        if planned is not None:
            for piece in self._unplanned(planned):
                yield from self._read.batches(piece)

    def _unplanned(self, planned: Container[tuple[str, str]]) -> list[QueueSlice]:
        """Slices of the sets that have items now, and had none when the slices were planned."""
        with broker_at(self._read.options.url) as broker:
            sets = [one for one in self._sets(self._registered(broker)) if (one[0].name, one[1]) not in planned]
            counts = broker.run_many([command("ZCARD", getattr(keys, state), read=int) for keys, state in sets])
            filled = [one for one, count in zip(sets, counts, strict=True) if count]
            slices = [slices_of(broker, *one, self._span, sys.maxsize) for one in filled]
            return [piece for found in slices for piece in found]

    def _registered(self, broker: Broker) -> list[str]:
        return run_operation(broker, queue_names(Keys(self._read.options.prefix)))

    def _sets(self, registered: Sequence[str]) -> list[tuple[QueueKeys, str]]:
        keys, names = Keys(self._read.options.prefix), self._read.options.select(registered)
        wanted = [keys.queue(name) for name in names if self._queues is None or name in self._queues]
        return [(one, state) for one in wanted for state in self._states]

    def __reduce__(self) -> tuple[Any, ...]:
        return sent(self)


class FilteringReader(BatchReader):
    """The same with filters that the server answers, for frames with one set of filters in all their uses: Spark up to
    4.3 reads both sides of a join or a union of one frame with the filters of the side that it planned last."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  its name in Spark
        """Takes over filters on queue, state and type; narrows by time what Spark filters again by itself."""
        for one in filters:
            if not self._takes(one):
                yield one

    def _takes(self, one: Filter) -> bool:
        column = getattr(one, "attribute", ("",))
        if len(column) != 1:
            return False
        if column[0] in _NEVER_NULL:
            if isinstance(one, IsNotNull):
                return True
            words = _words(one)
            return words is not None and self._narrow(column[0], words)
        if column[0] in _TIMES:
            self._narrow_time(column[0], one)
        return False

    def _narrow(self, column: str, words: frozenset[str]) -> bool:
        if column == "_queue":
            self._queues = words if self._queues is None else self._queues & words
        elif column == "_type":
            types = self._read.types
            self._read = replace(self._read, types=words if types is None else types & words)
        elif self._read.options.states == ("done",):
            return False  # the final state of a task is known only after it is read
        else:
            self._states = tuple(state for state in self._states if state in words)
        return True

    def _narrow_time(self, column: str, one: Filter) -> None:
        value: Any = getattr(one, "value", None)
        if not isinstance(value, datetime) or not isinstance(one, (*_FROM, *_TO)):
            return
        at = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000
        self._states = tuple(state for state in self._states if state in _TIMES[column])
        # Scores are Unix ms in floating point and columns are whole microseconds: a little more than asked for is read.
        self._span = self._span.narrowed(
            at - 1 if isinstance(one, _FROM) else None, at + 1 if isinstance(one, _TO) else None
        )


def _words(one: Filter) -> frozenset[str] | None:
    if isinstance(one, (EqualTo, EqualNullSafe)) and isinstance(one.value, str):
        return frozenset([one.value])
    if isinstance(one, In):
        return frozenset(value for value in one.value if isinstance(value, str))
    return None


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
        """Where a query without a checkpoint begins."""
        return _offset(self._now() if self._first is None else self._first)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxRowsPerTrigger`, when it is given."""
        rows = self._options.rows_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    @brief
    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802
        """The server's time, or the earlier instant by which `limit` rows finished; `start` when there are none."""
        begins = _instant(start)
        with broker_at(self._options.url) as broker:
            now = broker.run(server_time())
            end = now if self._target is None else min(now, self._target)
            history = _History(broker, self._keys(broker), begins)
            count = history.count(end) if end > begins else 0
            if count and isinstance(limit, ReadMaxRows) and count > limit.max_rows:
                end = history.end_of(limit.max_rows, end)
        return _offset(end) if count else start

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Records the present instant as the end: tasks that finish later are left to the next run."""
        self._target = self._now()

    @brief
    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        """Slices of the tasks that finished from `start` on and before `end`. Raises HistoryTrimmed."""
        span = ScoreSpan(first=_instant(start), end=_instant(end))
        found: list[InputPartition] = []
        with broker_at(self._options.url) as broker:
            for keys in self._keys(broker):
                check_untrimmed(broker, keys, span.first)
                found += slices_of(broker, keys, "done", span, self._options.rows_per_partition)
                for piece in found:
                    if isinstance(piece, QueueSlice):
                        piece.begins = span.first
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The tasks of one slice. Raises HistoryTrimmed when some were deleted meanwhile."""
        return brief_rows(self._rows(partition))

    def _rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, QueueSlice):
            return
        whole = partition.begins > _EARLIEST
        yield from ItemRead(options=self._options, shape=self._shape, whole=whole).batches(partition)
        with broker_at(self._options.url) as broker:
            check_untrimmed(broker, Keys(self._options.prefix).queue(partition.queue), partition.begins)

    def _keys(self, broker: Broker) -> list[QueueKeys]:
        keys = Keys(self._options.prefix)
        return [keys.queue(name) for name in self._options.select(run_operation(broker, queue_names(keys)))]

    def _now(self) -> float:
        with broker_at(self._options.url) as broker:
            return broker.run(server_time())


class _History:
    """The finished tasks of some queues from one instant on, counted."""

    def __init__(self, broker: Broker, queues_: Sequence[QueueKeys], begins: float) -> None:
        self._broker, self._queues, self._begins = broker, queues_, begins

    def count(self, end: float) -> int:
        """How many finished before `end`."""
        span = ScoreSpan(first=self._begins, end=end)
        asked = [command("ZCOUNT", one.done, span.lower, span.upper, read=int) for one in self._queues]
        return sum(self._broker.run_many(asked))

    def end_of(self, rows: int, end: float) -> float:
        """The latest instant before which at most `rows` tasks finished, or just after the first instant when more
        tasks than that finished at it."""
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
            command("ZRANGEBYSCORE", one.done, lower, "+inf", "WITHSCORES", "LIMIT", 0, 1, read=_only_score)
            for one in self._queues
        ]
        return min((score for score in self._broker.run_many(asked) if score is not None), default=self._begins)


def check_untrimmed(broker: Broker, keys: QueueKeys, begins: float) -> None:
    """Raises HistoryTrimmed when tasks that finished at `begins` or later were deleted from the history."""
    if begins == _EARLIEST:
        return
    (noted, trimmed), entries = broker.run_many(
        [
            command("HMGET", keys.settings, "history_noted", "history_trimmed", read=_numbers),
            command("EXISTS", keys.done, read=int),
        ]
    )
    gone = trimmed if entries else noted
    if gone is not None and gone >= begins:
        until = datetime.fromtimestamp(gone / 1000).astimezone().isoformat()
        raise HistoryTrimmed(
            f"history of queue {keys.name!r} was trimmed up to {until}, beyond what this stream has read; keep it "
            "longer (configure(history=...)) and begin anew with another checkpoint"
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
        raise NaiveDatetime(f"startingOffset={given!r} has no time zone; write {given}Z or {given}+01:00")
    return at.timestamp() * 1000


def _offset(at: float) -> dict[str, str]:
    return {_AT: repr(at)}


def _instant(offset: dict[str, str]) -> float:
    return float(offset[_AT])


def _only_score(reply: list[Any]) -> float | None:
    return float(reply[1]) if reply else None


def _numbers(reply: list[bytes | None]) -> list[float | None]:
    return [None if word is None else float(word) for word in reply]
