"""Writing what a sink got so that each row is there once, whatever died on the way."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from jobrunner.spark.run import Batch


def write_batch(
    df: DataFrame, batch: Batch, path: str, *, source: str = "parquet", partition_by: Sequence[str] = (), **options: str
) -> None:
    """Writes the rows to the folder `path/batch=<id>`, in place of what an earlier attempt wrote there.

    What the batch wrote while it was whole, before it was halved, is emptied. `spark.read.parquet(path)` reads all
    batches, with a column `batch`. `partition_by` names columns whose values are folders below that. `path` is local
    or a URL that Spark knows. Let it be the last thing that a sink does: what fails behind it leaves its rows there.
    """
    nothing = df.where(F.lit(False))
    for batch_id, rows in (*((larger, nothing) for larger in batch.supersedes), (batch.id, df)):
        # A session may be set to overwrite only partitions it writes to: then those of an earlier attempt stayed.
        writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "static").partitionBy(*partition_by)
        writer.format(source).options(**options).save(f"{path}/batch={batch_id.replace(':', '%3A')}")
