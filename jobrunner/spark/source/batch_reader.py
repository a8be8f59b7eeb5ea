"""The batch read of queues or history: slices are cut from the sets as they are at planning, and read the items that
the sets have when the read runs."""

import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
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

from jobrunner.broker.broker import Broker
from jobrunner.broker.bulk_reader import broker_at
from jobrunner.broker.call import command
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.records import queue_names
from jobrunner.spark.brief_errors import brief, brief_rows
from jobrunner.spark.shipping import sent
from jobrunner.spark.source.items import ItemRead
from jobrunner.spark.source.options import ReadOptions, ReadSchema
from jobrunner.spark.source.queue_checks import check_queues
from jobrunner.spark.source.scan import QueueSlice, ScoreSpan, slices_of

_NEVER_NULL = ("_queue", "_state", "_type")
_TIMES = {"_when": ("scheduled", "pending", "dead", "done"), "_finished_at": ("done",)}
_FROM = (EqualTo, GreaterThan, GreaterThanOrEqual)
_TO = (EqualTo, LessThan, LessThanOrEqual)


class BatchReader(DataSourceReader):
    """Reads queues or history, all rows. Sent to the executors; holds no connection.

    Spark up to 4.3 plans a frame once, and reads these slices at each use of the frame. So together the slices have all
    items that exist when they are read, and no slice depends on a filter, which differs between uses.
    """

    def __init__(self, options: ReadOptions, shape: ReadSchema) -> None:
        self._read = ItemRead(options=options, shape=shape)
        self._queues: frozenset[str] | None = None
        self._states = options.states
        self._span = ScoreSpan()

    @brief
    def partitions(self) -> Sequence[InputPartition]:
        """Slices of the sets in their present state; reads no items."""
        options, found = self._read.options, list[QueueSlice]()
        with broker_at(options.url, options.prefix) as broker:
            registered = self._registered(broker)
            check_queues(broker, options, registered)
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
        """The items of one slice. One of the slices also reads all sets that were empty at planning."""
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
        """Slices of the sets that have items now and had none at planning."""
        with broker_at(self._read.options.url, self._read.options.prefix) as broker:
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
    """A BatchReader with filters that the server evaluates, for frames with the same filters in all uses: Spark up to
    4.3 reads both sides of a join or union of one frame with the filters of the side that it planned last."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  its name in Spark
        """Takes over filters on queue, state and type. Filters on time narrow the read only, and Spark evaluates them
        again."""
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
        # Scores are Unix ms in floating point and columns are whole microseconds: the range read is a little larger.
        self._span = self._span.narrowed(
            at - 1 if isinstance(one, _FROM) else None, at + 1 if isinstance(one, _TO) else None
        )


def _words(one: Filter) -> frozenset[str] | None:
    if isinstance(one, (EqualTo, EqualNullSafe)) and isinstance(one.value, str):
        return frozenset([one.value])
    if isinstance(one, In):
        return frozenset(value for value in one.value if isinstance(value, str))
    return None
