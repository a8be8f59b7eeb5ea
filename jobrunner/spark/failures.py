"""Errors of Spark: a readable line and the cause of each.

Spark wraps an error of a Python worker into a page of Python and Java. The informative part is the last line of the
innermost Python traceback, or the first sentence of the engine's own error.

Invariants: an outage, a lost lease or a dead engine never counts against the items of a batch; and no value of an item,
which errors quote, passes for one of these, or for an error of the code.
"""

import re
from contextlib import suppress
from enum import StrEnum

from pyspark import SparkContext
from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    IllegalArgumentException,
    NumberFormatException,
    PySparkAttributeError,
    PySparkException,
    PySparkImportError,
    PySparkNotImplementedError,
    PySparkTypeError,
    SparkRuntimeException,
)
from pyspark.sql import SparkSession

from jobrunner.errors import (
    BatchLost,
    FolderError,
    InvalidOption,
    OutcomeUnknown,
    PipelineError,
    ServerError,
    ServerFull,
    ServerRefused,
    ServerUnavailable,
    StationError,
    TableError,
    UnsafeServer,
)
from jobrunner.spark.error_texts import SQLSTATE, at_start, python_error, texts_of_java
from jobrunner.spark.executor_load import UNFIT
from jobrunner.spark.running import is_classic, is_over, text_of, told_lines
from jobrunner.spark.ui_names import job_names

_LONGEST = 1000
_EXPRESSION_ID = re.compile(r"(?<=\w)#\d+L?\b")
"""Ids that Spark gives to columns, new in each plan. Removed, so that one error of the code is the same text for each
batch."""
_JAVA_CLASS = re.compile(r"(?:[\w$]+\.)+([\w$]+: )")
_OF_A_VALUE = at_start(r"\[(MALFORMED_RECORD_IN_PARSING|NOT_NULL_ASSERT_VIOLATION)\b")
"""Errors of an expression for a value (`from_json`, `parse_json`) without a class of their own."""
_UDF = r"\[FAILED_EXECUTE_UDF\]"
_OF_JAVA_FUNCTION = at_start(_UDF)
_CANCELLED = at_start(r"\[SPARK_JOB_CANCELLED\](?P<how>[^\n]*)")
_BY_OTHERS = {
    "cancellation of all jobs": ", as all jobs of this Spark were: by cancelAllJobs(), a Ctrl-C or a stopped cell",
    "killed via the Web UI": " in Spark's web UI",
}
"""Spark's message → how a user cancelled jobs, maybe those of other programs. Such an end says nothing about items."""
_NOT_WRITTEN = at_start(r"\[TASK_WRITE_FAILED\]")
"""The condition of a failed file write. Its message has only the folder; the reason is in the last cause in Java."""
_CAUSED_BY = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+): (.+)$", re.MULTILINE)
_FILE = re.compile(r"(?:\w+:)?/\S*/attempt_\w+/|/?part-\d+-[0-9a-f]{8}-\S*")
"""Parts of a file name that differ between attempts. Removed, so that one error is the same text for each batch."""
_RPC = re.compile(r'of RPC that terminated with:\s.*?^\s*details = "(?P<why>.*?)"$', re.DOTALL | re.MULTILINE)
"""An error of gRPC, whose first line has no reason."""
_LOST_TASK = re.compile(r"Lost task \S+ in stage \S+ \([^()]*\) \([^()]*\): (?:[\w.$]+: )?(?P<why>.*)")
_NO_PYTHON = at_start(
    r'(?:Cannot run program "(?P<program>[^"\n]+)"[^:\n]*: (?P<why>[^\n]+)'
    r"|EOFException occurred while reading the port number from \S+ stdout"
    r"|Bad data in \S+ standard output\. Invalid port number)"
)
"""Java's messages for a Python that it cannot run, that ends before it is ready for items, or that prints."""
_BEFORE_ANY_ROW = (
    AnalysisException, IllegalArgumentException, ImportError, InvalidOption, NameError, PySparkAttributeError,
    PySparkImportError, PySparkNotImplementedError, PySparkTypeError, StationError,
)  # fmt: skip
"""Errors raised while a plan is made: a misspelt column, a wrong option, an undefined name, a frame without the
steering columns. Errors of rows are raised in Spark tasks and have other classes."""
_OF_STATEMENTS = frozenset({"ProgrammingError", "NotSupportedError"})
"""Classes of the DB-API, from which drivers derive their own, for a wrong statement: a missing table, a syntax error,
a wrong type."""
_OF_VALUES = (
    ArithmeticException, ArrayIndexOutOfBoundsException, DateTimeException, NumberFormatException, PipelineError,
    SparkRuntimeException,
)  # fmt: skip
"""Errors of an expression for a value, and errors of this package that name an item."""
_NEVER_OF_ROWS = frozenset({"ImportError", "ModuleNotFoundError", "NameError", "PicklingError", "UnboundLocalError"})
"""Python errors in a Spark task that every row meets: a module that executors lack, an undefined name."""
_PASSING = re.compile(
    r"\w*(Connection\w*|Timeout|Operational|Interface|HTTP|URL|EOF|Memory|BrokenPipe)(Error|Exception)?|(OS|IO)Error"
)
"""Python errors in a Spark task that may be over at the next attempt."""
_SESSION = ("SESSION_OR_CONTEXT_NOT_EXISTS", "NO_ACTIVE_SESSION", "NO_ACTIVE_OR_DEFAULT_SESSION", "SESSION_NOT_SAME")
_OF_SETTING = at_start(r"\[(INVALID_CONF_VALUE|CODEC_NOT_AVAILABLE)\b")
"""Errors of a setting that Spark reads in a job, not at its start. The check that Spark is alive may need it, too."""
_NO_SOURCE = at_start(r"\[DATA_SOURCE_NOT_FOUND\]")
"""The condition of a misspelt or missing format, in a Java error that PySpark does not convert."""
_NEVER_OF_ITEMS = ("ModuleNotFoundError: ", f"ImportError: {UNFIT}", f"{TableError.__name__}: ")
"""Prefixes of errors, also of Spark tasks: executors write the files of a table, and may meet a full disk."""
_NO_JAR = at_start(
    rf"(?:{_UDF} User defined function \([^\n]*?\) failed due to: )?"  # Spark Connect sends no causes, but this text
    r"(?:(?:[\w$]+\.)+(ClassNotFoundException|NoClassDefFoundError|UnsupportedFileSystemException): "
    r"|(?:[\w$]+\.)+SQLException: No suitable driver\b"
    r"|Class ([\w$]+\.)+[\w$]+ (was )?not found\b)"
)
"""Java's messages for an unknown file system, codec or database driver, or one whose library is missing."""
_OUTAGE = tuple(
    kind.__name__ for kind in (ServerUnavailable, OutcomeUnknown, ServerFull, ServerRefused, UnsafeServer)
)

_BESIDE_OTHERS = ("SerializationFailure", "DeadlockDetected", "LockNotAvailable")
"""psycopg's class names for errors of PostgreSQL after which the transaction is to be repeated: it met another one."""
_KEPT = frozenset(
    (BatchLost.__name__, TableError.__name__, FolderError.__name__, *_OUTAGE, *_BESIDE_OTHERS, *_NEVER_OF_ROWS)
)
"""Names of Python errors that take the blame off the items."""
MYSQL_DRIVERS = frozenset({"pymysql", "MySQLdb", "mysql", "mariadb"})
"""Driver packages for MySQL and MariaDB, which have a dialect of their own."""
_MYSQL_MET_ANOTHER = (1205, 1213)
"""Error numbers of MySQL for a lock wait timeout and a deadlock."""


class Cause(StrEnum):
    """The side that caused an error."""

    ROWS = "rows"
    """A row whose error is the same at each attempt: the batch is split at once."""
    ITEMS = "items"
    """The items in the batch, as far as the cause can be determined: counted as a failure."""
    CODE = "code"
    """The function or the session, before any row was read: the items are not to blame."""
    OUTAGE = "outage"
    """The connection to the server, another transaction in a SQL database, or a user who cancelled Spark's jobs: says
    nothing about the items."""
    LOST = "lost"
    """The lease, which ended: another driver may hold the batch."""
    ENGINE = "engine"
    """Spark, which has ended: this process must end, too."""


def cause_of(error: BaseException, spark: SparkSession, title: str = "", group: str = "") -> Cause:
    """Returns the side that caused an error of a batch. Runs a small query to check whether the engine is alive;
    `title` and `group` name that query in Spark's web UI."""
    if is_of_value(error):
        return Cause.ROWS
    name = _name_of(error)
    if isinstance(error, BatchLost) or name == BatchLost.__name__:
        return Cause.LOST
    if isinstance(error, ServerError) or name in _OUTAGE or met_another_transaction(error, name):
        return Cause.OUTAGE
    if _cancelled_by_others(error):
        return Cause.OUTAGE
    if _is_of_setting(error):
        return Cause.CODE
    if _is_unreachable(error) or not is_alive(spark, title, group):
        return Cause.ENGINE
    if _is_of_all(error) or is_never_of_items(error):
        return Cause.CODE
    if is_of_python_task(error):
        return Cause.CODE if name in _NEVER_OF_ROWS else Cause.ITEMS if _PASSING.fullmatch(name) else Cause.ROWS
    is_of_rows = isinstance(error, _OF_VALUES) or (is_of_spark(error) and _OF_JAVA_FUNCTION.match(text_of(error)))
    return Cause.ROWS if is_of_rows else Cause.ITEMS


def comes_again(traceback: str) -> bool:
    """Whether a failed Spark task has a Python error that each retry by Spark would repeat: not the end of a process,
    and no error that may pass."""
    name = python_error(traceback, _KEPT).partition(":")[0]
    passes = name in (BatchLost.__name__, *_OUTAGE, *_BESIDE_OTHERS) or _PASSING.fullmatch(name)
    return name != "" and not passes


class SparkTaskError(Exception):
    """A failed Spark task. Its text has the Python traceback."""


def is_of_python_task(error: BaseException) -> bool:
    """Whether Python code in a Spark task raised the error."""
    return _python_line(error) != ""


def is_of_value(error: BaseException) -> bool:
    """Whether Spark raised the error for a value, by its class or condition: the rest of its text quotes the value."""
    with suppress(Exception):  # Java has ended
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        if condition is not None and isinstance(error, _OF_VALUES):
            return True
    return is_of_spark(error) and _OF_A_VALUE.match(text_of(error)) is not None


def _python_line(error: BaseException) -> str:
    """The error of Python code in a Spark task as `Name: message`; '' for another error."""
    if is_of_value(error) or not (isinstance(error, SparkTaskError) or is_of_spark(error)):
        return ""
    return python_error(text_of(error), _KEPT)


def _name_of(error: BaseException) -> str:
    """The class of the Python error: that in a Spark task, or the error itself."""
    line = _python_line(error)
    return line.partition(":")[0] if line else type(error).__name__


def is_of_spark(error: BaseException | None) -> bool:
    """Whether Spark raised the error: a cancelled job is an error of py4j, which PySpark does not convert."""
    return isinstance(error, PySparkException) or type(error).__module__.startswith("py4j")


def is_never_of_items(error: BaseException) -> bool:
    """Whether an error cannot be due to items: Spark found no session or data source, an executor lacks a module or a
    Python that starts, or a table or folder takes no rows."""
    if is_of_value(error):
        return False
    line = _python_line(error) if is_of_spark(error) else error_line(error)
    if isinstance(error, (TableError, FolderError)) or line.startswith(_NEVER_OF_ITEMS):
        return True
    if is_of_spark(error) and (_NO_SOURCE.match(text_of(error)) or _without_python(text_of(error))):
        return True
    return isinstance(error, PySparkException) and error.getCondition() in _SESSION


def is_alive(spark: SparkSession, title: str = "", group: str = "") -> bool:
    """Whether the session can still run a job: tries a job of one task, under these names in Spark's web UI."""
    try:
        with job_names(spark, title or "jobrunner: is Spark alive?", group):
            return len(spark.range(0, 1, 1, 1).collect()) == 1
    except Exception as error:  # a dead JVM causes errors of many libraries
        return _cancelled(error) is not None


def _cancelled(error: BaseException) -> str | None:
    """Spark's words about the end of cancelled jobs; None for another error."""
    found = map(_CANCELLED.match, texts_of_java(error)) if is_of_spark(error) and not is_of_value(error) else ()
    return next((one["how"] for one in found if one), None)


def _cancelled_by_others(error: BaseException) -> str:
    """How a user cancelled the jobs, if neither this package nor the function itself did; else ''."""
    how = _cancelled(error) or ""
    return next((words for said, words in _BY_OTHERS.items() if said in how), "")


def met_another_transaction(error: BaseException, name: str) -> bool:
    """Whether a SQL database ended the transaction of a sink only because of a concurrent transaction. `name`: the name
    of the error's class."""
    if type(error).__module__.partition(".")[0] in MYSQL_DRIVERS:
        return (getattr(error, "errno", None) or next(iter(error.args), None)) in _MYSQL_MET_ANOTHER
    return name in _BESIDE_OTHERS or getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")


def _is_of_all(error: BaseException) -> bool:
    """Whether other items would meet the error as well, by its class or text: it was raised before any row was read, a
    SQL database refuses the statement itself, or Java lacks a library."""
    if isinstance(error, _BEFORE_ANY_ROW) and not isinstance(error, NumberFormatException):
        return True
    if not _OF_STATEMENTS.isdisjoint(one.__name__ for one in type(error).__mro__):
        return True
    return is_of_spark(error) and not is_of_python_task(error) and any(map(_NO_JAR.match, texts_of_java(error)))


def _is_of_setting(error: BaseException) -> bool:
    """Whether Spark refuses the value of one of its own settings."""
    return is_of_spark(error) and any(map(_OF_SETTING.match, texts_of_java(error)))


def _is_unreachable(error: BaseException) -> bool:
    """Whether a Spark Connect server was unavailable for the ten minutes for which PySpark repeats a call: the check
    that Spark is alive would take as long again."""
    code = getattr(error, "getGrpcStatusCode", None)
    return code is not None and code().name == "UNAVAILABLE"


def engine_gone(spark: SparkSession, error: BaseException) -> StationError:
    """The error for a stopped session or an ended JVM; its cause is the error of the call that failed."""
    words = f"Spark has ended, or does not answer: {error_line(error)}"
    if is_over(spark):
        words = (
            "the Spark session of this process was stopped: register(spark) a new one, and start the worker again"
            if is_classic(spark)
            else "the session of Spark Connect has ended: it was stopped, or its server was restarted; start the "
            "worker again, in a program of your own with a new session (register(spark))"
        )
    gone = StationError(words)
    gone.__cause__ = error
    return gone


def error_line(error: BaseException) -> str:
    """The error as `Name: message`, at most 1 000 characters."""
    if line := _python_line(error) or ("" if is_of_value(error) else _line_of_java(error)):
        return _shortened(line)
    lines = told_lines(error)
    first = SQLSTATE.sub("", lines[0]) if lines else "no reason given"
    if isinstance(error, AnalysisException):
        first = _EXPRESSION_ID.sub("", first)
    if of_java := type(error).__module__.startswith("py4j") and _JAVA_CLASS.match(first):
        return _shortened(of_java[1] + first[of_java.end() :])
    return _shortened(f"{type(error).__name__}: {first}")


def _line_of_java(error: BaseException) -> str:
    """The line of an error whose first line has no reason; '' for another error."""
    text = text_of(error)
    if _NOT_WRITTEN.match(text) and (causes := _CAUSED_BY.findall(text)):
        kind, words = causes[-1]
        return f"{kind}: {_FILE.sub('', words)}"
    if _cancelled(error) is not None:
        return f"SparkError: its jobs were cancelled{_cancelled_by_others(error)}"
    if rpc := _RPC.search(text):
        return f"{type(error).__name__}: {rpc['why']}"
    if is_of_spark(error) and (no_python := _without_python(text)):
        return no_python
    lost = _LOST_TASK.search(text)
    return f"SparkError: {lost['why']}" if lost else ""


def _without_python(text: str) -> str:
    """The line for a Python that does not start on the executors, the same for each batch; '' for another error."""
    found = _NO_PYTHON.match(text)
    if found is None:
        return ""
    context = SparkContext._active_spark_context  # noqa: SLF001  PySpark has no other name for it
    named = found["program"] or getattr(context, "pythonExec", None)
    why = found["why"] or "it ended or printed something as it started, see the log of the executors"
    return (
        f"SparkError: executors cannot start Python{f' {named!r}' if named else ''}: {why}; name one that starts there "
        "by spark.pyspark.python, or PYSPARK_PYTHON"
    )


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
