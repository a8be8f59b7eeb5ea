"""The batch read: planning slices, taking over the filters that the server can answer, and reading a slice."""

from collections.abc import Iterable, Iterator, Sequence
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
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.queue_names import queue_names
from jobrunner.spark.source.items import ItemRead
from jobrunner.spark.source.options import ReadOptions, ReadSchema
from jobrunner.spark.source.scan import QueueSlice, ScoreSpan, slices_of

_NEVER_NULL = ("_queue", "_state", "_type")
_TIMES = {"_when": ("scheduled", "pending", "dead", "done"), "_finished_at": ("done",)}
_FROM = (EqualTo, GreaterThan, GreaterThanOrEqual)
_TO = (EqualTo, LessThan, LessThanOrEqual)


class BatchReader(DataSourceReader):
    """Reads queues or history once. Sent to the executors; holds no connection."""

    def __init__(self, options: ReadOptions, shape: ReadSchema) -> None:
        self._read = ItemRead(options=options, shape=shape)
        self._queues: frozenset[str] | None = None
        self._states = options.states
        self._final: frozenset[str] | None = None
        self._span = ScoreSpan()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  its name in Spark
        """Takes over filters on queue, state and type; narrows by time what Spark filters again by itself."""
        for one in filters:
            if not self._takes(one):
                yield one

    def partitions(self) -> Sequence[InputPartition]:
        """Slices as the sets stand now, without reading them."""
        endpoint = Endpoint(self._read.options.url, client_name="jobrunner-spark")
        broker = Broker(endpoint, retry_timeout_s=5.0)
        try:
            return self._slices(broker) or [InputPartition(None)]
        finally:
            broker.close()
            endpoint.release()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The items of one slice."""
        return self._read.batches(partition) if isinstance(partition, QueueSlice) else iter(())

    def _slices(self, broker: Broker) -> list[InputPartition]:
        options = self._read.options
        keys = Keys(options.prefix)
        names = options.select(run_operation(broker, queue_names(keys)))
        found: list[InputPartition] = []
        for name in names:
            if self._queues is None or name in self._queues:
                for state in self._states:
                    found += slices_of(broker, keys.queue(name), state, self._span, options.rows_per_partition)
        return found

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
