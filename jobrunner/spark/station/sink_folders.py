"""The folders and small files below the root of a sink, on this machine or on a file system that Spark knows.

Invariant: `move` is atomic, so of two processes that move the same name only one succeeds. (A store without renames,
such as S3, copies instead: there a table format is the better sink.)
"""

import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

from jobrunner.clock import monotonic, sleep
from jobrunner.errors import FolderError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


COMPACTION_LOCK = "_jobrunner/compact.lock"
_LOCKED_S = 30.0
"""Longest wait for a lock, which a process holds for the duration of a few renames. Below the usual lease of a batch.
"""
_LOCK_POLL_S = 0.05
_SYNCS_AT_ONCE = 16
"""Files that are forced to the disk at once: file systems write those that wait together in one go."""
FOLDER_COLUMN = "batch"
"""The partition column in the names of batch folders, as readers of partitioned folders see it."""


_QUOTED = re.compile("%(?=25|3A|2F)")
"""Percent signs that are quoted themselves, so that different ids have different names."""


def as_name(batch_id: str) -> str:
    """The id as part of a name. Hadoop reads a colon as the end of a scheme, and a slash would begin a subfolder."""
    return _QUOTED.sub("%25", batch_id).replace(":", "%3A").replace("/", "%2F")


def as_id(name: str) -> str:
    """The id that `as_name` converted to this name."""
    return re.sub(f"{_QUOTED.pattern}(25|3A|2F)", lambda found: unquote(found[0]), name)


def folder_of(batch_id: str) -> str:
    """The folder of a batch below the root of its sink."""
    return f"{FOLDER_COLUMN}={as_name(batch_id)}"


class Folders(Protocol):
    """The folders and files below one root. Names are relative to it and have no characters with a meaning in patterns.
    """

    def names(self, folder: str = "") -> list[str]:
        """Names in a folder; none when there is no such folder."""

    def exists(self, name: str) -> bool:
        """Whether there is such a folder or file."""

    def remove(self, name: str) -> None:
        """Removes a folder with all that is in it, or a file; nothing happens when there is none."""

    def shown(self, name: str) -> str:
        """The whole path or URL of a folder or file, for an error."""

    def rename(self, name: str, to: str) -> None:
        """Renames a folder or file. Raises FolderError, with the same text for each batch, or OSError."""

    def place(self, name: str, to: str) -> bool:
        """Renames a folder. Returns False when a folder of the new name exists and is not empty. Raises as `rename`."""

    def move(self, name: str, to: str) -> bool:
        """Renames a folder or file; the target's parent exists. Returns False when the folder or file is gone."""

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file; None when it does not exist."""

    def write(self, name: str, content: bytes) -> None:
        """Writes a file atomically for readers, and creates its parent folders."""

    def sync(self, name: str) -> None:
        """Forces a file, or the names in a folder, to the disk, where the system has such a call. A name that is gone,
        or that this user may not read, is passed over. Raises OSError for a file that the disk does not take."""

    def sync_all(self, name: str) -> None:
        """Forces a folder with all that is in it to the disk, as `sync`. Without it a power cut may leave empty files
        under the names of whole ones."""

    def locked(self, name: str) -> AbstractContextManager[None]:
        """Holds a named lock among the processes of this machine, where the file system has locks. Raises FolderError,
        which names the holder, when a process (a suspended one, say) holds the lock for too long."""


def folders_in(root: str, spark: "SparkSession", options: Mapping[str, str]) -> Folders | None:
    """The folders in a path or URL, as `spark` resolves it with these `options` of a writer.

    None for a URL under Spark Connect, which gives no access to file systems; a path is taken as local.
    """
    if hasattr(spark, "_jsparkSession"):
        found = HadoopFolders(root, spark, options)
        return LocalFolders(found.local) if found.local is not None else found
    local = local_path(root)
    return None if local is None else LocalFolders(local, by_connect=True)


def local_path(root: str) -> Path | None:
    """The path on this machine that a path or `file:` URL names; None for other URLs."""
    parts = urlsplit(root)
    if parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path) if parts.scheme else root)


class HadoopFolders:
    """Folders on the file systems of the session's JVM, for every URL that Spark can write to."""

    def __init__(self, root: str, spark: "SparkSession", options: Mapping[str, str]) -> None:
        session: Any = spark
        settings = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - there is no public way
        for name, value in options.items():
            settings.set(name, str(value))
        self._jvm = session._jvm  # noqa: SLF001
        self._path = self._jvm.org.apache.hadoop.fs.Path
        self._root = self._path(root)
        self._system = self._root.getFileSystem(settings)
        uri = self._system.makeQualified(self._root).toUri()
        self.local = Path(uri.getPath()) if uri.getScheme() == "file" else None
        """The local path of the root, if it is local: Python then needs no JVM, and renames without copying."""

    def names(self, folder: str = "") -> list[str]:
        at = self._at(folder)
        if not self._system.exists(at):
            return []
        return [one.getPath().getName() for one in self._system.listStatus(at)]

    def exists(self, name: str) -> bool:
        return bool(self._system.exists(self._at(name)))

    def remove(self, name: str) -> None:
        self._system.delete(self._at(name), True)

    def shown(self, name: str) -> str:
        return str(self._at(name).toString())

    def rename(self, name: str, to: str) -> None:
        if not self._system.rename(self._at(name), self._at(to)):
            raise FolderError(
                f"{self._root.toString()} refuses to rename a folder or file in it: make sure that this user has the "
                "right to, and that nothing else writes there"
            )

    def place(self, name: str, to: str) -> bool:
        # Not every file system has an atomic step for this. A folder that appears after the check is that of an attempt
        # that removed the folder to rename, so the rename fails.
        if self._system.exists(self._at(to)):
            return False
        self.rename(name, to)
        return True

    def move(self, name: str, to: str) -> bool:
        return bool(self._system.exists(self._at(name)) and self._system.rename(self._at(name), self._at(to)))

    def read(self, name: str) -> bytes | None:
        if not self._system.exists(self._at(name)):
            return None
        stream = self._system.open(self._at(name))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, name: str, content: bytes) -> None:
        folder, _, last = name.rpartition("/")
        draft = f"{folder}/{_draft_of(last)}"
        stream = self._system.create(self._at(draft), True)
        try:
            stream.write(content)
        finally:
            stream.close()
        self.rename(draft, name)

    def sync(self, name: str) -> None:
        """Does nothing: when a closed file is safe is up to the file system."""

    sync_all = sync

    def locked(self, name: str) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def _at(self, name: str) -> Any:
        return self._path(self._root, name) if name else self._root


class LocalFolders:
    """Local folders, without a JVM. `by_connect`: a Spark Connect server writes the files, maybe on another machine."""

    def __init__(self, root: Path, *, by_connect: bool = False) -> None:
        self._root = root
        self._by_connect = by_connect

    def names(self, folder: str = "") -> list[str]:
        with suppress(FileNotFoundError, NotADirectoryError):
            return [one.name for one in (self._root / folder).iterdir()]
        return []

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()

    def remove(self, name: str) -> None:
        at = self._root / name
        with suppress(FileNotFoundError):
            shutil.rmtree(at) if at.is_dir() else at.unlink()

    def shown(self, name: str) -> str:
        return str(self._root / name)

    def sync(self, name: str) -> None:
        with suppress(FileNotFoundError):
            _sync(self._root / name)

    def sync_all(self, name: str) -> None:
        at = self._root / name
        with suppress(FileNotFoundError):  # another attempt removes the folder
            paths = [*at.rglob("*"), at]
            with ThreadPoolExecutor(min(len(paths), _SYNCS_AT_ONCE)) as pool:
                for _ in pool.map(_sync, paths):
                    pass

    def rename(self, name: str, to: str) -> None:
        try:
            (self._root / name).rename(self._root / to)
        except FileNotFoundError as error:
            why = "is without what was just written there: a newer attempt at its batch removed it, or another program"
            if self._by_connect:
                why = ("was written by the Spark Connect server and is not on this machine: give write_batch a folder "
                       "that both share, or the URL with its scheme (hdfs://..., s3a://...)")  # fmt: skip
            raise FolderError(f"{self._root} {why}") from error

    def place(self, name: str, to: str) -> bool:
        try:
            self.rename(name, to)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        return True

    def move(self, name: str, to: str) -> bool:
        with suppress(FileNotFoundError):
            (self._root / name).rename(self._root / to)
            return True
        return False

    def read(self, name: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return (self._root / name).read_bytes()
        return None

    def write(self, name: str, content: bytes) -> None:
        at = self._root / name
        _make(at.parent)
        draft = at.with_name(_draft_of(at.name))
        draft.write_bytes(content)
        draft.rename(at)

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        at = self._root / name
        _make(at.parent)
        with at.open("ab") as file:
            ends = monotonic() + _LOCKED_S
            with suppress(OSError):  # a mounted file system may have no locks
                while not _lock(file):
                    if monotonic() >= ends:
                        raise FolderError(
                            f"{at} is held by {_holder_of(at)}, for {_LOCKED_S:g} s by now: let it go on, or end it"
                        )
                    sleep(_LOCK_POLL_S)
            yield

    @contextmanager
    def compacting(self) -> Iterator[None]:
        """Holds the lock of a compaction, which the system releases when this process dies. Raises UsageError while
        another process holds it."""
        at = self._root / COMPACTION_LOCK
        at.parent.mkdir(exist_ok=True)
        with at.open("ab") as file:
            if not _lock(file):
                raise UsageError(f"another process compacts {self._root}; wait until it ends")
            yield


def _sync(path: Path) -> None:
    is_folder = path.is_dir()
    try:
        opened = os.open(path, os.O_RDONLY)
    except PermissionError:  # a folder above that only lets pass, or a file of an executor of another user
        return
    try:
        with suppress(OSError) if is_folder else nullcontext():  # not every file system does it for a folder
            os.fsync(opened)
    finally:
        os.close(opened)


def _lock(file: BinaryIO) -> bool:
    """Locks a file and writes the id of this process into it. Returns False while another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    with suppress(OSError):  # a full disk, which does not undo the lock
        file.truncate(0)
        file.write(f"process {os.getpid()} on {gethostname()}".encode())
        file.flush()
    return True


def _holder_of(lock: Path) -> str:
    with suppress(OSError):
        return lock.read_text("utf-8", "replace") or "another process"
    return "another process"


def _make(folder: Path) -> None:
    """Creates a folder and its parents. Raises FolderError when the file system finds no place for it, for example when
    a mount is unavailable, and OSError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:
        raise FolderError(f"folder {error.filename} cannot be made: {error.strerror}") from error


def _draft_of(name: str) -> str:
    """A name that no other process writes to. It begins with a dot, so readers skip drafts of killed processes."""
    return f".{name}.{secrets.token_hex(4)}"
