"""The first failure of a Spark task by an error of Python ends its job, instead of the fourth.

Spark runs a failed task again, up to four times in `local[N,4]` and on clusters. That mends a killed process, and
repeats an error of a row. The error of a task can be read only in the JVM of this process, so under Spark Connect it is
tried as often as Spark is set to.
"""

import threading
from contextlib import suppress
from typing import Any

from pyspark.sql import SparkSession

from jobrunner.spark.failures import comes_again

_FIRST_S = 0.2
_LONGEST_S = 1.0
_GROWTH = 1.3
"""A failure of a long job may be seen a little later: each look is some calls into the JVM."""
_FAILURES_READ = 3


class TaskWatch:
    """Polls the jobs with a tag from a thread while its `with` block runs, and cancels one whose task failed for good.
    `error` is what the task failed with, then."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self.error: str | None = None
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

    def _run(self) -> None:
        wait_s = _FIRST_S
        while not self._over.wait(wait_s):
            with suppress(Exception):  # a job that ended meanwhile, a JVM that is gone: the caller meets that itself
                if self._found():
                    return
            wait_s = min(_GROWTH * wait_s, _LONGEST_S)

    def _found(self) -> bool:
        scala = self._context._jsc.sc()  # noqa: SLF001 - Python's tracker knows no tags
        tracker = scala.statusTracker()
        for job in tracker.getJobIdsForTag(self._tag):
            info = tracker.getJobInfo(job)
            for stage in info.get().stageIds() if info.isDefined() else ():
                found = tracker.getStageInfo(stage)
                if found.isDefined() and found.get().numFailedTasks():
                    self.error = self._error_of(scala, stage, found.get().currentAttemptId())
                    if self.error is not None:
                        scala.cancelJob(job)
                        return True
        return False

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
