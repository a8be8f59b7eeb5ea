"""Runs finished tasks again: enqueues a part of the history, selected by a SQL expression, into its queues.

Invariant: the id of a new task is derived from the id of the old task, the name of the replay and the target shard. So
a replay that is repeated after a crash, under the same name and with as many shards, adds only the missing tasks.
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
from jobrunner.broker.calls import new_tasks, queues
from jobrunner.broker.calls.shards import UNKNOWN, ShardCounts, shard_counts
from jobrunner.broker.keys import Keys
from jobrunner.broker.shards import shard_names, shard_of_key, whole_queue
from jobrunner.client.item import read_headers, write_headers
from jobrunner.client.operations.dead_and_history import REPLAYED_FROM
from jobrunner.client.operations.enqueue import batches
from jobrunner.errors import InvalidOption
from jobrunner.spark.history.common_columns import whole_queue_of
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
    """Selects the tasks for which a SQL expression is true, each once, in its last end; `payload` is text in the
    expression.

    Raises InvalidOption for an expression that Spark does not understand.
    """
    readable = history.withColumn("_raw", F.col("payload")).withColumn("payload", F.col("payload").cast("string"))
    try:
        found = readable.where(where)
    except AnalysisException as error:
        columns = ", ".join(name for name in history.columns if name not in ("date", "queue", "window"))
        reason = first_line(error).partition("SQLSTATE")[0].strip()
        raise InvalidOption(f"--where {where!r}: {reason} Columns are {columns}") from error
    except Exception as error:  # for a syntax error, each client of Spark raises another class
        raise InvalidOption(f"--where {where!r} is no SQL expression: {str(error).strip().splitlines()[0]}") from error
    found = found.withColumn("payload", F.col("_raw"))
    last = F.max_by(F.struct(*_NEEDED), "_finished_at").alias("last")
    return found.groupBy(F.col("_id").alias("one"), F.col("_queue").alias("of")).agg(last).select("last.*")


def count(selected: DataFrame) -> dict[str, int]:
    """Counts the selected tasks by queue."""
    found = selected.groupBy(whole_queue_of("_queue").alias("queue")).count().orderBy("queue")
    return {row["queue"]: row["count"] for row in found.collect()}


def replay(selected: DataFrame, run: Replay) -> dict[str, Replayed]:
    """Enqueues the selected tasks as new tasks, with header `replayed_from`. Returns the counts by queue.

    Raises QueueFull through Spark. Tasks added before the error stay; the same replay, run again, adds the rest.
    """
    counts = selected.mapInArrow(Shipped(partial(_add, run)), "queue string, added long, there long")
    sums = counts.groupBy("queue").agg(F.sum("added").alias("added"), F.sum("there").alias("there")).orderBy("queue")
    return {row.queue: Replayed(row.added, row.there) for row in sums.collect()}


def _add(run: Replay, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    keys, sending = Keys(run.prefix), os.urandom(8).hex()
    with broker_at(run.url, run.prefix) as broker:
        for batch in batches:
            rows = batch.to_pylist()
            whole = sorted({whole_queue(row["_queue"]) for row in rows})
            counts = dict(zip(whole, broker.run_many([shard_counts(keys.queue(one)) for one in whole]), strict=True))
            by_target: dict[str, list[Task]] = {}
            for row in rows:
                target = _target_of(row, counts)
                by_target.setdefault(target, []).append(_again(row, target, run, keys, sending))
            for target, again in by_target.items():
                new = sum(_enqueue(broker, keys, target, again))
                yield pa.record_batch({"queue": [whole_queue(target)], "added": [new], "there": [len(again) - new]})


def _target_of(row: dict[str, Any], counts: dict[str, ShardCounts]) -> str:
    """The shard to enqueue a task into: that of its partition key, else the shard it was in, if the queue still has it.
    On a restored or second server the queue may have fewer shards; no worker would take a task from another shard."""
    shard = str(row["_queue"])
    queue = whole_queue(shard)
    if (known := counts[queue]) is UNKNOWN:
        return shard
    if row["_partition"] is not None:
        return shard_of_key(row["_partition"], shard_names(queue, known.keyed))
    is_there = shard in known.names(queue)
    return shard if is_there else shard_of_key(row["_id"], shard_names(queue, known.partitions))


def _enqueue(broker: Broker, keys: Keys, queue: str, again: list[Task]) -> Iterator[int]:
    broker.run_many(queues.register(keys, [queue]))
    for some in batches(again, sys.maxsize, _AT_ONCE):
        yield sum(broker.run(new_tasks.enqueue(keys.queue(queue), some)))


def _again(row: dict[str, Any], target: str, run: Replay, keys: Keys, sending: str) -> Task:
    check_stored(row["_encoding"], row["_id"])
    headers = {REPLAYED_FROM: row["_id"]} | read_headers((row["_headers"] or "").encode())
    return Task(
        id=derived_id(row["_id"], run.name, keys.queue(target).tag),
        queue=target,
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
