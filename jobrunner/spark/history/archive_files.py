"""The files of an archive: history as Parquet, partitioned by day, queue and window of time.

`PATH/date=2026-11-20/queue=mail/window=1763600000000-1763686400000/part-….parquet`; a window is [from, to) in Unix
ms by the server's clock. The rows have the columns of the data source, and the payload as it was stored.
"""

import fnmatch
from collections.abc import Sequence
from datetime import datetime

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from jobrunner.errors import InvalidOption

PARTITIONS = ("date", "queue", "window")


def read_archive(
    spark: SparkSession,
    path: str,
    *,
    queues: Sequence[str] = (),
    jobs: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """The tasks of an archive that ended in [since, until), of queues like these patterns and of these jobs.

    Raises InvalidOption when there is no archive.
    """
    try:
        found = spark.read.parquet(path)
    except AnalysisException as error:
        reason = (error.getCondition() or "").lower().replace("_", " ").replace(".", ": ")
        raise InvalidOption(
            f"{path} cannot be read as an archive ({reason}); make one: jobrunner history archive --to {path}"
        ) from error
    lacking = [name for name in ("_id", "_state", "_finished_at", "payload") if name not in found.columns]
    if lacking:
        raise InvalidOption(f"{path} is no archive of jobrunner: it has no column {lacking[0]}")
    if queues:
        likes = "|".join(f"({fnmatch.translate(pattern)})" for pattern in queues)
        found = found.where(F.col("_queue").rlike(likes))
    if jobs:
        found = found.where(F.col("_type").isin(*jobs))
    if since is not None:
        found = found.where((F.col("_finished_at") >= F.lit(since)) & (F.col("date") >= F.to_date(F.lit(since))))
    if until is not None:
        found = found.where((F.col("_finished_at") < F.lit(until)) & (F.col("date") <= F.to_date(F.lit(until))))
    return found
