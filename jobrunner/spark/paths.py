"""Folders of batches, and moving them, on whatever file system a path is of.

What must hold: folders that are no batch's yet have names that readers pass over. Spark's readers do so with names that
begin with `_`, unless there is a `=` in them.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession

from jobrunner.errors import PipelineError


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
            raise PipelineError(f"{root}/{name} cannot be renamed to {to}: see that nothing else writes there")


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
