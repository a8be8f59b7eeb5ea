"""The Spark session of this process, built in one place.

What must hold: one session in a process; it runs on one machine without any set-up, without a `java` on it too; and
nothing of it listens beyond the machine unless a cluster was asked for.
"""

import os
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jobrunner.errors import InvalidOption, SparkMissing
from jobrunner.spark.java import find_java, home_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET = Path(__file__).with_name("log4j2.properties")
_TRIES_OF_A_TASK = 4
"""`local[N]` alone never runs a failed task again."""
_ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
}
_AT_START = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_ON_THIS_MACHINE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def spark_session(
    app: str = "jobrunner", master: str | None = None, remote: str | None = None, **conf: str | int | bool
) -> "SparkSession":
    """Returns the session of this process, started when there is none, with the format `jobrunner` registered.

    `master` is a cluster (`spark://host:7077`), `remote` a Spark Connect server (`sc://host`); else the environment's
    JOBRUNNER_SPARK_MASTER or JOBRUNNER_SPARK_REMOTE; else this machine with all its cores. `conf` are Spark's own
    settings: `spark_session(**{"spark.driver.memory": "4g"})`. Raises SparkMissing, JavaMissing; InvalidOption for a
    session elsewhere than the running one.
    """
    master, remote = _where(master, remote)
    settings = {name: _as_text(value) for name, value in conf.items()}
    running = _running(master, remote)
    if running is None:
        running = _connect(app, remote, settings) if remote else _start(app, master or _this_machine(), settings)
    else:
        _set(running, settings)
    register(running)
    return running


def register(spark: "SparkSession") -> None:
    """Makes the format `jobrunner` known to a session. Twice is as good as once."""
    from jobrunner.spark.source import JobrunnerSource  # needs Spark

    spark.dataSource.register(JobrunnerSource)


def _where(master: str | None, remote: str | None) -> tuple[str | None, str | None]:
    if master and remote:
        raise InvalidOption(f"both master={master!r} and remote={remote!r} are given; give one of them")
    if master or remote:
        return master, remote
    remote = os.environ.get("JOBRUNNER_SPARK_REMOTE") or None
    return (None if remote else os.environ.get("JOBRUNNER_SPARK_MASTER") or None), remote


def _this_machine() -> str:
    return f"local[{_cores()},{_TRIES_OF_A_TASK}]"


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _running(master: str | None, remote: str | None) -> "SparkSession | None":
    try:
        from pyspark.sql import SparkSession  # the extra may be absent
    except ImportError as error:
        raise SparkMissing('PySpark is not installed; pip install "jobrunner[spark]"') from error
    running = SparkSession.getActiveSession()
    if running is None or remote:
        return running
    at = running.conf.get("spark.master", None)
    if master and at and master != at:
        raise InvalidOption(f"master={master!r}: this process has a session at {at!r}; stop that one first")
    return running


def _start(app: str, master: str, settings: Mapping[str, str]) -> "SparkSession":
    from pyspark.sql import SparkSession  # the extra may be absent

    local = master.startswith("local")
    chosen = _ALWAYS | _AT_START
    if local:
        chosen |= _ON_THIS_MACHINE | {"spark.sql.shuffle.partitions": str(2 * _cores())}
    chosen |= settings
    chosen[_JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={_QUIET.as_uri()} {settings.get(_JAVA_OPTIONS, '')}".strip()
    with home_of(find_java(os.environ)) as home, _environment(home, local=local):
        return SparkSession.builder.appName(app).master(master).config(map=dict(chosen)).getOrCreate()


def _connect(app: str, remote: str, settings: Mapping[str, str]) -> "SparkSession":
    from pyspark.sql import SparkSession  # the extra may be absent

    try:
        session: SparkSession = SparkSession.builder.appName(app).remote(remote).getOrCreate()
    except ImportError as error:
        raise SparkMissing(f'Spark Connect needs more: pip install "pyspark[connect]" ({error})') from error
    _set(session, _ALWAYS | dict(settings))
    return session


def _set(session: "SparkSession", settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        session.conf.set(name, value)


@contextmanager
def _environment(java_home: Path, *, local: bool) -> Iterator[None]:
    """What Java and the Python processes it starts inherit; this process keeps of it the name of the interpreter."""
    stood = {name: os.environ.get(name) for name in ("JAVA_HOME", "PYTHONPATH")}
    os.environ["JAVA_HOME"] = str(java_home)
    if local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
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
    """Where this process finds modules beyond what every Python of this installation knows: a user's jobs, say."""
    known = {*site.getsitepackages(), sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    paths = (str(Path(entry).absolute()) for entry in sys.path)
    return list(dict.fromkeys(path for path in paths if path not in known and Path(path).exists()))


def _as_text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
