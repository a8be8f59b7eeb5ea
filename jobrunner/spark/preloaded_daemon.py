"""The parent process of Spark's Python workers on this machine, with the modules of stations imported before it forks.

    python -m jobrunner.spark.preloaded_daemon pyspark.worker

PySpark's own daemon imports nothing, so each worker that it forks imports pandas, PyArrow and this package anew: more
than a second of a core. A failed row ends the workers of its Spark job, so a search for bad items starts many. Spark
starts this module in place of its own when `spark.python.daemon.module` names it. PySpark imports late because
libraries with threads must not be forked in the middle of their work; here nothing runs before the fork, and PyArrow,
OpenBLAS and jemalloc prepare themselves for one.

A worker whose job was cancelled finds its pipes closed. That is no failure, so its traceback is not printed.
"""

import gc
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace

from pyspark import daemon

_OF_STATIONS = "pyspark.worker"
_PRELOADED = (
    _OF_STATIONS,
    "pandas",
    "pyarrow.compute",
    "jobrunner.spark.source.batch_reader",
    "jobrunner.spark.source.history_stream",
    "jobrunner.spark.station.staging",
)


def preload() -> None:
    """Imports the modules that can be imported: a worker that needs a missing one reports it."""
    for module in _PRELOADED:
        with suppress(Exception):
            import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a worker would write to the pages that it shares with its parent


def print_exception() -> None:
    """Prints the exception that is being handled, unless it comes from a pipe that Spark closed."""
    if not isinstance(sys.exception(), (EOFError, ConnectionError)):
        traceback.print_exc()


if __name__ == "__main__":
    if _OF_STATIONS in sys.argv[1:]:
        preload()
    printed = SimpleNamespace(print_exc=print_exception, format_exc=traceback.format_exc)
    setattr(daemon, "traceback", printed)  # noqa: B010  a type checker knows no such attribute
    daemon.manager()
