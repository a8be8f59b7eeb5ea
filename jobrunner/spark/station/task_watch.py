"""Ends a Spark job at the first failure of a task with a Python error, instead of the fourth.

Spark runs a failed task again, up to four times in `local[N,4]` and on clusters. That recovers from a killed process,
but repeats an error of a row. The error of a task can be read only in the JVM of this process, so under Spark Connect a
task is tried as often as Spark is configured to.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pyspark.sql import SparkSession

from jobrunner.spark.failures import comes_again
from jobrunner.spark.running import text_of

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


class TaskWatch:
    """Polls the jobs with a tag from a thread, and cancels each whose task failed for good."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self.errors: dict[int, str] = {}
        """The error of a task, by the number of the job that was cancelled for it."""
        self._judged: set[tuple[int, int]] = set()
        self._tag = tag
        self._over = threading.Event()
        self._context: Any = getattr(spark, "_jsparkSession", None) and spark.sparkContext
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
