"""How far a write of Spark is, for a person who looks."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyspark.sql import SparkSession

_EACH_S = 0.25


@contextmanager
def telling_rows(spark: SparkSession, tell: Callable[[int], None] | None) -> Iterator[None]:
    """Calls `tell`, in a thread of its own, with how many rows were written so far since the `with` block began.

    Rows of a Spark task count when it ends. Other writes of the session meanwhile count too. A session of Spark Connect
    tells nothing.
    """
    if tell is None or not hasattr(spark, "_jsparkSession"):
        yield
        return
    over, rows = threading.Event(), _RowsWritten(spark)

    def watch() -> None:
        while not over.wait(_EACH_S):
            with suppress(Exception):  # what is shown must not end what is done
                tell(rows.written())

    watcher = threading.Thread(target=watch, name="jobrunner-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


class _RowsWritten:
    """Rows written by stages that were seen at work."""

    def __init__(self, spark: SparkSession) -> None:
        session: Any = spark
        self._tracker = session.sparkContext.statusTracker()
        self._store = session._jsparkSession.sparkContext().statusStore()  # noqa: SLF001 - there is no public way
        self._seen: set[int] = set()

    def written(self) -> int:
        self._seen.update(self._tracker.getActiveStageIds())
        return sum(self._store.lastStageAttempt(stage).outputRecords() for stage in self._seen)
