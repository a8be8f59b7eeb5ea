"""Errors of the data source in one line.

Spark runs the data source in Python processes of its own, and puts the traceback of an error into the message of its
own. For an error that names an option, a column or the server, the traceback shows code of this package only. PySpark
leaves it out when a variable of the process is set; the process ends with the error.
"""

import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from jobrunner.errors import JobrunnerError

_OF_SPARK = ("pyspark.", "jobrunner.spark.preloaded_daemon")
"""Modules that processes of Spark run: the second is the parent of workers in a session that this package started."""
P = ParamSpec("P")
T = TypeVar("T")


def brief(function: Callable[P, T]) -> Callable[P, T]:
    """A method of the data source whose errors of this package have no traceback in Spark's message."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except JobrunnerError:
            _hide_traceback()
            raise

    return run


def brief_rows(rows: Iterator[T]) -> Iterator[T]:
    """The same for what a read yields."""
    try:
        yield from rows
    except JobrunnerError:
        _hide_traceback()
        raise


def _hide_traceback() -> None:
    started_as = getattr(sys.modules["__main__"], "__spec__", None)
    if started_as is not None and started_as.name.startswith(_OF_SPARK):  # not the user's own process
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
