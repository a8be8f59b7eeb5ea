"""The identity of a micro-batch of a stream. A write of a micro-batch has an id made of it, so a repeated write adds
nothing.

Spark repeats the last micro-batch when a query restarts from its checkpoint, under the same query id and number. It
sets both as local properties of the jobs of a micro-batch, so the tasks of a streaming sink and of a batch write inside
`foreachBatch` can read them; the driver's functions can, too, except under Spark Connect.
"""

import hashlib
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from jobrunner.errors import InvalidOption, SparkMissing
from jobrunner.formatting import describe
from jobrunner.logs import SafeLogger
from jobrunner.spark.running import is_classic, running_session

_QUERY, _MICRO_BATCH, _RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
_RUNS_KEPT = 1_000
_written: OrderedDict[tuple[str, str], tuple[int, set[tuple[object, ...]]]] = OrderedDict()
"""The last micro-batch of each run of a query, by each of its names, and the places to which it was written."""
_warned_of: set[str] = set()
_log = SafeLogger("jobrunner.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """A micro-batch: the id of its query, or "" for the query of the calling Spark task, and its number."""

    query: str
    number: int

    def batch_id(self, *target: str) -> str:
        """The batch id of the write into `target` on the server. With an empty `query`, call it in a Spark task."""
        query = self.query or _of_this_task(_QUERY)
        if not query:
            raise InvalidOption(
                f"microBatch={self.number} without queryId: this write is not part of a streaming query that Spark "
                "names to its tasks; give queryId, the id of the query (under Spark Connect, always)"
            )
        digest = hashlib.sha256("\0".join([query, str(self.number), *target]).encode()).hexdigest()
        return f"stream-{digest[:32]}"


def of_this_task() -> MicroBatch:
    """The micro-batch of the calling Spark task. Raises SparkMissing."""
    query, number = _of_this_task(_QUERY), _of_this_task(_MICRO_BATCH)
    if not query or number is None:
        raise SparkMissing("this version of Spark gives its tasks no micro-batch number; install PySpark 4.1 or newer")
    return MicroBatch(query=query, number=int(number))


def as_options(df: DataFrame, given: int | tuple[str, int] | None) -> dict[str, str]:
    """The options of a write for `micro_batch=` of `enqueue`. Raises InvalidOption."""
    if given is None:
        return {}
    query, number = given if isinstance(given, tuple) and len(given) == 2 else ("", given)
    if isinstance(number, bool) or not isinstance(number, int) or number < 0 or not isinstance(query, str | UUID):
        raise InvalidOption(
            f"micro_batch={describe(given)}: give the number that foreachBatch passes, or (query id, number)"
        )
    query = str(query) or query_of(df)
    if not query:
        raise InvalidOption(
            f"micro_batch={number}: the id of the query is not known here, outside of foreachBatch or under Spark "
            f"Connect; give micro_batch=(query id, {number})"
        )
    return {"queryId": query, "microBatch": str(number)}


def places_of_run(query: str, number: int, spark: SparkSession | None) -> set[tuple[object, ...]]:
    """The places to which this run of a query wrote its micro-batch. A second write to one place would pass for a
    repetition of the first, and the rows of one of them would be lost. All writers of one micro-batch share the set,
    and add their places to it.

    Returns a new set where the run is not known: outside of `foreachBatch`, under Spark Connect, in a thread that the
    function itself started, and after `setJobGroup`. A restarted query has a new run, so it may repeat its writes.
    """
    run = _of_driver(spark, _RUN)  # Spark names the job group after the run
    if run is None or not _is_uuid(run):
        return set()
    last, places = _written.pop((run, query), (number, set()))
    if last != number:
        places = set()
    _written[run, query] = number, places
    while len(_written) > _RUNS_KEPT:
        _written.popitem(last=False)
    return places


def places_of_this_run(query: str, number: int) -> set[tuple[object, ...]]:
    """`places_of_run` for the calling thread."""
    with suppress(Exception):  # the engine is gone, and no query runs
        return places_of_run(query, number, running_session())
    return set()


class OncePerRun:
    """Refuses a second write of one micro-batch into the same queue for the same job by the same run of its query."""

    def __init__(self, df: DataFrame, options: dict[str, str], *target: str) -> None:
        self._target = target
        self._places: set[tuple[object, ...]] = set()
        if not options:
            return
        number = options["microBatch"]
        self._places = places_of_run(options["queryId"], int(number), df.sparkSession)
        if target in self._places:
            raise InvalidOption(
                f"micro_batch={number} was written to {' as '.join(one for one in target if one)} before in this run "
                "of the query; a second write would be taken for a repetition: union the frames"
            )

    def note(self) -> None:
        """Records that the write succeeded."""
        self._places.add(self._target)


def query_of(df: DataFrame) -> str:
    """The id of the streaming query whose `foreachBatch` calls this; empty where it is not known."""
    return _of_driver(df.sparkSession, _QUERY) or ""


def query_of_this_run() -> str:
    """`query_of` for the calling thread."""
    with suppress(Exception):  # the engine is gone, and no query runs
        return _of_driver(running_session(), _QUERY) or ""
    return ""


def warn_of_plain_append(df: DataFrame) -> None:
    """Warns once per query that repeated micro-batches double their rows."""
    query = query_of(df)
    if query and query not in _warned_of:
        _warned_of.add(query)
        _log.warning(
            "a repeated micro-batch of this query adds its rows again",
            query=query, remedy="enqueue(..., micro_batch=number), or ids of the rows",
        )  # fmt: skip


def _of_driver(spark: SparkSession | None, name: str) -> str | None:
    if spark is None or not is_classic(spark):
        return None
    return spark.sparkContext.getLocalProperty(name)


def _of_this_task(name: str) -> str | None:
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
