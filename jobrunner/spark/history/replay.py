"""Runs finished tasks again: a part of the history, selected by a SQL expression, goes back into its queues.

Invariant: the id of a new task is derived from that of the old one and the name of the replay, so a replay that is
run again after a crash, under the same name, adds only what is missing.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from jobrunner.broker.broker import Broker
from jobrunner.broker.bulk_reader import broker_at
from jobrunner.broker.calls import queues, tasks
from jobrunner.broker.keys import Keys
from jobrunner.client.item import read_headers, write_headers
from jobrunner.client.operations.dead_and_history import REPLAYED_FROM
from jobrunner.client.operations.enqueue import batches
from jobrunner.errors import InvalidOption
from jobrunner.spark.payloads import check_stored
from jobrunner.spark.running import first_line
from jobrunner.spark.shipping import Shipped
from jobrunner.task import Task, derived_id

_AT_ONCE = 500
_NEEDED = (
    "_id", "_queue", "_type", "payload", "_encoding", "_headers", "_partition", "_priority", "_max_attempts",
    "_max_stalled", "_keepalive_ms",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The name of a replay and the server it writes to. Sent to the executors."""

    name: str
    url: str
    prefix: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """How many tasks of a queue were added, and how many existed from an earlier run of the same replay."""

    added: int
    there: int


def select(history: DataFrame, where: str) -> DataFrame:
    """The tasks for which a SQL expression is true, each once, as it ended last; `payload` is text in the expression.

    Raises InvalidOption for an expression that Spark does not understand.
    """
    readable = history.withColumn("_raw", F.col("payload")).withColumn("payload", F.col("payload").cast("string"))
    try:
        found = readable.where(where)
    except AnalysisException as error:
        columns = ", ".join(name for name in history.columns if name not in ("date", "queue", "window"))
        reason = first_line(error).partition("SQLSTATE")[0].strip()
        raise InvalidOption(f"--where {where!r}: {reason} Columns are {columns}") from error
    except Exception as error:  # what Spark cannot parse is an error of its own kind in each of its clients
        raise InvalidOption(f"--where {where!r} is no SQL expression: {str(error).strip().splitlines()[0]}") from error
    found = found.withColumn("payload", F.col("_raw"))
    last = F.max_by(F.struct(*_NEEDED), "_finished_at").alias("last")
    return found.groupBy(F.col("_id").alias("one"), F.col("_queue").alias("of")).agg(last).select("last.*")


def count(selected: DataFrame) -> dict[str, int]:
    """How many tasks are selected, by queue."""
    return {row["_queue"]: row["count"] for row in selected.groupBy("_queue").count().orderBy("_queue").collect()}


def replay(selected: DataFrame, run: Replay) -> dict[str, Replayed]:
    """Adds the selected tasks as new ones, with header `replayed_from`. Returns what was done, by queue.

    Raises QueueFull through Spark. Tasks added before it stay; the same replay, run again, adds the rest.
    """
    told = selected.mapInArrow(Shipped(partial(_add, run)), "queue string, added long, there long")
    sums = told.groupBy("queue").agg(F.sum("added").alias("added"), F.sum("there").alias("there")).orderBy("queue")
    return {row.queue: Replayed(row.added, row.there) for row in sums.collect()}


def _add(run: Replay, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    keys, sending = Keys(run.prefix), os.urandom(8).hex()
    with broker_at(run.url, run.prefix) as broker:
        for batch in batches:
            by_queue: dict[str, list[Task]] = {}
            for row in batch.to_pylist():
                by_queue.setdefault(row["_queue"], []).append(_again(row, run, keys, sending))
            for queue, again in by_queue.items():
                new = sum(_enqueue(broker, keys, queue, again))
                yield pa.record_batch({"queue": [queue], "added": [new], "there": [len(again) - new]})


def _enqueue(broker: Broker, keys: Keys, queue: str, again: list[Task]) -> Iterator[int]:
    broker.run_many(queues.register(keys, [queue]))
    for some in batches(again, sys.maxsize, _AT_ONCE):
        yield sum(broker.run(tasks.enqueue(keys.queue(queue), some)))


def _again(row: dict[str, Any], run: Replay, keys: Keys, sending: str) -> Task:
    check_stored(row["_encoding"], row["_id"])
    headers = {REPLAYED_FROM: row["_id"]} | read_headers((row["_headers"] or "").encode())
    return Task(
        id=derived_id(row["_id"], run.name, keys.queue(row["_queue"]).tag),
        queue=row["_queue"],
        type=row["_type"] or "",
        payload=row["payload"] or b"",
        encoding=row["_encoding"] or "",
        headers=write_headers(headers),
        key=row["_partition"],
        priority=None if row["_priority"] == 1 else row["_priority"],
        keepalive_ms=row["_keepalive_ms"],
        max_attempts=row["_max_attempts"],
        max_stalled=row["_max_stalled"],
        sending=sending,  # another run has the same ids, and the server answers which of them exist
    )
