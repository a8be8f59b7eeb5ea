"""The Spark jobs of an attempt at a batch. They are named, cancelled and measured together, and end at the first
failure of a task with a Python error, instead of the fourth.

Spark runs a failed task again, up to four times in `local[N,4]` and on clusters. That recovers from a killed process,
but repeats an error of a row. The error of a task can be read only in the JVM of this process, so under Spark Connect a
task is tried as often as Spark is configured to.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import inf
from typing import Any, Self

from pyspark.sql import SparkSession

from jobrunner.client.batches import BatchLease
from jobrunner.clock import monotonic
from jobrunner.formatting import counted
from jobrunner.spark.failures import SparkTaskError, comes_again, is_of_spark
from jobrunner.spark.running import is_classic, text_of
from jobrunner.spark.ui_names import job_names

_AGAIN_S = 0.5
"""Seconds between two cancellations."""
_MOST_STAGES = 100
"""Most stages of one batch that are added up: each costs a few calls into the JVM."""
_LATE_MS = 1000
"""Longest wait in ms for Spark's figures to catch up with its jobs, as other jobs of a busy session may produce events
without end."""
_FIRST_S = 0.2
_LONGEST_S = 1.0
_GROWTH = 1.3
"""Factor between two pauses: failures of a long job may be noticed a little later, as each poll makes some calls into
the JVM."""
_FAILURES_READ = 3
_OVER = ("SUCCEEDED", "FAILED")
_CANCELLED_JOB = re.compile(r"\bJob (\d+) cancelled\b")
_DEEPEST = 20
"""Most causes of a Java error that are read, as an error may be its own cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkUsage:
    """Spark's measurements of some jobs. All zero where they are not available, as under Spark Connect."""

    spilled_bytes: int = 0
    """Written to disk because a sort, join or aggregate did not fit into memory."""
    shuffle_bytes: int = 0
    """Written for a shuffle."""
    written_rows: int = 0
    """Rows that Spark's own writers wrote, to files or by JDBC."""


def title_of(lease: BatchLease) -> str:
    """The description of a batch's jobs: pipeline and station, batch, items, attempt."""
    return f"{lease.queue}: batch {lease.id}, {counted(lease.size, 'item')}, attempt {lease.epoch}"


def group_of(lease: BatchLease) -> str:
    """The job group of one attempt at a batch, and the tag by which its jobs are cancelled."""
    return f"jobrunner-{lease.id}-{lease.epoch}"


class SparkJobs:
    """The Spark jobs that the thread in its `with` block starts, under a tag by which another thread cancels them.
    Raises SparkTaskError when a task failed with an error that a repetition would raise again.

    A classic session's tags belong to threads, those of a session of Spark Connect to the session. `title` names the
    jobs in Spark's web UI.
    """

    def __init__(self, spark: SparkSession, tag: str, title: str = "") -> None:
        self._spark = spark
        self._tag = tag
        self._title = title
        self._named = ExitStack()
        self._watch = TaskWatch(spark, tag)

    def __enter__(self) -> Self:
        self._tags.addJobTag(self._tag) if is_classic(self._spark) else self._spark.addTag(self._tag)
        self._named.enter_context(job_names(self._spark, self._title or self._tag, self._tag))
        self._watch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        self._watch.stop()
        self._named.close()
        with suppress(Exception):  # the engine is gone, and its tags with it
            self._tags.removeJobTag(self._tag) if is_classic(self._spark) else self._spark.removeTag(self._tag)
        if error is not None and is_of_spark(error) and (text := self._watch.error_of(error)) is not None:
            raise SparkTaskError(text) from error

    def cancel_until(self, over: threading.Event, timeout_s: float | None = None) -> None:
        """Cancels the jobs, also those that start later, until `over` is set; the thread that waits for them gets an
        error.

        Safe in any thread. It repeats, as Spark forgets a cancellation that comes before its job.
        """
        ends = monotonic() + (inf if timeout_s is None else timeout_s)
        while not over.is_set() and monotonic() < ends:
            self._cancel()
            over.wait(_AGAIN_S)

    def _cancel(self) -> None:
        with suppress(Exception):
            self._tags.cancelJobsWithTag(self._tag) if is_classic(self._spark) else self._spark.interruptTag(self._tag)

    def usage(self) -> SparkUsage:
        """The resources that the jobs have used, as far as they have ended."""
        return usage_of(self._spark, self._tag)

    @property
    def _tags(self) -> Any:
        return self._spark.sparkContext


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


class TaskWatch:
    """Polls the jobs with a tag from a thread, and cancels each whose task failed for good."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self.errors: dict[int, str] = {}
        """The error of a task, by the number of the job that was cancelled for it."""
        self._judged: set[tuple[int, int]] = set()
        self._tag = tag
        self._over = threading.Event()
        self._context: Any = spark.sparkContext if is_classic(spark) else None
        self._thread = threading.Thread(target=self._run, name=f"jobrunner-tasks-{tag}", daemon=True)

    def start(self) -> None:
        """Does nothing where the errors of tasks cannot be read."""
        if self._context is not None:
            self._thread.start()

    def stop(self) -> None:
        """Ends the polls; returns at once."""
        self._over.set()

    def error_of(self, error: BaseException) -> str | None:
        """The error of a task, if `error` reports a job that was cancelled here. A function may have caught the error
        of an earlier job and raised another one."""
        jobs = (int(one) for text in _texts(error) for one in _CANCELLED_JOB.findall(text))
        return next((self.errors[job] for job in jobs if job in self.errors), None)

    def _run(self) -> None:
        wait_s = _FIRST_S
        while not self._over.wait(wait_s):
            with suppress(Exception):  # an ended job, a dead JVM: the caller gets that error itself
                self._look()
            wait_s = min(_GROWTH * wait_s, _LONGEST_S)

    def _look(self) -> None:
        scala = self._context._jsc.sc()  # noqa: SLF001 - Python's tracker knows no tags
        tracker = scala.statusTracker()
        for job in tracker.getJobIdsForTag(self._tag):
            info = tracker.getJobInfo(job)
            if not info.isDefined() or job in self.errors or info.get().status().name() in _OVER:
                continue
            for stage in info.get().stageIds():
                found = tracker.getStageInfo(stage)
                if found.isDefined() and found.get().numFailedTasks():
                    self._judge(scala, job, stage, found.get().currentAttemptId())

    def _judge(self, scala: Any, job: int, stage: int, attempt: int) -> None:
        """Cancels the job if a task of the stage attempt failed. A later job may reuse a stage of a cancelled job; a
        stage attempt of that job proves nothing about the later one."""
        if (stage, attempt) in self._judged:
            return
        error = self._error_of(scala, stage, attempt)
        if error is not None:
            self._judged.add((stage, attempt))
            self.errors[job] = error
            scala.cancelJob(job)

    def _error_of(self, scala: Any, stage: int, attempt: int) -> str | None:
        api = self._context._jvm.org.apache.spark.status.api.v1  # noqa: SLF001
        failed = self._context._jvm.java.util.ArrayList()  # noqa: SLF001
        failed.add(api.TaskStatus.FAILED)
        tasks = scala.statusStore().taskList(stage, attempt, 0, _FAILURES_READ, api.TaskSorting.ID, failed)
        for place in range(tasks.size()):
            text = tasks.apply(place).errorMessage()
            if text.isDefined() and comes_again(text.get()):
                return str(text.get())
        return None


def _texts(error: BaseException) -> Iterator[str]:
    """The messages of an error of Spark and of its causes, which PySpark leaves out."""
    yield text_of(error)
    with suppress(Exception):  # Java has ended
        java = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
        for _ in range(_DEEPEST):
            if java is None:
                return
            yield str(java.getMessage())
            java = java.getCause()
