"""Pipelines and queues on Apache Spark. Needs the extra `spark`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jobrunner.spark.session import spark_missing, spark_session

if TYPE_CHECKING:
    from jobrunner.spark.data_source import enqueue, register
    from jobrunner.spark.lake.commit import TableCommit
    from jobrunner.spark.lake.services import clean_up_table, compact_table
    from jobrunner.spark.lake.write import micro_batch, write_table
    from jobrunner.spark.query_listener import watch_queries
    from jobrunner.spark.row_errors import checked, fold_errors, guarded
    from jobrunner.spark.sql_sink import sql_transaction, write_sql
    from jobrunner.spark.station.exactly_once import write_batch
    from jobrunner.spark.station.sink_batch import SinkBatch

__all__ = [
    "SinkBatch", "TableCommit", "checked", "clean_up_table", "compact_table", "enqueue", "fold_errors", "guarded",
    "micro_batch", "register", "spark_session", "sql_transaction", "watch_queries", "write_batch", "write_sql",
    "write_table",
]  # fmt: skip

_LATE = {  # these need Spark, and `spark_session` tells in better words what is missing
    "SinkBatch": "jobrunner.spark.station.sink_batch",
    "TableCommit": "jobrunner.spark.lake.commit",
    "checked": "jobrunner.spark.row_errors",
    "clean_up_table": "jobrunner.spark.lake.services",
    "compact_table": "jobrunner.spark.lake.services",
    "enqueue": "jobrunner.spark.data_source",
    "fold_errors": "jobrunner.spark.row_errors",
    "guarded": "jobrunner.spark.row_errors",
    "micro_batch": "jobrunner.spark.lake.write",
    "register": "jobrunner.spark.data_source",
    "sql_transaction": "jobrunner.spark.sql_sink",
    "watch_queries": "jobrunner.spark.query_listener",
    "write_batch": "jobrunner.spark.station.exactly_once",
    "write_sql": "jobrunner.spark.sql_sink",
    "write_table": "jobrunner.spark.lake.write",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        globals()[name] = found = getattr(import_module(_LATE[name]), name)
    except ImportError as error:
        raise (spark_missing(error) or error) from error.__cause__
    return found
