"""Enqueues rows as tasks of a job: `df.write.format("jobrunner")` with the job itself instead of its name."""

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame

from jobrunner.client.current import current_client
from jobrunner.client.internals import endpoint_of
from jobrunner.errors import InvalidOption, UsageError
from jobrunner.spark.encryption import check_plain
from jobrunner.spark.errors import error_line
from jobrunner.spark.session import register


def enqueue(
    df: DataFrame,
    job: Any,
    *,
    queue: str | None = None,
    id: str | None = None,  # noqa: A002  its name everywhere
    id_from: Iterable[str] = (),
) -> None:
    """Adds one task of `job` (a Job class or a function) for each row: columns are parameters, all rows or none.

    Columns `_id`, `_priority`, `_delay` (s), `_at`, `_headers`, `_partition` steer single tasks. `id` names the column
    with the ids of the tasks, `id_from` columns to derive them from: then rows that were written before are left alone.
    Goes to the server of the current client. Raises ParameterError, InvalidOption and their like, which name column and
    row; nothing was added then.
    """
    definition = getattr(job, "definition", None)
    if definition is None:
        raise InvalidOption(f"{job!r} is no job; declare it with @job(...)")
    module = definition.origin.partition(":")[0]
    if module == "__main__":
        raise InvalidOption(
            f"job {definition.name!r} is declared in the program itself; move it to a module of its own"
        )
    where = current_client()
    check_plain(where.settings, "a write from Spark")
    options = {
        "type": definition.name,
        "modules": module,
        "queue": queue,
        "id": id,
        "idFrom": ",".join(id_from) or None,
        "url": endpoint_of(where).shared_url(),
        "prefix": where.settings.prefix,
    }
    register(df.sparkSession)
    given = {name: value for name, value in options.items() if value is not None}
    try:
        df.write.format("jobrunner").options(**given).mode("append").save()
    except Exception as error:
        _raise_ours(error)
        raise


def _raise_ours(error: Exception) -> None:
    """Raises the error of this package that Spark wrapped, if it is one of the caller's."""
    name, _, text = error_line(error).partition(": ")
    for kind in UsageError.__subclasses__():
        if kind.__name__ == name.rpartition(".")[2]:
            raise kind(text) from error
