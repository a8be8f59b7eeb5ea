"""Unpickles objects that this package sent to an executor, and reports a module that is missing there.

Spark pickles `load` by value (see `shipping`), because it runs where this package may be missing. Invariant: `load`
imports its modules itself, and uses no other global name.
"""

from typing import Any

UNFIT = "executors cannot import"
"""The beginning of the error message."""


def load(pickled: bytes) -> Any:
    """Unpickles an object that was sent to an executor. Pickled by value, so it imports its modules itself."""
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
