"""How many tasks of each queue, or shard of one, an archive has: (finished, dead)."""

from collections import Counter

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from jobrunner.broker.shards import whole_queue


def counts_of(rows: DataFrame) -> dict[str, tuple[int, int]]:
    """(finished, dead) by queue or shard."""
    dead = F.col("_state") == "dead"
    counted = rows.groupBy("_queue").agg(F.count_if(~dead).alias("done"), F.count_if(dead).alias("dead")).collect()
    return {row["_queue"]: (row["done"], row["dead"]) for row in counted}


def lacking(expected: dict[str, tuple[int, int]], rows: dict[str, tuple[int, int]]) -> dict[str, int]:
    """How many tasks are not among the rows, for the queues of which some are not."""
    found = {
        name: sum(max(0, wanted - got) for wanted, got in zip(counts, rows.get(name, (0, 0)), strict=True))
        for name, counts in expected.items()
    }
    return {name: count for name, count in found.items() if count}


def by_queue(rows: dict[str, tuple[int, int]]) -> dict[str, int]:
    """All rows of each queue, of those by shard."""
    found = Counter[str]()
    for name, counts in rows.items():
        found[whole_queue(name)] += sum(counts)
    return dict(found)
