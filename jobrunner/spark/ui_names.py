"""Names jobs in Spark's web UI, and reads Spark's measurements of the jobs with a name.

Spark lists a job by the line of Python that started it, which for every batch of every station is the same line of this
package. So each batch, and each job of the history commands, has a job group with a description. Both belong to the
thread that starts the jobs, so stations in threads of one session do not interfere.

Spark Connect has neither, as its server writes the description of a job. There a tag carries the name.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from jobrunner.formatting import counted
from jobrunner.logs import SafeLogger

_GROUP, _DESCRIPTION = "spark.jobGroup.id", "spark.job.description"
_MOST_STAGES = 100
"""Most stages of one batch that are added up: each costs a few calls into the JVM."""
_LATE_MS = 1000
"""Longest wait in ms for Spark's figures to catch up with its jobs, as other jobs of a busy session may produce events
without end."""
_logged: set[str] = set()
_log = SafeLogger("jobrunner.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkUsage:
    """Spark's measurements of some jobs. All zero where they are not available, as under Spark Connect."""

    spilled_bytes: int = 0
    """Written to disk because a sort, join or aggregate did not fit into memory."""
    shuffle_bytes: int = 0
    """Written for a shuffle."""
    written_rows: int = 0
    """Rows that Spark's own writers wrote, to files or by JDBC."""


def title_of_batch(queue: str, batch: str, items: int, attempt: int) -> str:
    """The description of a batch's jobs: pipeline and station, batch, items, attempt."""
    return f"{queue}: batch {batch}, {counted(items, 'item')}, attempt {attempt}"


def group_of_batch(batch: str, attempt: int) -> str:
    """The job group of one attempt at a batch, and the tag by which its jobs are cancelled."""
    return f"jobrunner-{batch}-{attempt}"


@contextmanager
def job_names(spark: SparkSession, title: str, group: str = "") -> Iterator[None]:
    """Names the Spark jobs that this thread starts within the block. `group` identifies them, for `usage_of`."""
    if not hasattr(spark, "_jsparkSession"):
        tag = title.replace(",", ";")  # a comma separates tags
        spark.addTag(tag)
        try:
            yield
        finally:
            with suppress(Exception):
                spark.removeTag(tag)
        return
    context = spark.sparkContext
    before = [(name, context.getLocalProperty(name)) for name in (_GROUP, _DESCRIPTION)]
    context.setLocalProperty(_GROUP, group or title)
    context.setLocalProperty(_DESCRIPTION, title)
    try:
        yield
    finally:
        with suppress(Exception):  # the engine is gone
            for name, value in before:
                context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None removes it


def usage_of(spark: SparkSession, group: str) -> SparkUsage:
    """The resources that the jobs of a group used. Reads the status store of the driver, so no executor and no web UI
    is needed.

    A thread of Spark records the events of jobs there, and may lag behind a job that has returned; the call waits for
    it, as rows would be missing.
    """
    spilled = shuffled = written = 0
    with suppress(Exception):  # Spark Connect, an engine that is gone, another version of Spark
        context = spark.sparkContext
        inner = context._jsc.sc()  # noqa: SLF001 - PySpark has no public way to it
        with suppress(Exception):  # it takes longer
            inner.listenerBus().waitUntilEmpty(_LATE_MS)
        store = inner.statusStore()
        for stage in _stages(store, context.statusTracker().getJobIdsForGroup(group)):
            spilled += stage.diskBytesSpilled()
            shuffled += stage.shuffleWriteBytes()
            written += stage.outputRecords()
    return SparkUsage(spilled_bytes=spilled, shuffle_bytes=shuffled, written_rows=written)


def _stages(store: Any, jobs: list[int]) -> Iterator[Any]:
    seen: set[int] = set()
    for job in jobs:
        ids = store.job(job).stageIds().iterator()
        while ids.hasNext() and len(seen) < _MOST_STAGES:
            stage = ids.next()
            if stage not in seen:
                seen.add(stage)
                with suppress(Exception):  # a stage that was skipped has no attempt
                    yield store.lastStageAttempt(stage)


def log_web_ui(spark: SparkSession) -> None:
    """Logs the address of Spark's web UI, when it is on."""
    with suppress(Exception):  # Spark Connect
        url = spark.sparkContext.uiWebUrl
        if url and url not in _logged:
            _logged.add(url)
            _log.info("web UI of Spark", url=url)
