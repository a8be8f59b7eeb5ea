"""Errors of the data source in one line.

Spark runs the data source in separate Python processes, and puts the traceback of an error into the message of Spark's
own error. For an error that names an option, a column or the server, the traceback shows code of this package only.
PySpark omits the traceback when an environment variable is set in the process, which ends with the error.

An error that follows another one comes behind that one's message, which may imitate what follows. So errors of this
package are raised without those before them, where the driver acts on their class.
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
    """Decorates a method of the data source: Spark's message has no traceback for errors of this package."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except JobrunnerError:
            _hide_traceback()
            raise

    return run


def brief_rows(rows: Iterator[T]) -> Iterator[T]:
    """Does the same for the iterator that a read returns."""
    try:
        yield from rows
    except JobrunnerError:
        _hide_traceback()
        raise


def unchained(function: Callable[..., Iterator[T]], *arguments: object) -> Iterator[T]:
    """The results of a generator on executors, whose errors of this package come without those that caused them."""
    try:
        yield from function(*arguments)
    except JobrunnerError as error:
        raise error from None


def _hide_traceback() -> None:
    started_as = getattr(sys.modules["__main__"], "__spec__", None)
    if started_as is not None and started_as.name.startswith(_OF_SPARK):  # not the user's own process
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
