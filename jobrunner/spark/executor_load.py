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
    except (ImportError, AttributeError) as error:
        is_older = (getattr(error, "name", "") or "").startswith("jobrunner.") or "<module 'jobrunner." in str(error)
        if isinstance(error, AttributeError) and not is_older:
            raise  # of a module of the user's
        remedy = 'install "jobrunner-queue[spark]" there, or name a Python that has it by spark.pyspark.python'
        if is_older:
            where = getattr(here.modules.get("jobrunner"), "__file__", "")
            remedy = f'{where} is an older one, or another project\'s: update "jobrunner-queue[spark]" there'
        raise ImportError(
            f"executors cannot import jobrunner: {error} (Python {platform.python_version()} at {here.executable} on "
            f"{platform.node()}); {remedy}"
        ) from None
