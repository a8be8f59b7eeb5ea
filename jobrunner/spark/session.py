"""Builds the Spark session of this process.

Invariants: a process has one session; it runs on one machine without any set-up, also without a `java` on it (see
`java`); and none of its ports listens beyond the machine unless a cluster was asked for.
"""

import os
import site
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobrunner.errors import InvalidOption, SparkMissing
from jobrunner.etl.spark_conf import NEEDED_CONF, check_setting, conf_of_environment, conf_of_file, prepare_for, where
from jobrunner.formatting import install_command
from jobrunner.spark.connect_watch import note_own
from jobrunner.spark.java import find_java, home_of
from jobrunner.spark.running import (
    check_runs,
    conf_of,
    first_line,
    is_classic,
    running_session,
    set_all,
    silence_query_contexts,
    told_lines,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET = Path(__file__).with_name("log4j2.properties")
_TRIES_OF_A_TASK = 4
"""`local[N]` alone never runs a failed task again."""
_ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    **NEEDED_CONF,
}
_AT_START = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_ON_THIS_MACHINE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_PYTHON, _INTERPRETER = "spark.pyspark.python", "PYSPARK_PYTHON"
_JAVA_ENDED = "[JAVA_GATEWAY_EXITED]"
_CAUSE = "Caused by: "
_JAVA_ENDS_WITHIN_S = 10
_STARTING = threading.Lock()
"""Serializes starts: otherwise the second of two threads would take the temporary environment of the first one's Java
for that of the process, and restore it at the end: a JAVA_HOME that is removed, and a PYTHONPATH for every later
process."""


def spark_session(
    app: str = "jobrunner", master: str | None = None, remote: str | None = None, **conf: str | int | bool
) -> "SparkSession":
    """Returns the session of this process, started when there is none, with the format `jobrunner` registered.

    `master` is a cluster (`spark://host:7077`), `remote` a Spark Connect server (`sc://host`); else the environment's
    JOBRUNNER_SPARK_MASTER or JOBRUNNER_SPARK_REMOTE; else the value in `[tool.jobrunner.spark]`; else this machine with
    all its cores. `conf` has Spark's own settings: `spark_session(**{"spark.driver.memory": "4g"})`; settings of
    JOBRUNNER_SPARK_CONF and of `[tool.jobrunner.spark]` are added when the session starts. Raises SparkMissing,
    JavaMissing; InvalidOption when the running session is on another master or server, or for a setting that is not
    Spark's; StationError when the Java of the running session has ended.
    """
    asked = remote
    master, remote = _where(master, remote)
    settings = dict(check_setting(name, value, "given to spark_session") for name, value in conf.items())
    with _STARTING:
        try:
            running = _running(master, asked)
            # In Connect mode PySpark parses no schema for a classic session, such as one that was registered.
            prepare_for(None if running is not None and is_classic(running) else remote)
            from jobrunner.spark.data_source import register  # needs Spark
        except ImportError as error:
            raise (spark_missing(error) or error) from error
        if running is None:
            settings = conf_of_file() | conf_of_environment() | settings
            running = _connect(app, remote, settings) if remote else _start(app, master or _this_machine(), settings)
            silence_query_contexts()
        else:
            check_runs(running)
            set_all(running, settings)
        register(running)
    return running


def spark_missing(error: ImportError) -> SparkMissing | None:
    """The error for a PySpark that is absent or too old; None when the failed import has another cause."""
    if not (error.name or "").startswith("pyspark"):
        return None
    if error.name in ("pyspark", "pyspark.sql"):
        return SparkMissing(f"PySpark is not installed; {install_command('spark')}")
    return SparkMissing(
        f"PySpark {version('pyspark')} is older than 4.2, or damaged: {error}; {install_command('spark')}"
    )


def _where(master: str | None, remote: str | None) -> tuple[str | None, str | None]:
    if master and remote:
        raise InvalidOption(f"master={master!r} and remote={remote!r} exclude each other; give one of them")
    if master or remote:
        return master, remote
    return where()


def _this_machine() -> str:
    return f"local[{_cores()},{_TRIES_OF_A_TASK}]"


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _running(master: str | None, remote: str | None) -> "SparkSession | None":
    running = running_session()
    if running is None or not (master or remote):
        return running
    if remote and not is_classic(running):
        at, asked_for = _endpoint_of(running), _endpoint(remote)
        differs = None not in (at, asked_for) and at != asked_for
        at = f"sc://{at}"
    else:
        at = conf_of(running, "spark.master")
        differs = bool(remote or (master and at and master != at))
    if differs:
        asked = f"remote={remote!r}" if remote else f"master={master!r}"
        raise InvalidOption(f"{asked}: this process has a session at {at!r}; stop that one first")
    return running


def _endpoint_of(running: Any) -> str | None:
    """Host and port of the server of a Connect session; None when its channel does not say."""
    endpoint: str | None = getattr(getattr(running.client, "_builder", None), "endpoint", None)
    return endpoint


def _endpoint(remote: str) -> str | None:
    """Host and port of `sc://host`; None for a server that PySpark starts itself (`local[2]`)."""
    from pyspark.sql.connect.client import DefaultChannelBuilder  # there is a Connect session

    return DefaultChannelBuilder(remote).endpoint if remote.startswith("sc://") else None


def _start(app: str, master: str, settings: Mapping[str, str]) -> "SparkSession":
    from pyspark import SparkContext  # the extra may be absent
    from pyspark.sql import SparkSession

    java_before = SparkContext._gateway  # noqa: SLF001
    local = master.startswith("local")
    chosen = _ALWAYS | _AT_START
    if local:
        chosen |= _ON_THIS_MACHINE | {"spark.sql.shuffle.partitions": str(2 * _cores())} | _daemon(settings)
    chosen |= settings
    if _QUIET.is_file():  # no file when the package was imported from an archive
        quiet = f"-Dlog4j2.configurationFile={_QUIET.as_uri()}"
        chosen[_JAVA_OPTIONS] = f"{quiet} {settings.get(_JAVA_OPTIONS, '')}".strip()
    with home_of(find_java(os.environ)) as home, _environment(home, local=local, python=settings.get(_PYTHON)):
        session: SparkSession | None = None
        try:
            session = SparkSession.builder.appName(app).master(master).config(map=dict(chosen)).getOrCreate()
            _ = session.conf  # at its first use Spark checks the values of its SQL settings
        except Exception as error:
            if not settings and master == _this_machine():
                raise
            refused = _refused(error, master, settings)
            if session is not None:
                session.stop()
            _end_java(java_before)
            raise refused from None  # the first error's message was lost with its Java
    _quiet_accumulators(session)
    return session


def _daemon(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings for the program that forks the Python workers of this machine; none, so Spark's own, for another
    interpreter, which may lack this package."""
    is_ours = settings.get(_PYTHON, os.environ.get(_INTERPRETER, sys.executable)) == sys.executable
    return {"spark.python.daemon.module": "jobrunner.spark.preloaded_daemon"} if is_ours else {}


def _refused(error: Exception, master: str, settings: Mapping[str, str]) -> InvalidOption:
    """The error for a session that does not start. A Java that ends at once reports the reason on stderr only."""
    from py4j.protocol import Py4JNetworkError  # the extra may be absent

    line = first_line(error)
    if isinstance(error, (OSError, Py4JNetworkError)) or _JAVA_ENDED in line:
        line = f"its Java ended; it was killed, or printed the reason above ({line})"
    elif causes := [told.removeprefix(_CAUSE) for told in told_lines(error) if told.startswith(_CAUSE)]:
        line = f"{line} ({causes[-1][:300]})"
    named = {name: value for name, value in settings.items() if name in line} or settings
    listed = ", ".join(f"{name}={value!r}" for name, value in named.items())
    return InvalidOption(f"Spark does not start at {master!r}{listed and f' with {listed}'}: {line}")


def _end_java(before: Any) -> None:
    """Ends the Java of a session that failed to start, so that the next session does not get the refused settings. A
    Java that ran `before`, or that started this process, is left alone."""
    from pyspark import SparkContext  # the extra may be absent

    gateway = SparkContext._gateway  # noqa: SLF001  PySpark has no public way
    if gateway is before or gateway is None or gateway.proc is None:
        return
    with suppress(Exception):  # it may have ended
        gateway.shutdown()
        gateway.proc.terminate()
        gateway.proc.wait(_JAVA_ENDS_WITHIN_S)
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


def _quiet_accumulators(session: Any) -> None:
    """Silences PySpark's accumulator server, which prints a traceback when the JVM ends first, as when both get a
    SIGTERM."""
    with suppress(AttributeError):  # another version of PySpark
        session.sparkContext._accumulatorServer.handle_error = lambda *_: None  # noqa: SLF001


def _connect(app: str, remote: str, settings: Mapping[str, str]) -> "SparkSession":
    from pyspark.sql import SparkSession  # the extra may be absent

    try:
        session: SparkSession = SparkSession.builder.appName(app).remote(remote).getOrCreate()
    except ImportError as error:
        raise SparkMissing(f'Spark Connect needs more: pip install "pyspark[connect]" ({error})') from error
    note_own(session)
    set_all(session, _ALWAYS | dict(settings))
    return session


@contextmanager
def _environment(java_home: Path, *, local: bool, python: str | None = None) -> Iterator[None]:
    """Sets the environment that Java and its Python processes inherit; afterwards this process keeps only the name of
    the interpreter.

    `python`: the setting of Spark, which only `spark-submit` passes on to PySpark.
    """
    names = ("JAVA_HOME", "PYTHONPATH", "SPARK_LOCAL_IP", *((_INTERPRETER,) if python else ()))
    stood = {name: os.environ.get(name) for name in names}
    os.environ["JAVA_HOME"] = str(java_home)
    if python:
        os.environ[_INTERPRETER] = python
    if local:
        os.environ.setdefault(_INTERPRETER, sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # the web UI, when it is on, listens there
        os.environ["PYTHONPATH"] = os.pathsep.join(_own_paths())
    try:
        yield
    finally:
        for name, value in stood.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _own_paths() -> list[str]:
    """Folders on the module path of this process only, not of every Python of this installation: a user's jobs, say."""
    known = {*site.getsitepackages(), sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    paths = (str(Path(entry).absolute()) for entry in sys.path)
    return list(dict.fromkeys(path for path in paths if path not in known and Path(path).exists()))
