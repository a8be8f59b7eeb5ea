"""Errors on Spark: one line that a person can use, and the cause.

Spark wraps what happened in a Python worker into a page of two languages. What counts is the last line of the
innermost Python traceback, or the first sentence of the engine's own error.

Invariant: an outage, a lost lease or a dead engine never counts against the items of a batch.
"""

import re
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
from jobrunner.spark.executor_load import UNFIT
from jobrunner.spark.running import is_classic, is_over, text_of, told_lines
from jobrunner.spark.ui_names import job_names

_LONGEST = 1000
_TRACEBACK = "Traceback (most recent call last):"
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w{5}.*$")
_OURS = re.compile(r"(?:worker:\n|: )jobrunner\.errors\.(\w+: .*)")
"""An error of the data source, which comes without a traceback."""
_EXPRESSION_ID = re.compile(r"(?<=\w)#\d+L?\b")
"""Spark numbers the columns of each plan anew, and one error of the code must not look like another for each batch."""
_JAVA_CLASS = re.compile(r"(?:[\w$]+\.)+([\w$]+: )")
_OF_A_VALUE = re.compile(
    r"SparkException: \[(FAILED_EXECUTE_UDF|MALFORMED_RECORD_IN_PARSING|NOT_NULL_ASSERT_VIOLATION)\b"
)
"""Errors of an expression for a value (`from_json`, `parse_json`, a function in Java) without a class of their own."""
_CANCELLED = "[SPARK_JOB_CANCELLED]"
_BY_OTHERS = {
    "cancellation of all jobs": ", as all jobs of this Spark were: by cancelAllJobs(), a Ctrl-C or a stopped cell",
    "killed via the Web UI": " in Spark's web UI",
}
"""By Spark's words for it, how somebody cancelled jobs that may be those of others: that says nothing about items."""
_NOT_WRITTEN = "[TASK_WRITE_FAILED]"
"""Says of a task that wrote a file its folder and nothing else; the reason is that of Java's last cause."""
_CAUSED_BY = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+): (.+)$", re.MULTILINE)
_FILE = re.compile(r"(?:\w+:)?/\S*/attempt_\w+/|/?part-\d+-[0-9a-f]{8}-\S*")
"""The parts of the name of a file that are of this attempt: one error must not look like another for each batch."""
_RPC = re.compile(r'of RPC that terminated with:\s.*?^\s*details = "(?P<why>.*?)"$', re.DOTALL | re.MULTILINE)
"""An error of gRPC, whose first line names no reason."""
_LOST_TASK = re.compile(r"Lost task \S+ in stage \S+ \([^()]*\) \([^()]*\): (?:[\w.$]+: )?(?P<why>.*)")
_NO_PYTHON = re.compile(
    r'Cannot run program "(?P<program>[^"\n]+)"[^:\n]*: (?P<why>[^\n]+)'
    r"|EOFException occurred while reading the port number from \S+ stdout"
    r"|Bad data in \S+ standard output\. Invalid port number"
)
"""Java's words for a Python that it cannot run, one that ends before it is ready for items, and one that prints."""
_BEFORE_ANY_ROW = (
    AnalysisException, IllegalArgumentException, ImportError, InvalidOption, NameError, PySparkAttributeError,
    PySparkImportError, PySparkNotImplementedError, PySparkTypeError, StationError,
)  # fmt: skip
"""Raised while a plan is made: a column that is misspelt, an option that is wrong, a name that is not defined, a frame
without the columns that steer. Errors of rows come out of tasks and have other classes."""
_OF_STATEMENTS = frozenset({"ProgrammingError", "NotSupportedError"})
"""Classes of the DB-API, from which drivers derive their own, for a statement that is wrong: a table that is missing,
its grammar, a type."""
_OF_VALUES = (
    ArithmeticException, ArrayIndexOutOfBoundsException, DateTimeException, NumberFormatException, PipelineError,
    SparkRuntimeException,
)  # fmt: skip
"""Errors of an expression for a value, and those of this package that name an item."""
_NEVER_OF_ROWS = frozenset({"ImportError", "ModuleNotFoundError", "NameError", "PicklingError", "UnboundLocalError"})
"""Errors of Python in a task that every row has: a module that executors lack, a name that is not defined."""
_PASSING = re.compile(
    r"\w*(Connection\w*|Timeout|Operational|Interface|HTTP|URL|EOF|Memory|BrokenPipe)(Error|Exception)?|(OS|IO)Error"
)
"""Errors of Python in a task that may be over at the next try."""
_SESSION = ("SESSION_OR_CONTEXT_NOT_EXISTS", "NO_ACTIVE_SESSION", "NO_ACTIVE_OR_DEFAULT_SESSION", "SESSION_NOT_SAME")
_OF_SETTING = re.compile(r"\[(INVALID_CONF_VALUE|CODEC_NOT_AVAILABLE)\b")
"""Of a setting that Spark reads in a job, not at its start. The check that Spark is alive may need it, too."""
_NO_SOURCE = "[DATA_SOURCE_NOT_FOUND]"
"""Of a format that is misspelt or not installed, in an error of Java that PySpark does not convert."""
_NEVER_OF_ITEMS = ("ModuleNotFoundError: ", f"ImportError: {UNFIT}", f"{TableError.__name__}: ")
"""Begins of errors, also of a Spark task: executors write the files of a table, and meet a disk that is full."""
_NO_JAR = re.compile(
    r"\b(ClassNotFoundException|NoClassDefFoundError|UnsupportedFileSystemException): "
    r"|SQLException: No suitable driver\b"
    r"|\bClass ([\w$]+\.)+[\w$]+ (was )?not found\b"
)
"""Java's words for a file system, a codec or a driver of a database that it has no library for, or does not know."""
_OUTAGE = tuple(
    kind.__name__ for kind in (ServerUnavailable, OutcomeUnknown, ServerFull, ServerRefused, UnsafeServer)
)

_BESIDE_OTHERS = ("SerializationFailure", "DeadlockDetected")
"""What psycopg calls the errors of PostgreSQL that say: repeat the transaction, it met another one."""
MYSQL_DRIVERS = frozenset({"pymysql", "MySQLdb", "mysql", "mariadb"})
"""Packages for MySQL and MariaDB, whose dialect is their own."""
_MYSQL_MET_ANOTHER = (1205, 1213)
"""A wait for a lock that was too long, and a deadlock."""


class Cause(StrEnum):
    """Which side caused an error."""

    ROWS = "rows"
    """A row, whose error comes again whenever it is tried: the batch is split at once."""
    ITEMS = "items"
    """The items in the batch, as far as it can be determined: counted as a failure."""
    CODE = "code"
    """The function or the session, before any row was read: the items are not to blame."""
    OUTAGE = "outage"
    """The connection to the server, another transaction in a SQL database, or somebody who cancelled Spark's jobs: says
    nothing about the items."""
    LOST = "lost"
    """The lease ended: another driver may hold the batch."""
    ENGINE = "engine"
    """Spark itself is gone: this process must end, too."""


def cause_of(error: BaseException, spark: SparkSession, title: str = "", group: str = "") -> Cause:
    """Which side caused an error of a batch. Runs a small query to see whether the engine is alive; `title` and `group`
    are its names in Spark's web UI."""
    line = error_line(error)
    name = line.partition(":")[0]
    if isinstance(error, BatchLost) or name == BatchLost.__name__:
        return Cause.LOST
    if isinstance(error, ServerError) or name in _OUTAGE or met_another_transaction(error, name):
        return Cause.OUTAGE
    if _cancelled_by_others(text_of(error)):
        return Cause.OUTAGE
    if _is_of_setting(error):
        return Cause.CODE
    if _is_unreachable(error) or not is_alive(spark, title, group):
        return Cause.ENGINE
    if _is_of_all(error) or is_never_of_items(error):
        return Cause.CODE
    if is_of_python_task(error):
        return Cause.CODE if name in _NEVER_OF_ROWS else Cause.ITEMS if _PASSING.fullmatch(name) else Cause.ROWS
    is_of_value = isinstance(error, _OF_VALUES) or _OF_A_VALUE.match(line)
    return Cause.ROWS if is_of_value else Cause.ITEMS


def comes_again(traceback: str) -> bool:
    """Whether the error of a failed task is one of Python that is the same however often Spark runs the task: not the
    end of a process, and no error that passes."""
    name = error_line(SparkTaskError(traceback)).partition(":")[0]
    passes = name in (BatchLost.__name__, *_OUTAGE, *_BESIDE_OTHERS) or _PASSING.fullmatch(name)
    return _is_of_python(traceback) and not passes


class SparkTaskError(Exception):
    """A task of Spark failed with this text, which has the traceback of its Python."""


def is_of_python_task(error: BaseException) -> bool:
    """Whether it was raised by Python code in a task of Spark."""
    return (isinstance(error, SparkTaskError) or is_of_spark(error)) and _is_of_python(text_of(error))


def _is_of_python(text: str) -> bool:
    """Whether it has a traceback, or an error of this package, whose traceback may be hidden."""
    return _TRACEBACK in text or _OURS.search(text) is not None


def is_of_spark(error: BaseException | None) -> bool:
    """Whether Spark raised it: a cancelled job is an error of py4j, which PySpark does not convert."""
    return isinstance(error, PySparkException) or type(error).__module__.startswith("py4j")


def is_never_of_items(error: BaseException) -> bool:
    """Whether Spark found no session or no data source, an executor lacks a module or a Python that starts, or a table
    or folder takes no rows."""
    if isinstance(error, (TableError, FolderError)) or error_line(error).startswith(_NEVER_OF_ITEMS):
        return True
    if is_of_spark(error) and (_NO_SOURCE in text_of(error) or _without_python(text_of(error))):
        return True
    return isinstance(error, PySparkException) and error.getCondition() in _SESSION


def is_alive(spark: SparkSession, title: str = "", group: str = "") -> bool:
    """Whether the session can still run something: one job of one task, under these names."""
    try:
        with job_names(spark, title or "jobrunner: is Spark alive?", group):
            return len(spark.range(0, 1, 1, 1).collect()) == 1
    except Exception as error:  # a dead JVM shows itself by errors of many libraries
        return _CANCELLED in text_of(error)


def _cancelled_by_others(text: str) -> str:
    """How somebody cancelled the jobs, if that was neither this package nor the function itself."""
    found = (words for said, words in _BY_OTHERS.items() if said in text) if _CANCELLED in text else ()
    return next(iter(found), "")


def met_another_transaction(error: BaseException, name: str) -> bool:
    """Whether a SQL database ended the transaction of a sink only because another one ran beside it. `name`: that of
    the error's class."""
    if type(error).__module__.partition(".")[0] in MYSQL_DRIVERS:
        return (getattr(error, "errno", None) or next(iter(error.args), None)) in _MYSQL_MET_ANOTHER
    return name in _BESIDE_OTHERS or getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")


def _is_of_all(error: BaseException) -> bool:
    """Whether other items would meet it as well, as far as its class or its words tell: it was raised before any row
    was read, a SQL database refuses a statement for what it says, or Java lacks a library."""
    if isinstance(error, _BEFORE_ANY_ROW) and not isinstance(error, NumberFormatException):
        return True
    if not _OF_STATEMENTS.isdisjoint(one.__name__ for one in type(error).__mro__):
        return True
    return is_of_spark(error) and not is_of_python_task(error) and _NO_JAR.search(text_of(error)) is not None


def _is_of_setting(error: BaseException) -> bool:
    """Whether Spark refuses the value of a setting of its own."""
    text = text_of(error) if is_of_spark(error) else ""
    return _OF_SETTING.search(text) is not None and not _is_of_python(text)


def _is_unreachable(error: BaseException) -> bool:
    """Whether it is of a Spark Connect server that was away for all of the ten minutes for which PySpark repeats a
    call: to ask whether it lives would take as long again."""
    code = getattr(error, "getGrpcStatusCode", None)
    return code is not None and code().name == "UNAVAILABLE"


def engine_gone(spark: SparkSession, error: BaseException) -> StationError:
    """The error for a stopped session, or a Java that has ended; its cause is the error of the call that noticed."""
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
    """`Name: what happened`, at most 1 000 characters."""
    text = text_of(error)
    if plain := _OURS.search(text):
        return _shortened(_SQLSTATE.sub("", plain[1]).rstrip())
    if _TRACEBACK in text:
        return _shortened(_last_of_traceback(text[text.rindex(_TRACEBACK) :]))
    if _NOT_WRITTEN in text and (causes := _CAUSED_BY.findall(text)):
        kind, words = causes[-1]
        return _shortened(f"{kind}: {_FILE.sub('', words)}")
    if _CANCELLED in text:
        return f"SparkError: its jobs were cancelled{_cancelled_by_others(text)}"
    if rpc := _RPC.search(text):
        return _shortened(f"{type(error).__name__}: {rpc['why']}")
    if is_of_spark(error) and (no_python := _without_python(text)):
        return _shortened(no_python)
    lost = _LOST_TASK.search(text)
    if lost:
        return _shortened(f"SparkError: {lost['why']}")
    lines = told_lines(error)
    first = _SQLSTATE.sub("", lines[0]) if lines else "no reason given"
    if isinstance(error, AnalysisException):
        first = _EXPRESSION_ID.sub("", first)
    if of_java := type(error).__module__.startswith("py4j") and _JAVA_CLASS.match(first):
        return _shortened(of_java[1] + first[of_java.end() :])
    return _shortened(f"{type(error).__name__}: {first}")


def _without_python(text: str) -> str:
    """The line about a Python of the executors that does not start, the same for each batch; '' for another error."""
    found = None if _TRACEBACK in text else _NO_PYTHON.search(text)
    if found is None:
        return ""
    context = SparkContext._active_spark_context  # noqa: SLF001  PySpark has no other name for it
    named = found["program"] or getattr(context, "pythonExec", None)
    why = found["why"] or "it ended or printed something as it started, see the log of the executors"
    return (
        f"SparkError: executors cannot start Python{f' {named!r}' if named else ''}: {why}; name one that starts there "
        "by spark.pyspark.python, or PYSPARK_PYTHON"
    )


def _last_of_traceback(text: str) -> str:
    """`module.Name: words` without the module, with the lines that belong to the words."""
    lines = text.splitlines()[1:]
    ends = next((place for place, line in enumerate(lines) if line and not line[0].isspace()), None)
    if ends is None:
        return "PythonError: no reason given"
    name, colon, words = _SQLSTATE.sub("", lines[ends]).partition(":")
    return f"{name.rpartition('.')[2]}{colon}{words}"


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
