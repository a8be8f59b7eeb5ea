"""Columns of archives and reports that are made of those of history."""

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from jobrunner.broker.shards import SHARD_SUFFIX


def whole_queue_of(name: str) -> Column:
    """The queues that the shards in this column are of; other queues as they are."""
    return F.regexp_replace(name, SHARD_SUFFIX, "")
