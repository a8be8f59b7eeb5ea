"""Sends this package to executors on other machines, and reports modules that they lack.

Executors run their own Python. The package is shipped as an archive, but its dependencies (redis, msgspec, structlog,
pandas, pyarrow) have compiled parts and must be installed on the executors. Functions and readers that Spark pickles by
reference would fail there with a `ModuleNotFoundError` within a page of Spark's own lines. So they are pickled within
`load`, which is sent with its code, needs no module of this package, and reports a missing module in one line.
"""

import atexit
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from jobrunner.logs import SafeLogger
from jobrunner.spark import executor_load
from jobrunner.spark.brief_errors import unchained
from jobrunner.spark.executor_load import load
from jobrunner.spark.running import conf_of, first_line, is_classic

cloudpickle.register_pickle_by_value(executor_load)  # type: ignore[no-untyped-call]
_PACKAGE = Path(__file__).parents[1]
_shipped: set[str] = set()
"""Sessions that have the package. Not kept as a setting of the session, as Connect servers may refuse unknown
settings."""
_log = SafeLogger("jobrunner.spark")


def ship_package(spark: SparkSession) -> None:
    """Sends this package to executors on other machines, once per session. Does nothing when the executors are on this
    one.

    Logs a warning when Spark takes no files: then the package must be installed on the executors.
    """
    if (conf_of(spark, "spark.master") or "").startswith("local"):
        return
    classic = is_classic(spark)
    session = str(spark.sparkContext.applicationId if classic else getattr(spark, "session_id", id(spark)))
    if session in _shipped:
        return
    _shipped.add(session)
    try:
        packed = str(_packed())
        if classic:
            spark.sparkContext.addPyFile(packed)
        else:
            spark.addArtifacts(packed, pyfile=True)
    except Exception as error:  # py4j, gRPC and PySpark have classes of their own for a refusal
        _log.warning("Spark takes no package for its executors; install jobrunner there", error=first_line(error))


def _packed() -> Path:
    """The package as an archive: the one that it was imported from (`spark.submit.pyFiles`), or a new one."""
    archive = getattr(getattr(sys.modules["jobrunner"], "__loader__", None), "archive", None)
    if archive is not None:
        return Path(archive)
    folder = Path(mkdtemp(prefix="jobrunner-"))
    atexit.register(_remove, folder, os.getpid())  # until then executors that start late fetch it
    target = folder / "jobrunner.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(_PACKAGE.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                packed.write(path, path.relative_to(_PACKAGE.parent))
    return target


def _remove(folder: Path, owner: int) -> None:
    """Removes the folder, unless a fork of the owner process ends."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _pickled(sent: object) -> bytes:
    return bytes(cloudpickle.dumps(sent))  # type: ignore[no-untyped-call]


def sent(reader: object) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
    """The result of `__reduce__` for a reader or writer: the object itself, pickled within `load`."""
    return load, (_pickled(_Contents(type(reader), reader.__dict__)),)


class _Contents:
    """Pickles the state of a reader or writer of type `kind`; pickling the instance itself here would recurse without
    end."""

    def __init__(self, kind: type, state: Mapping[str, Any]) -> None:
        self._kind, self._state = kind, state

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[type, dict[str, Any]]]:
        return _instance, (self._kind, dict(self._state))


def _instance(kind: type, state: Mapping[str, Any]) -> Any:
    made: Any = object.__new__(kind)
    made.__dict__.update(state)
    return made


class Shipped:
    """A generator for executors: unpickled there as the generator itself, `unchained`, or as an error that names the
    missing module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        """Calls the function in this process."""
        return self._function(*arguments)

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return load, (_pickled(partial(unchained, self._function)),)
