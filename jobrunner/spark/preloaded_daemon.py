"""The parent process of Spark's Python workers on this machine, with the modules of stations imported before it forks.

    python -m jobrunner.spark.preloaded_daemon pyspark.worker

PySpark's own daemon imports nothing, so each worker that it forks imports pandas, PyArrow and this package anew: more
than a second of a core. A failed row ends the workers of its Spark job, so a search for bad items starts many. Spark
starts this module in place of its own when `spark.python.daemon.module` names it. PySpark imports late because
libraries with threads must not be forked in the middle of their work; here nothing runs before the fork, and PyArrow,
OpenBLAS and jemalloc prepare themselves for one.

Workers also acknowledge at once what Java sends them, and send at once what they have. Both ends of the connection have
Nagle's algorithm on: a small write waits until the one before it is acknowledged, which Linux delays by 40 ms. A task
had two or three such pauses, where all else of a small one takes 5 ms.

A worker whose job was cancelled finds its pipes closed. That is no failure, so its traceback is not printed.
"""

import gc
import io
import os
import socket
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from pyspark import daemon

_OF_STATIONS = "pyspark.worker"
_READ_AT_ONCE = 1 << 17
"""More than the buffer of the stream below, which is copied otherwise."""
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


class _AcknowledgedInput(io.RawIOBase):
    """A worker's input, acknowledged with each read. The option ends with the next packets, so it is set each time."""

    def __init__(self, source: Any, connection: socket.socket) -> None:
        self._source, self._connection = source, connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size: int = self._source.readinto1(buffer)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return size

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()
        super().close()


def without_pauses(source: Any) -> Any:
    """The input of a worker, read from `source` without the pauses of TCP; `source` itself where it has none to avoid:
    a Unix socket, or a system other than Linux."""
    connection = socket.socket(fileno=os.dup(source.fileno()))
    if connection.family == socket.AF_UNIX or not hasattr(socket, "TCP_QUICKACK"):
        connection.close()
        return source
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return io.BufferedReader(_AcknowledgedInput(source, connection), _READ_AT_ONCE)


def avoid_pauses(module: Any) -> None:
    """Makes the workers of a module of PySpark read `without_pauses`."""
    run = module.main

    def main(infile: Any, outfile: Any) -> None:
        run(without_pauses(infile), outfile)

    module.main = main


def print_exception() -> None:
    """Prints the exception that is being handled, unless it comes from a pipe that Spark closed."""
    if not isinstance(sys.exception(), (EOFError, ConnectionError)):
        traceback.print_exc()


if __name__ == "__main__":
    if _OF_STATIONS in sys.argv[1:]:
        preload()
        if _OF_STATIONS in sys.modules:
            avoid_pauses(sys.modules[_OF_STATIONS])
    printed = SimpleNamespace(print_exc=print_exception, format_exc=traceback.format_exc)
    setattr(daemon, "traceback", printed)  # noqa: B010  a type checker knows no such attribute
    daemon.manager()
