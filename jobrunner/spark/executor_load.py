"""The function that unpickles on an executor what this package sent there, and reports a module that is missing.

Spark is asked to send it with its code (see `shipping`), so it runs where this package is not. It must therefore import
what it needs itself, and use no other name of a module.
"""

from typing import Any

UNFIT = "executors cannot import"
"""Begins the message of the error."""


def load(pickled: bytes) -> Any:
    """Unpickles what was sent to an executor. Pickled by value, so it imports what it needs itself."""
    import pickle
    import platform
    import sys as here

    try:
        return pickle.loads(pickled)  # noqa: S301  made by the driver of this session
    except ImportError as error:
        raise ImportError(
            f"executors cannot import jobrunner: {error} (Python {platform.python_version()} at {here.executable} on "
            f'{platform.node()}); install "jobrunner-queue[spark]" there, or name a Python that has it by '
            "spark.pyspark.python"
        ) from None
