"""Columns of archives and reports that are made of those of history, the same in a session of any time zone."""

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from jobrunner.broker.shards import SHARD_SUFFIX


def whole_queue_of(name: str) -> Column:
    """The queues that the shards in this column are of; other queues as they are."""
    return F.regexp_replace(name, SHARD_SUFFIX, "")


def utc_day_of(instant: str) -> Column:
    """The date of an instant in UTC."""
    return F.date_from_unix_date(F.floor(F.unix_seconds(instant) / 86_400).cast("int"))


def utc_hour_of(instant: str) -> Column:
    """The hour of the day of an instant in UTC: 00 to 23."""
    hours = F.floor(F.unix_seconds(instant) / 3600)
    return F.lpad(F.pmod(hours, F.lit(24)).cast("string"), 2, "0")
