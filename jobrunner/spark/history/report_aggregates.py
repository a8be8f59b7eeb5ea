"""The aggregates of a report: one pass over the tasks for all groups, one each for errors, parameters and a change.

Rows are finished tasks, prepared by `measured`. Percentiles are Spark's `percentile_approx`: a rank that is off by at
most a thousandth (Greenwald and Khanna, "Space-Efficient Online Computation of Quantile Summaries", SIGMOD 2001).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from jobrunner.spark.history.common_columns import utc_hour_of, whole_queue_of

GROUPS = ("bucket", "queue", "job", "hour")
NO_JOB = "(no job)"
"""The job under which items without a job are counted."""
SLOWER = 1.1
"""A parameter value counts as slow when its tasks run more than this many times as long as all tasks of the job."""
_ACCURACY = 1000
_BUCKETS_S = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 4 * 3600, 86_400, 7 * 86_400)
_MOST_BUCKETS = 120
_FIRST_LINE = r"^([^\n]{0,200})"
_NUMBERS = r"0x[0-9a-fA-F]+|[0-9a-fA-F]{12,}(-[\w.:-]+)?|\d+"
_LONGEST_VALUE = 80


@dataclass(frozen=True, slots=True)
class Extent:
    """The number of tasks, and the instants at which the first and the last of them ended."""

    tasks: int
    first: datetime
    last: datetime

    @property
    def length_s(self) -> float:
        """Seconds from the first to the last, at least one."""
        return max((self.last - self.first).total_seconds(), 1.0)

    @property
    def bucket_s(self) -> int:
        """The shortest round bucket length with which the number of buckets stays within the limit."""
        return next((size for size in _BUCKETS_S if self.length_s / size <= _MOST_BUCKETS), _BUCKETS_S[-1])


def measured(history: DataFrame) -> DataFrame:
    """The columns that a report needs of finished tasks: queue, job, state, ended, attempts, wait_s, run_s, error,
    payload.

    `run_s` is the run time of the last attempt as its worker measured it, and `wait_s` the time from the instant at
    which the attempt was due to its start. Without a measurement, the run lasts from the reservation of the task to its
    end; both are null for tasks without a recorded start.
    """
    ended = F.col("_finished_at")
    if "_run_ms" in history.columns:  # older archives have no such column
        measured_start = F.timestamp_micros(F.unix_micros(ended) - F.col("_run_ms").cast("long") * 1000)
        started = F.coalesce(measured_start, "_started_at")
    else:
        started = F.col("_started_at")
    wait_s = _seconds(started) - _seconds(F.coalesce("_due_time", "_enqueue_time"))
    return history.select(
        whole_queue_of("_queue").alias("queue"),
        F.coalesce(F.nullif(F.col("_type"), F.lit("")), F.lit(NO_JOB)).alias("job"),
        F.col("_state").alias("state"),
        ended.alias("ended"),
        F.coalesce(F.col("_attempts"), F.lit(1)).alias("attempts"),
        F.when(wait_s < 0, 0.0).otherwise(wait_s).alias("wait_s"),
        F.when(ended >= started, _seconds(ended) - _seconds(started)).alias("run_s"),
        F.col("_error").alias("error"),
        F.col("payload").cast("string").alias("payload"),
    ).where("ended IS NOT NULL")


def extent(runs: DataFrame) -> Extent | None:
    """The extent of all tasks; None when there are none."""
    (row,) = runs.agg(
        F.count("*").alias("n"),
        F.min(_seconds(F.col("ended"))).alias("first"),
        F.max(_seconds(F.col("ended"))).alias("last"),
    ).collect()
    return Extent(row.n, _instant(row.first), _instant(row.last)) if row.n else None


def by_group(runs: DataFrame, bucket_s: int) -> dict[str, list[Row]]:
    """Figures of all tasks ('all'), and by each of GROUPS, ordered by the group, which is the field `by`."""
    keyed = runs.withColumn("bucket", F.floor(F.unix_seconds("ended") / bucket_s) * bucket_s)
    keyed = keyed.withColumn("hour", utc_hour_of("ended"))
    keyed = keyed.withColumns({"its_queue": F.col("queue"), "its_job": F.col("job")})
    sets = [[], *([F.col(name)] for name in GROUPS)]
    found = (
        keyed.groupingSets(sets, *GROUPS)
        .agg(F.grouping_id().alias("level"), *_figures(), *_neighbours())
        .withColumn("by", F.coalesce(*(F.col(name).cast("string") for name in GROUPS)))
        .collect()
    )
    levels = {2 ** len(GROUPS) - 1: "all"}
    levels |= {2 ** len(GROUPS) - 1 - 2 ** (len(GROUPS) - 1 - at): name for at, name in enumerate(GROUPS)}
    grouped: dict[str, list[Row]] = {"all": [], **{name: [] for name in GROUPS}}
    for row in found:
        grouped[levels[row.level]].append(row)
    for name, rows in grouped.items():
        rows.sort(key=_by_number if name == "bucket" else _by_text)
    return grouped


def queues_of_jobs(by_job: Sequence[Row], by_queue: Sequence[Row]) -> dict[str, str]:
    """The queue of each job where every job has a queue of its own and no queue has two; else empty."""
    is_paired = all(row.queues[0] == row.queues[1] for row in by_job)
    is_paired = is_paired and all(row.jobs[0] == row.jobs[1] for row in by_queue)
    return {row.by: row.queues[0] for row in by_job} if is_paired else {}


def errors(runs: DataFrame, most: int) -> list[Row]:
    """The commonest last errors of tasks that died or were retried, grouped by their first line without its numbers."""
    line = F.regexp_replace(F.regexp_extract(F.trim("error"), _FIRST_LINE, 1), _NUMBERS, "…")
    dead = F.col("state") == "dead"
    return (
        runs.where("error IS NOT NULL AND error != ''")
        .groupBy(line.alias("line"))
        .agg(
            F.count("*").alias("n"),
            F.count_if(dead).alias("dead"),
            F.array_join(F.slice(F.sort_array(F.collect_set("job")), 1, 4), ", ").alias("jobs"),
            F.min(_seconds(F.col("ended"))).alias("first"),
            F.max(_seconds(F.col("ended"))).alias("last"),
        )
        .orderBy(F.desc("n"), "line")
        .limit(most)
        .collect()
    )


def parameters(runs: DataFrame, most: int, at_least: int) -> list[Row]:
    """The parameter values whose tasks ran longest compared to all tasks of their job, among values that occur
    `at_least` times."""
    ran = runs.where("run_s IS NOT NULL AND state != 'cancelled'")
    overall = ran.groupBy("job").agg(F.avg("run_s").alias("job_mean"))
    entries = F.explode(F.from_json("payload", "map<string,string>")).alias("parameter", "value")
    named = ran.select("job", "run_s", "state", entries).withColumn("value", F.substring("value", 1, _LONGEST_VALUE))
    key = ["job", "parameter", "value"]
    slowest = (
        named.groupBy(*key)
        .agg(F.count("*").alias("n"), F.avg("run_s").alias("mean"))
        .where(F.col("n") >= at_least)
        .join(F.broadcast(overall), "job")
        .withColumn("factor", F.try_divide("mean", "job_mean"))  # of a job whose runs all took 0 ms: null
        .where(F.col("factor") > SLOWER)
        .orderBy(F.desc("factor"), *key)
        .limit(most)
    )
    # Percentiles of these values only: most parameters have as many values as there are tasks.
    return (
        named.join(F.broadcast(slowest), key)
        .groupBy(*key, "n", "mean", "factor")
        .agg(_percentiles("run_s").alias("run"), F.avg((F.col("state") == "dead").cast("int")).alias("dead"))
        .orderBy(F.desc("factor"), *key)
        .collect()
    )


def change(runs: DataFrame, split_at: datetime) -> dict[str, tuple[Row | None, Row | None]]:
    """Figures before and after an instant, of all tasks ('') and of each job."""
    side = F.col("ended") >= F.lit(split_at)
    found = (
        runs.withColumn("after", side)
        .groupingSets([[F.col("after")], [F.col("after"), F.col("job")]], "after", "job")
        .agg(
            F.grouping("job").alias("is_all"),
            *_figures(),
            F.stddev("run_s").alias("run_spread"),
            F.count("run_s").alias("run_count"),
            F.stddev("wait_s").alias("wait_spread"),
            F.count("wait_s").alias("wait_count"),
            F.avg("wait_s").alias("wait_mean"),
        )
        .collect()
    )
    pairs: dict[str, tuple[Row | None, Row | None]] = {}
    for row in sorted(found, key=lambda row: "" if row.is_all else row.job):
        name = "" if row.is_all else row.job
        before, after = pairs.get(name, (None, None))
        pairs[name] = (before, row) if row.after else (row, after)
    return pairs


def _figures() -> Iterable[Column]:
    state = F.col("state")
    return (
        F.count("*").alias("n"),
        F.count_if(state == "succeeded").alias("succeeded"),
        F.count_if(state == "dead").alias("dead"),
        F.count_if(state == "cancelled").alias("cancelled"),
        F.count_if(F.col("attempts") > 1).alias("retried"),
        F.avg("run_s").alias("run_mean"),
        _percentiles("wait_s").alias("wait"),
        _percentiles("run_s").alias("run"),
    )


def _neighbours() -> Iterable[Column]:
    """The first and the last by name of a group's queues, and of its jobs; both are equal when the group has only
    one."""
    for name in ("queue", "job"):
        own = f"its_{name}"
        yield F.array(F.min(own), F.max(own)).alias(f"{name}s")


def _percentiles(name: str) -> Column:
    return F.percentile_approx(name, [0.5, 0.95, 0.99], _ACCURACY)


def _by_number(row: Row) -> int:
    return int(row.by)


def _by_text(row: Row) -> str:
    return str(row.by)


def _seconds(instant: Column) -> Column:
    return F.unix_micros(instant) / 1e6


def _instant(seconds: Any) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
