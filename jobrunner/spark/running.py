"""Finds the running Spark session of this process, and reads and changes its settings.

PySpark's active session is per thread under Spark Connect, and stations use threads of their own. So the session that
the user registered is remembered here. Invariant: a setting that Spark refuses is a warning that names it, not an
error.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from jobrunner.errors import InvalidOption, StationError
from jobrunner.formatting import storable
from jobrunner.logs import SafeLogger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NAMED = re.compile(r"The value '(?P<value>.*)' in the config \"(?P<name>[^\"]+)\"")
_JAVA_CALL = re.compile(r"An error occurred while calling \S+")
"""Matches the first line of a Java error, which names only the call."""
_CONTEXT_LOGS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
TIME_POLICY = "spark.sql.legacy.timeParserPolicy"
_KEPT_ABOVE = "spark.sql.session.localRelationCacheThreshold"
_LARGEST_REQUEST = 64 << 20
"""Bytes of a table in a request: above those of any batch that a driver reads, half of what gRPC takes."""
_remembered: list["SparkSession"] = []
_log = SafeLogger("jobrunner.spark")


def remember(spark: "SparkSession") -> None:
    """Makes a session the session of this process, for all its threads."""
    _remembered[:] = [spark]


def running_session() -> "SparkSession | None":
    """The session that was registered last, unless it was stopped; else the one that PySpark knows in this thread."""
    from pyspark.sql import SparkSession  # the extra may be absent

    if _remembered and not is_over(_remembered[0]):
        return _remembered[0]
    return SparkSession.getActiveSession()


def silence_query_contexts() -> None:
    """Silences PySpark's log record of each planning error: a line of JSON with the Java stack, up to 8 kB, which
    repeats the error itself. A level that the program chose stays."""
    from pyspark.logger import PySparkLogger  # the extra may be absent

    for name in _CONTEXT_LOGS:
        logger = PySparkLogger.getLogger(name)
        if logger.level == logging.WARNING:  # PySpark's
            logger.setLevel(logging.CRITICAL + 1)


def is_classic(spark: "SparkSession") -> bool:
    """Whether the driver's JVM belongs to this process, unlike under Spark Connect."""
    return hasattr(spark, "_jsparkSession")


def activate(spark: "SparkSession") -> None:
    """Makes a session the active session of this thread. A write looks up the formats of Python sources only in the
    active session, which a new thread lacks; under Spark Connect PySpark parses schemas with it. There the default of
    other threads stays the first session of the process, even when that ended with its server."""
    with suppress(Exception):  # the next call reports a dead engine; or another version of PySpark
        session: Any = spark
        if is_classic(spark):
            session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)  # noqa: SLF001
        else:
            type(session)._active_session.session = session  # noqa: SLF001  PySpark sets it only where none is set


def check_runs(spark: "SparkSession") -> None:
    """Raises StationError for a session that was stopped, or whose Java has ended (killed for its memory, say): PySpark
    starts no other Java in a process, and fails each call with a refused connection."""
    if is_over(spark):
        raise StationError("this Spark session was stopped: make a new one, and register(spark) that")
    if not is_classic(spark):
        return
    from py4j.protocol import Py4JNetworkError  # the extra may be absent

    try:
        session: Any = spark
        session._jvm.java.lang.System.nanoTime()  # noqa: SLF001  any call
    except (OSError, Py4JNetworkError) as error:
        raise StationError(
            "the Java of this Spark session has ended, and PySpark starts no other one in this process: start the "
            f"process, in a notebook the kernel, again ({error})"
        ) from error


def conf_of(spark: "SparkSession", name: str) -> str | None:
    """A setting of the session, its default included; None when it has none, or hides it."""
    with suppress(Exception):  # an unknown one; a Connect server may hide some
        return spark.conf.get(name)
    return None


def has_conf(spark: "SparkSession", name: str) -> bool:
    """Whether the session has a value of its own for a setting instead of the default."""
    with suppress(Exception):  # as above
        return spark.conf.get(name, None) is not None
    return False


def set_conf(spark: "SparkSession", name: str, value: str) -> bool:
    """Sets a setting of a session that runs. Returns False, after a warning, when Spark refuses it there. Raises
    InvalidOption for a value that Spark does not accept."""
    try:
        spark.conf.set(name, value)
    except Exception as error:
        line = first_line(error)
        if "INVALID_CONF_VALUE" in line or type(error).__name__ == "IllegalArgumentException":
            named = _NAMED.search(line)  # which may be another setting, that the session was created with
            refused = f"{named['name']}={named['value']!r}" if named else f"{name}={value!r}"
            raise InvalidOption(f"{refused} is refused by Spark: {line}") from error
        if conf_of(spark, name) != value:
            _log.warning("Spark refuses a setting in a session that runs; give it where the session is made",
                         setting=name, value=value, error=line)  # fmt: skip
        return False
    return True


def keep_tables_in_requests(spark: "SparkSession") -> None:
    """Under Spark Connect, sends the items of a batch within its request. A server (4.3) keeps each larger table of a
    client, above 1 MB by default, until the session ends, which is that of a worker: one such table for each batch."""
    if is_classic(spark):
        return
    limit = conf_of(spark, _KEPT_ABOVE)
    if limit is not None and limit.isdecimal() and int(limit) < _LARGEST_REQUEST:
        set_conf(spark, _KEPT_ABOVE, str(_LARGEST_REQUEST))


def set_all(spark: "SparkSession", settings: Mapping[str, str]) -> None:
    """Sets several settings; see `set_conf`."""
    for name, value in settings.items():
        set_conf(spark, name, value)


def first_line(error: BaseException) -> str:
    """The first line of Spark's message, at most 300 characters."""
    return (*told_lines(error), type(error).__name__)[0][:300]


def told_lines(error: BaseException) -> list[str]:
    """The lines of Spark's message that are not empty, without a line that only names a Java call."""
    lines = [line.strip().removeprefix(": ") for line in text_of(error).splitlines() if line.strip()]
    return [line for line in lines if not _JAVA_CALL.fullmatch(line)]


def text_of(error: BaseException) -> str:
    """The whole message, with escapes for characters that have no UTF-8, which Arrow does not take either. The message
    of a Java error is read from Java, which may have ended."""
    try:
        return storable(str(error))
    except Exception:  # of Java, or a user's __str__
        is_of_java = type(error).__module__.startswith(("py4j", "pyspark"))
        return f"{type(error).__name__} of a Java that has ended" if is_of_java else "(an error that cannot be shown)"


def parses_as_spark_2(spark: "SparkSession") -> bool:
    """Whether the session parses dates and times as Spark 2 did, which many platforms set."""
    return (conf_of(spark, TIME_POLICY) or "").upper() == "LEGACY"


def same_names(spark: "SparkSession | None", names: Sequence[str]) -> tuple[str, str] | None:
    """The first two of these columns that Spark takes for the same column, as it ignores the case of names by default;
    None when all names differ. An expression that names one of the two is an error in Spark."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if names.count(name) > 1:
            return name, name
        if other != name and (spark is None or conf_of(spark, "spark.sql.caseSensitive") != "true"):
            return other, name
    return None


def names_told(two: tuple[str, str]) -> str:
    """The two names and the remedy, as text for an error."""
    one, other = two
    if one == other:
        return f"column {one!r} twice: drop or rename one of them (join by name)"
    return f"columns {one!r} and {other!r}, which Spark takes for one name: drop or rename one of them"


def is_same_column(one: "DataFrame", other: "DataFrame", name: str) -> bool:
    """Whether both frames certainly have the same column under this name, passed on from one to the other. Always False
    under Spark Connect, where this cannot be known."""
    frames: list[Any] = [one, other]
    if not (is_classic(one.sparkSession) and all(name in frame.columns for frame in frames)):
        return False
    found = [frame.select(name)._jdf.queryExecution().analyzed().output().head() for frame in frames]  # noqa: SLF001
    return bool(found[0].exprId().equals(found[1].exprId()))


def session_id(spark: "SparkSession") -> str:
    """The id of a session, the same for all Python objects of it."""
    session: Any = spark
    return str(session._jsparkSession.sessionUUID() if is_classic(spark) else session.session_id)  # noqa: SLF001


def is_over(spark: "SparkSession") -> bool:
    """Whether the session was stopped."""
    if is_classic(spark):
        return spark.sparkContext._jsc is None  # noqa: SLF001  PySpark has no public answer
    return bool(getattr(spark, "is_stopped", False))
