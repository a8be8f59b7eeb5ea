"""Columns of archives and reports, computed from the columns of history, and conditions on them. Invariant: they do not
depend on the session's time zone."""

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from jobrunner.broker.shards import SHARD_SUFFIX

_A_DAY = timedelta(days=1)


def whole_queue_of(name: str) -> Column:
    """The queue of each shard in this column; names of other queues are unchanged."""
    return F.regexp_replace(name, SHARD_SUFFIX, "")


def utc_day_of(instant: str) -> Column:
    """The date of an instant in UTC."""
    return F.date_from_unix_date(F.floor(F.unix_seconds(instant) / 86_400).cast("int"))


def utc_hour_of(instant: str) -> Column:
    """The hour of the day of an instant in UTC: 00 to 23."""
    hours = F.floor(F.unix_seconds(instant) / 3600)
    return F.lpad(F.pmod(hours, F.lit(24)).cast("string"), 2, "0")


def ended_since(firsts: Mapping[str, float]) -> Column:
    """Whether a row of history ended at the instant of its queue or shard, or later; `firsts`: Unix ms by name."""
    alike: dict[float, list[str]] = {}
    for name, first in firsts.items():
        alike.setdefault(first, []).append(name)
    conditions = [
        F.col("_queue").isin(names) & (F.col("_finished_at") >= F.timestamp_millis(F.lit(math.floor(first))))
        for first, names in alike.items()
    ]
    return reduce(or_, conditions)


def days_between(since: datetime | None, until: datetime | None) -> tuple[date, date]:
    """The first and the last `date` of tasks that ended in [since, until): in UTC, plus one day on both sides, as
    archives of earlier versions have dates in other zones."""
    return (
        date.min if since is None else (since.astimezone(UTC) - _A_DAY).date(),
        date.max if until is None else (until.astimezone(UTC) + _A_DAY).date(),
    )
