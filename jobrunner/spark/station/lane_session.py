"""The session of a lane: a copy of the one of this process, so that batches beside each other do not share what their
functions register and set.

Invariant: a view that a function registers on its session, and a setting, ends with its batch and is seen by no other.
Views and settings of the session of this process are those of the moment at which the batch begins.
"""

from typing import Any

from pyspark.sql import SparkSession

from jobrunner.logs import SafeLogger
from jobrunner.spark.running import first_line, is_classic

_log = SafeLogger("jobrunner.spark")


class LaneSession:
    """Makes the copy with the first batch, and keeps it: a copy for each batch would open the catalogs of the session
    anew. Its functions are those of that time.

    Under Spark Connect lanes have the session itself: a frame that a module made cannot be joined with those of a copy.
    """

    def __init__(self) -> None:
        self._shared: SparkSession | None = None
        self._own: SparkSession | None = None
        self._states: list[_State] = []
        self._is_told = False

    def for_batch(self, spark: SparkSession) -> SparkSession:
        """The session for the next batch, without what the previous one registered and set."""
        if not is_classic(spark):
            return spark
        try:
            if self._own is None or self._shared is not spark:
                self._shared, self._own = spark, _copy_of(spark)
                self._states = [_State(spark), _State(self._own)]
            else:
                _renew(*self._states)
        except Exception as error:  # the engine is gone, as the next call says; or the platform forbids such calls
            self._own = None
            if not self._is_told:
                self._is_told = True
                _log.warning("batches share the views of the session: Spark makes no copy of it",
                             error=first_line(error))  # fmt: skip
            return spark
        return self._own


class _State:
    """What a session keeps in Java of its views and settings: asked for once, as each object of Java costs Python as
    much as a call."""

    def __init__(self, spark: Any) -> None:
        state = spark._jsparkSession.sessionState()  # noqa: SLF001  PySpark has no public way
        self.catalog = state.catalog()
        self.conf = state.conf()
        self.settings = self.conf.settings()


def _copy_of(spark: Any) -> SparkSession:
    """A session with the settings, views, functions and current catalog of another one, on the same engine.

    The constructor would make it the session that `RDD.toDF` uses in the whole process.
    """
    own: Any = object.__new__(type(spark))
    for name in ("_sc", "_jsc", "_jvm", "_profiler_collector"):
        setattr(own, name, getattr(spark, name))
    own._jsparkSession = spark._jsparkSession.cloneSession()  # noqa: SLF001  as above
    catalog = spark.catalog.currentCatalog()
    if own.catalog.currentCatalog() != catalog:
        own.catalog.setCurrentCatalog(catalog)
        own.catalog.setCurrentDatabase(spark.catalog.currentDatabase())
    copy: SparkSession = own
    return copy


def _renew(shared: _State, own: _State) -> None:
    own.catalog.clearTempTables()
    shared.catalog.copyStateTo(own.catalog)
    own.conf.clear()  # that of a map is a loop in Python
    own.settings.putAll(shared.settings)
