"""The session of a lane: a copy of the session of this process, so that concurrent batches do not share the views and
settings of their functions.

Invariant: a view, a setting or the current catalog of a function ends with its batch and is invisible to other batches.
They are copied from the session of this process when the batch begins.
"""

from typing import Any

from pyspark.sql import SparkSession

from jobrunner.logs import SafeLogger
from jobrunner.spark.running import first_line, is_classic

_log = SafeLogger("jobrunner.spark")


class LaneSession:
    """Creates the copy with the first batch, and keeps it: a copy for each batch would open the catalogs of the session
    again. So registered functions are those of the first batch.

    Under Spark Connect lanes use the session itself: a frame that a module created cannot be joined with frames of a
    copy.
    """

    def __init__(self) -> None:
        self._shared: SparkSession | None = None
        self._own: SparkSession | None = None
        self._states: list[_State] = []
        self._is_told = False

    def for_batch(self, spark: SparkSession) -> SparkSession:
        """The session for the next batch, without views and settings of the previous batch."""
        if not is_classic(spark):
            return spark
        try:
            if self._own is None or self._shared is not spark:
                self._shared, self._own = spark, _copy_of(spark)
                self._states = [_State(spark), _State(self._own)]
            else:
                _renew(*self._states)
        except Exception as error:  # the engine is gone, as the next call reports; or the platform forbids such calls
            self._own = None
            if not self._is_told:
                self._is_told = True
                _log.warning("batches share the views of the session: Spark makes no copy of it",
                             error=first_line(error))  # fmt: skip
            return spark
        return self._own


class _State:
    """The Java objects with a session's views, settings and current catalog: fetched once, as each Java object costs
    Python as much as a call."""

    def __init__(self, spark: Any) -> None:
        state = spark._jsparkSession.sessionState()  # noqa: SLF001  PySpark has no public way
        self.catalog = state.catalog()
        self.conf = state.conf()
        self.settings = self.conf.settings()
        self.catalogs = state.catalogManager()

    def current(self) -> tuple[str, list[str]]:
        """The current catalog and namespace."""
        return self.catalogs.currentCatalog().name(), list(self.catalogs.currentNamespace())


def _copy_of(spark: Any) -> SparkSession:
    """A session with the settings, views, functions and current catalog of another one, on the same engine.

    Bypasses the constructor, which would make the copy the session that `RDD.toDF` uses in the whole process.
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
    own.conf.clear()  # `clear` of a map is a loop in Python
    own.settings.putAll(shared.settings)
    if own.current() != shared.current():  # `USE` in a function
        own.catalogs.setCurrentCatalog(shared.catalogs.currentCatalog().name())
        own.catalogs.setCurrentNamespace(shared.catalogs.currentNamespace())
