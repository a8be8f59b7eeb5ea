"""Writing the batch of a sink so that each row is there once, whichever process died, or lived too long, on the way.

Invariants: two attempts at one batch never write to the same folder, and only the attempt that holds its lease changes
what readers see. Folders of attempts that are not in place have names that readers pass over: Spark's readers skip
names that begin with `_`, unless there is a `=` in them.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from jobrunner.errors import PipelineError
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
    """Writes the rows to the folder `path/batch=<id>`, replacing the rows of an earlier attempt.

    They are written to a folder of this attempt, which readers skip, and become visible by renaming it if the lease is
    still held then: raises BatchLost. Rows that the batch wrote before it was split are removed.
    `spark.read.parquet(path)` reads all batches, with a column `batch`. `partition_by` names columns whose values are
    folders below that. `path` is local or a URL that Spark knows; a URL under Spark Connect is written to in place.
    Call it last in a sink: an error after it leaves the rows there. Rows with errors are not written, and their items
    are dead with the error. Raises PipelineError.
    """
    df = batch.quarantine(df)

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
        with suppress(Exception):  # report the first error, not one of the clean-up
            folders.remove(own)
        raise


class Folders(Protocol):
    """The folders in one root. Names hold no characters that a pattern gives a meaning to."""

    def beginning_with(self, prefix: str) -> list[str]:
        """Names of those that begin so."""

    def remove(self, name: str) -> None:
        """Removes one with all that is in it; nothing happens when there is none."""

    def rename(self, name: str, to: str) -> None:
        """Raises PipelineError or OSError when it cannot be done."""


def folders_in(root: str, spark: SparkSession, options: Mapping[str, str]) -> Folders | None:
    """Those in a path or URL, as `spark` reads it with these `options` of a writer.

    None for a URL under Spark Connect, which gives no access to file systems; a path is taken to be of this machine.
    """
    if hasattr(spark, "_jsparkSession"):
        return HadoopFolders(root, spark, options)
    parts = urlsplit(root)
    if parts.scheme not in ("", "file"):
        return None
    return LocalFolders(Path(unquote(parts.path) if parts.scheme else root))


class HadoopFolders:
    """By the file systems of the session's JVM, so for every URL that Spark can write to."""

    def __init__(self, root: str, spark: SparkSession, options: Mapping[str, str]) -> None:
        session: Any = spark
        settings = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - there is no public way
        for name, value in options.items():
            settings.set(name, str(value))
        self._path = session._jvm.org.apache.hadoop.fs.Path  # noqa: SLF001
        self._root = self._path(root)
        self._system = self._root.getFileSystem(settings)

    def beginning_with(self, prefix: str) -> list[str]:
        literal = "".join(f"\\{one}" if one in r"\[]{}*?" else one for one in self._root.toString())
        found = self._system.globStatus(self._path(literal, f"{prefix}*"))
        return [one.getPath().getName() for one in found or ()]

    def remove(self, name: str) -> None:
        self._system.delete(self._path(self._root, name), True)

    def rename(self, name: str, to: str) -> None:
        if not self._system.rename(self._path(self._root, name), self._path(self._root, to)):
            root = self._root.toString()
            raise PipelineError(f"{root}/{name} cannot be renamed to {to}: make sure that nothing else writes there")


class LocalFolders:
    """On this machine, without a JVM."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def beginning_with(self, prefix: str) -> list[str]:
        if not self._root.is_dir():
            return []
        return [one.name for one in self._root.iterdir() if one.name.startswith(prefix)]

    def remove(self, name: str) -> None:
        if (self._root / name).exists():
            shutil.rmtree(self._root / name)

    def rename(self, name: str, to: str) -> None:
        try:
            (self._root / name).rename(self._root / to)
        except FileNotFoundError as error:
            raise PipelineError(
                f"{self._root / name} was written by the Spark Connect server and is not on this machine: "
                "give write_batch a folder that both share, or the URL with its scheme (hdfs://..., s3a://...)"
            ) from error


def _put_in_place(folders: Folders, batch: SinkBatch, own: str) -> None:
    target = _folder_of(batch.id)
    batch.renew()
    folders.remove(target)
    folders.rename(own, target)


def _clear(folders: Folders, batch: SinkBatch) -> None:
    """Removes folders that can never count again, so that no lease is needed: those of larger batches and of earlier
    attempts."""
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
