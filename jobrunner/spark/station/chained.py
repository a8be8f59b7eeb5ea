"""Runs a batch through a chain: its rows go from station to station as DataFrames, and end in the sinks.

Invariants: a row that a station refuses is set aside before any row of that station goes on, so its item is dead with
the reason, and no sink sees it. After a station no item has two rows. A station on Spark is called once per batch, with
the rows of all paths that lead to it: a sink writes a batch once, and would take a second call for a repetition. A
station without rows is not called, as a function need not handle an empty frame.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial, reduce
from graphlib import TopologicalSorter
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.types import StructType

from jobrunner.errors import PipelineError, StationError
from jobrunner.etl.chain import PythonStep, StationChain
from jobrunner.etl.spark_station import SparkStation
from jobrunner.formatting import counted
from jobrunner.spark.collection import without_collection
from jobrunner.spark.columns import quoted
from jobrunner.spark.row_errors import ERROR, ID
from jobrunner.spark.running import is_same_column
from jobrunner.spark.shipping import Shipped
from jobrunner.spark.station.chained_items import ItemRows, TargetPayloads
from jobrunner.spark.station.failure_history import PATIENT_WITH
from jobrunner.spark.station.misfits import NoPayloadFits
from jobrunner.spark.station.output_rows import DELAY, HEADERS, TO, check_output, check_sink, payload_text, steered
from jobrunner.spark.station.payload_shape import OWN, PAYLOAD, PayloadShape, as_read, shape_of, time_zone
from jobrunner.spark.station.sink_batch import SinkBatch
from jobrunner.spark.station.staging import rules_of

_NAMED = 3
"""Most items that an error names."""
_LOOKED_AT = 100
_CHECKSUM = "checksum"
_HAD = "_headers before"
"""A column next to `_headers`."""


def run_chain(chain: StationChain, df: DataFrame, spark: SparkSession, batch: SinkBatch) -> None:
    """Runs one batch through a chain; `df` has the payloads as its first station declares them. Raises errors of a
    station and steering values that it raised or returned; StationError or PipelineError for rows that cannot go on."""
    run = _ChainRun(chain, spark, batch, df)
    try:
        run.visit_all(df)
    finally:
        run.forget()


class _ChainRun:
    """One attempt at one batch."""

    def __init__(self, chain: StationChain, spark: SparkSession, batch: SinkBatch, df: DataFrame) -> None:
        self._chain = chain
        self._spark = spark
        self._batch = batch
        self._members = df
        self._kept: list[DataFrame] = []
        self._arrived: dict[str, list[DataFrame]] = defaultdict(list)
        """Rows by queue, all of one schema, whose station was not called yet."""
        self._shapes = {queue: shape_of(station.schema, queue) for queue, station in chain.spark.items()}
        self._checksums: np.ndarray[Any, Any] | None = None

    def forget(self) -> None:
        """Frees the rows that were kept between stations."""
        for kept in self._kept:
            with suppress(Exception):  # the engine is gone, and the frames with it
                kept.unpersist()

    def visit_all(self, df: DataFrame) -> None:
        """Runs all stations on the rows, each station after those that lead to it."""
        self._arrived[self._chain.first].append(df)
        for queue in _in_order(self._chain):
            if arrived := self._arrived.pop(queue, None):
                self._visit(queue, reduce(DataFrame.union, arrived))

    def _visit(self, queue: str, df: DataFrame) -> None:
        station = self._chain.spark.get(queue)
        if station is None:
            self._python(queue, df)
        elif station.is_sink:
            own = self._batch.of_sink(queue.partition("/")[2], is_kept=df is not self._members)
            check_sink(queue, steered(station.function(df, self._spark, own)))
        else:
            self._frames(station, df)

    def _python(self, queue: str, df: DataFrame) -> None:
        """Runs the stations in Python from this queue on, in one pass over the items."""
        steps = {name: step.to_be_sent(self._batch.payload_limit) for name, step in self._chain.python.items()}
        reached = [name for name in self._chain.spark if name in _reached_from(queue, self._chain)]
        for name, rows in self._behind(queue, as_read(df, F.col(PAYLOAD)), steps, reached):
            if not rows.isEmpty():
                self._arrived[name].append(rows)

    def _behind(
        self, queue: str, read: DataFrame, steps: Mapping[str, PythonStep], reached: Sequence[str]
    ) -> Iterator[tuple[str, DataFrame]]:
        """Runs the `steps` on rows with payloads as text; yields the rows for each station on Spark in `reached`. Items
        that a step refuses are set aside, as are payloads that do not fit the next station."""
        schemas = {name: self._shapes[name].columns for name in reached}
        zone = time_zone(self._spark, schemas.values())
        targets = TargetPayloads(schemas, zone)
        run_items = Shipped(partial(_run_items, queue, steps, schemas, zone))
        rows = read.mapInArrow(run_items, targets.spark_schema())
        if unproven := self._batch.inner.without_fit(name for name in reached if schemas[name] is not None):
            rows = self._keep(rows)
            self._check_some_fit(rows, unproven)
        rows = self._batch.quarantine(rows)
        for name in reached:
            place = targets.place_of[name]
            some = rows.where(F.col(TO) == name)
            yield name, self._shapes[name].dress(some, targets.readers[place], targets.prefix(place))

    def _check_some_fit(self, rows: DataFrame, queues: Sequence[str]) -> None:
        """Raises NoPayloadFits for a station of `queues` whose schema no payload has fitted so far, and may be wrong.
        `rows`: before those that do not fit are set aside."""
        there = rows.where(F.col(TO).isin(queues)).groupBy(TO)
        for queue, rows_there, fitting in there.agg(F.count("*"), F.count_if(F.col(ERROR).isNull())).collect():
            if fitting:
                self._batch.inner.saw_fit(queue)
                continue
            some = rows.where(F.col(TO) == queue).select(ID, ERROR).limit(PATIENT_WITH + 1).collect()
            if not self._batch.inner.may_bury(queue, [row[ID] for row in some]):
                reason = some[0][ERROR].removeprefix(f"{PipelineError.__name__}: ")
                raise NoPayloadFits(
                    f"none of {counted(rows_there, 'payload')} fits queue {queue!r} of the chain, and none has fitted "
                    f"in this process: {reason}; correct the schema of queue {queue!r}, or what its items come from"
                )

    def _frames(self, station: SparkStation, df: DataFrame) -> None:
        returned = steered(station.function(df, self._spark))
        rules = rules_of(station, payload_limit=0)
        rows, _ = check_output(returned, rules)
        if DELAY in returned.columns:
            raise StationError(f"station {station.queue!r} returned column _delay: a chain has no queue to wait in")
        if TO in rows.columns:
            rows = _routed(rows, station)
        rows = self._batch.quarantine(rows) if ERROR in rows.columns else self._keep(rows)
        reached = self._check_ids(station, rows)
        rows = _with_own(rows, df, keeps_headers=is_same_column(returned, df, HEADERS))
        for target in reached:
            some = rows.where(F.col(TO) == target) if TO in rows.columns else rows
            self._arrived[target].append(self._for_next(some, station.queue, target))

    def _keep(self, rows: DataFrame) -> DataFrame:
        rows = rows.persist()
        self._kept.append(rows)
        return rows

    def _check_ids(self, station: SparkStation, rows: DataFrame) -> list[str]:
        """Returns the targets that the rows go to. Raises PipelineError for an item with several rows, a row without an
        item, and an id that no item of the batch has: a sink could not distinguish such rows from rows of its items."""
        hashed = F.when(F.col(ID).isNotNull(), F.xxhash64(ID)).alias(ID)  # ids would be longer, a shuffle slower
        steers = TO in rows.columns
        read = rows.select(hashed, F.crc32(ID).alias(_CHECKSUM), *([TO] if steers else [])).toArrow()
        hashes = read[ID]
        if hashes.null_count:
            raise PipelineError(
                f"station {station.queue!r} returned {hashes.null_count} rows without _id, and a chain makes no new "
                "items: leave them out, or take the station out of the chain and declare emits_new=True"
            )
        named = set(pc.unique(read[TO]).to_pylist()) if steers else set(station.targets if len(hashes) else ())
        reached = [target for target in station.targets if target in named]
        self._check_members(station, rows, read[_CHECKSUM].to_numpy())
        found, counts = np.unique(hashes.to_numpy(), return_counts=True)
        if len(found) == len(hashes):
            return reached
        twice = rows.where(F.xxhash64(ID).isin(found[counts > 1][:_LOOKED_AT].tolist())).groupBy(ID).count()
        several = twice.where("count > 1").limit(_NAMED).collect()
        if several:  # otherwise two ids share a hash
            names = ", ".join(f"{row[ID]} ({row['count']} rows)" for row in several)
            raise PipelineError(
                f"station {station.queue!r} returned several rows for an item: {names}; drop what is double, or take "
                "the station out of the chain and declare fan_out=True"
            )
        return reached

    def _check_members(self, station: SparkStation, rows: DataFrame, checksums: "np.ndarray[Any, Any]") -> None:
        """Compares checksums of ids, by a function that Spark and Python have in common: one of 40,000 invented ids
        collides with an item in a batch of 100,000. The ids of the batch are read as for the notes of its sinks."""
        members = self._batch.members
        if members is None:
            return
        if self._checksums is None:
            self._checksums = np.unique(np.fromiter((crc32(one.encode()) for one in members.read()[0]), np.int64))
        other = checksums[~np.isin(checksums, self._checksums)]
        if len(other):
            looked_at = rows.where(F.crc32(ID).isin(np.unique(other)[:_LOOKED_AT].tolist()))
            names = ", ".join(row[ID] for row in looked_at.select(ID).limit(_NAMED).collect())
            raise PipelineError(
                f"station {station.queue!r} returned {len(other)} rows whose _id is no item of the batch, such as "
                f"{names}: keep the _id that df has"
            )

    def _for_next(self, rows: DataFrame, station: str, queue: str) -> DataFrame:
        """Converts the rows that a station returned to the payload columns that the station of `queue` declares."""
        returned = self._shapes[station]
        shape = self._shapes.get(queue, PayloadShape())
        kinds = {field.name: field.dataType for field in rows.schema.fields if not field.name.startswith("_")}
        is_text = returned.columns is None and list(kinds) == [PAYLOAD]
        if shape.columns is not None and not is_text:
            wanted = {field.name: field.dataType for field in shape.columns.fields}
            fit = all(name not in kinds or kinds[name] == kind for name, kind in wanted.items())
            if fit and all(field.nullable or _is_never_null(rows, field.name) for field in shape.columns.fields):
                columns = [
                    F.col(quoted(name)) if name in kinds else F.lit(None).cast(kind).alias(name)
                    for name, kind in wanted.items()
                ]
                return rows.select(*columns, *OWN)
        text, may_be_no_json = payload_text(kinds, returned, station)
        read = as_read(rows, text)
        if queue in self._chain.python or (shape.columns is None and not may_be_no_json):
            return shape.dress(read)
        ((_, checked),) = self._behind(queue, read, {}, [queue])  # Spark would fail the batch for a misfit
        return checked


def _is_never_null(rows: DataFrame, name: str) -> bool:
    return any(field.name == name and not field.nullable for field in rows.schema.fields)


def _with_own(rows: DataFrame, before: DataFrame, *, keeps_headers: bool) -> DataFrame:
    """The rows for the next stations: restores the item's own columns that the function omitted, and merges the
    `_headers` that it returned into those of the rows `before`, as a move between queues does."""
    missing = [name for name in OWN if name not in rows.columns]
    adds = HEADERS in rows.columns and not keeps_headers
    if not missing and not adds:
        return rows
    had = F.col(HEADERS).alias(_HAD)
    joined = rows.join(before.select(ID, *missing, *([had] if adds else [])), ID, "left")
    return joined.withColumn(HEADERS, _added(F.col(HEADERS), F.col(_HAD))).drop(_HAD) if adds else joined


def _added(headers: Column, had: Column) -> Column:
    """Merges `headers` into `had`; a null value, or null instead of all headers, adds nothing."""
    new = F.map_filter(headers.cast("map<string,string>"), lambda _, text: text.isNotNull())
    kept = F.map_filter(had, lambda name, _: ~F.array_contains(F.map_keys(new), name))
    return F.coalesce(F.map_concat(kept, new), new, had)


def _routed(rows: DataFrame, station: SparkStation) -> DataFrame:
    """The rows with full names of queues; a row that names no target of the station gets an error."""
    names = {word: name for name in station.targets for word in (name, name.partition("/")[2])}
    full = F.create_map(*[F.lit(word) for pair in names.items() for word in pair])[F.col(TO)]
    said = F.concat(
        F.lit(f"PipelineError: station {station.queue!r} returned _to="), F.coalesce(F.col(TO), F.lit("null")),
        F.lit(", a queue that its to=… does not name"),
    )  # fmt: skip
    if len(station.targets) == 1:
        full = F.when(F.col(TO).isNull(), F.lit(station.targets[0])).otherwise(full)
    error = F.when(full.isNull(), said)
    rows = rows.withColumn(ERROR, F.coalesce(F.col(ERROR), error) if ERROR in rows.columns else error)
    return rows.withColumn(TO, full)


def _in_order(chain: StationChain) -> list[str]:
    """All queues in topological order: each after the queues from which items reach it."""
    targets = {name: step.link.targets for name, step in chain.python.items()}
    targets |= {name: station.targets for name, station in chain.spark.items()}
    return list(TopologicalSorter(targets).static_order())[::-1]


def _reached_from(queue: str, chain: StationChain) -> set[str]:
    """The queues of stations on Spark that items reach from this queue through stations in Python only."""
    found: set[str] = set()
    wanted = [queue]
    while wanted:
        for target in chain.python[wanted.pop()].link.targets:
            if target in chain.spark:
                found.add(target)
            else:
                wanted.append(target)
    return found


def _run_items(
    queue: str, steps: Mapping[str, PythonStep], schemas: Mapping[str, StructType | None], zone: str,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """One Spark task."""
    rows = ItemRows(queue, steps, TargetPayloads(schemas, zone))
    for batch in batches:
        with without_collection():
            made = rows.of(batch)
        yield made
