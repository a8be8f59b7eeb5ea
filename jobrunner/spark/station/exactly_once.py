"""Writing what a sink got so that each row is there once, whatever died, or lived too long, on the way.

What must hold: two attempts at one batch never write to the same folder, and only one that holds its lease touches
what readers see.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from jobrunner.spark.paths import Folders, folders_in
from jobrunner.spark.station.batch_run import SinkBatch

_Save = Callable[[DataFrame, str], None]


def write_batch(
    df: DataFrame,
    batch: SinkBatch,
    path: str,
    *,
    source: str = "parquet",
    partition_by: Sequence[str] = (),
    **options: str,
) -> None:
    """Writes the rows to the folder `path/batch=<id>`, in place of what an earlier attempt wrote there.

    They are written to a folder of this attempt, which readers pass over, and put in place by renaming it, if the
    lease is still held then: raises BatchLost. What the batch wrote while it was whole, before it was halved, goes
    away. `spark.read.parquet(path)` reads all batches, with a column `batch`. `partition_by` names columns whose values
    are folders below that. `path` is local or a URL that Spark knows; a URL under Spark Connect is written to in place.
    Let it be the last thing that a sink does: what fails behind it leaves its rows there. Raises PipelineError.
    """

    def save(rows: DataFrame, name: str) -> None:
        # A session may be set to overwrite only partitions it writes to: then those of an earlier attempt stayed.
        writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "static").partitionBy(*partition_by)
        writer.format(source).options(**options).save(f"{path}/{name}")

    folders = folders_in(path, df.sparkSession, options)
    if folders is None:
        _write_in_place(df, batch, save)
        return
    own = f"{_attempts_at(batch.id)}{batch.epoch}"
    try:
        save(df, own)
        _clear(folders, batch)
        _put_in_place(folders, batch, own)
    except BaseException:
        with suppress(Exception):  # what went wrong first is what to tell
            folders.remove(own)
        raise


def _put_in_place(folders: Folders, batch: SinkBatch, own: str) -> None:
    target = _folder_of(batch.id)
    batch.renew()
    folders.remove(target)
    folders.rename(own, target)


def _clear(folders: Folders, batch: SinkBatch) -> None:
    """Removes what can never count again, so that no lease is needed: of larger batches, and of attempts before."""
    for larger in batch.supersedes:
        for name in (_folder_of(larger), *folders.beginning_with(_attempts_at(larger))):
            folders.remove(name)
    prefix = _attempts_at(batch.id)
    for name in folders.beginning_with(prefix) if batch.epoch > 1 else ():
        if int(name.removeprefix(prefix)) < batch.epoch:
            folders.remove(name)


def _write_in_place(df: DataFrame, batch: SinkBatch, save: _Save) -> None:
    nothing = df.where(F.lit(False))
    for larger in batch.supersedes:
        save(nothing, _folder_of(larger))
    batch.renew()
    save(df, _folder_of(batch.id))


def _folder_of(batch_id: str) -> str:
    return f"batch={_as_name(batch_id)}"


def _attempts_at(batch_id: str) -> str:
    return f"_attempt-{_as_name(batch_id)}@"


def _as_name(batch_id: str) -> str:
    return batch_id.replace(":", "%3A")
