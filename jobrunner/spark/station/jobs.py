"""What Spark runs for one batch, under a name by which it can be cancelled from another thread."""

import threading
from contextlib import suppress
from math import inf
from typing import Any, Self

from pyspark.sql import SparkSession

from jobrunner.clock import monotonic

_AGAIN_S = 0.5


class SparkJobs:
    """The jobs that the thread in its `with` block starts.

    A classic session's tags belong to threads, those of a session of Spark Connect to the session.
    """

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._spark = spark
        self._tag = tag

    def __enter__(self) -> Self:
        self._tags.addJobTag(self._tag) if self._is_classic else self._spark.addTag(self._tag)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):  # the engine is gone, and its tags with it
            self._tags.removeJobTag(self._tag) if self._is_classic else self._spark.removeTag(self._tag)

    def cancel_until(self, over: threading.Event, timeout_s: float | None = None) -> None:
        """Cancels them, and those that start yet, until it is over; the thread that waits for them gets an error.

        Safe in any thread. Spark forgets a cancellation that comes before the job.
        """
        ends = monotonic() + (inf if timeout_s is None else timeout_s)
        while not over.is_set() and monotonic() < ends:
            self._cancel()
            over.wait(_AGAIN_S)

    def _cancel(self) -> None:
        with suppress(Exception):
            self._tags.cancelJobsWithTag(self._tag) if self._is_classic else self._spark.interruptTag(self._tag)

    @property
    def _is_classic(self) -> bool:
        return hasattr(self._spark, "_jsparkSession")

    @property
    def _tags(self) -> Any:
        return self._spark.sparkContext
