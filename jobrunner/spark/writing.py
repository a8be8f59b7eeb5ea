"""Writing what a sink got so that each row is there once, whatever died on the way."""

from pyspark.sql import DataFrame

from jobrunner.spark.run import Batch


def write_batch(df: DataFrame, batch: Batch, path: str, *, source: str = "parquet", **options: str) -> None:
    """Writes the rows to the folder `path/batch=<id>`, in place of what an earlier attempt wrote there.

    What the batch wrote while it was whole, before it was halved, is emptied. `spark.read.parquet(path)` reads all
    batches, with a column `batch`.
    """
    for larger in batch.supersedes:
        df.limit(0).write.mode("overwrite").format(source).options(**options).save(f"{path}/batch={larger}")
    df.write.mode("overwrite").format(source).options(**options).save(f"{path}/batch={batch.id}")
