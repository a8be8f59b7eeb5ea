"""A payload store: a folder, or a bucket of any storage that fsspec supports.

Errors of the store become three errors of this package: the store is unavailable (unreachable, or access is denied), an
object is missing, an object differs from the one that was written.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from jobrunner.errors import (
    FsspecMissing,
    InvalidOption,
    PayloadObjectChanged,
    PayloadObjectMissing,
    PayloadStoreUnavailable,
)
from jobrunner.formatting import install_command
from jobrunner.payload_store.reference import StoredReference, digest_of, folder_of_prefix

_LOCAL = ("file", "local")
_ONE_CONNECTION = ("sftp", "ssh", "ftp")
"""Protocols whose file systems have one connection that threads cannot share: replies get lost, and a worker hangs."""


class PayloadStore:
    """The objects of one prefix below a URL. Thread-safe; a forked child opens the file system again.

    `above` is the size in bytes above which a payload is stored here. `syncs`: a write to a folder returns when the
    data is on the disk, as the client's `durability` requires of the task.
    """

    def __init__(self, url: str, prefix: str, *, above: int, syncs: bool = False) -> None:
        self.prefix = prefix
        self.above = above
        self._url = url
        self._syncs = syncs
        self._pid = 0
        self._opened: tuple[Any, str] = (None, "")
        self._file_system()

    @property
    def shown_url(self) -> str:
        """The URL without a password, for messages."""
        parts = urlsplit(self._url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")

    def put(self, contents: Mapping[StoredReference, bytes]) -> None:
        """Writes objects. Raises PayloadStoreUnavailable; some of the objects may exist then."""
        files, root = self._file_system()
        paths = {f"{root}/{reference.key}": raw for reference, raw in contents.items()}
        try:
            if self._is_local:  # the file system would create all missing folders, this one too
                _check_place(files, root)
            if len(paths) == 1:
                ((path, raw),) = paths.items()
                files.pipe_file(path, raw)
            else:
                files.pipe(paths)
            if self._syncs and self._is_local:
                _sync(paths, root)
        except Exception as error:
            raise self._away("written to", error, "its task or batch was not enqueued; ") from error

    def get(self, reference: StoredReference, task_id: str) -> bytes:
        """The content of an object. Raises PayloadStoreUnavailable, PayloadObjectMissing, PayloadObjectChanged.

        Reads at most a byte more than was written, so an exchanged object cannot fill the memory.
        """
        files, root = self._file_system()
        path = f"{root}/{reference.key}"
        named = f"the payload of task {task_id}, object {self.shown_url}/{reference.key},"
        try:
            raw: bytes = files.cat_file(path, start=0, end=reference.size + 1)  # file systems differ in the order
        except FileNotFoundError as error:
            self._refuse_missing_place("read")
            raise PayloadObjectMissing(
                f"{named} is missing: it was deleted, or payload_store is not the store it was written to; "
                "bring it back and requeue the task, or enqueue it again"
            ) from error
        except Exception as error:
            if _size(files, path) in (None, reference.size):
                raise self._away("read", error) from error
            raw = b""  # a bucket refuses a range of an empty object
        if digest_of(raw) != reference.digest:  # also for a longer object, because of the extra byte
            raise PayloadObjectChanged(
                f"{named} was changed: its size or checksum is not that of the {reference.size} bytes that were "
                "written; bring the object back and requeue the task, or enqueue it again"
            )
        return raw

    def delete(self, keys: Sequence[str]) -> dict[str, str]:
        """Deletes objects, ignoring those that do not exist. Returns the objects that the store refuses to delete
        (locked, or owned by another user), each with its error. Raises PayloadStoreUnavailable."""
        files, root = self._file_system()
        left: dict[str, str] = {}
        for number, key in enumerate(keys):
            try:
                with suppress(FileNotFoundError):
                    files.rm_file(f"{root}/{key}")
            except Exception as error:
                away = self._away("cleaned up", error)
                if len(left) == number and not files.exists(f"{root}/{key}"):  # False also without the store
                    raise away from error
                left[key] = str(away)
        return left

    def check(self) -> None:
        """Raises PayloadStoreUnavailable when the store cannot be listed: it is unreachable, its bucket or folder does
        not exist, or this process lacks the permission."""
        self._listed(folder_of_prefix(self.prefix))

    def folders(self) -> Iterator[list[str]]:
        """The keys of all objects, in one list for each hash tag. Raises PayloadStoreUnavailable."""
        for folder in self._listed(folder_of_prefix(self.prefix)):
            if folder.rpartition("/")[2].startswith("tag="):
                yield self._listed(folder)

    def _listed(self, folder: str) -> list[str]:
        files, root = self._file_system()
        try:
            found = files.ls(f"{root}/{folder}", detail=False, refresh=True)
        except FileNotFoundError:
            self._refuse_missing_place("listed")
            return []
        except Exception as error:
            raise self._away("listed", error) from error
        return [f"{folder}/{path.rstrip('/').rpartition('/')[2]}" for path in found]

    def _file_system(self) -> tuple[Any, str]:
        """The file system, and the path of the store in it. Raises FsspecMissing, InvalidOption."""
        if self._pid != os.getpid():
            self._opened = _open(self._url)
            self._pid = os.getpid()
        return self._opened

    @property
    def _is_local(self) -> bool:
        protocol = self._opened[0].protocol
        return any(name in _LOCAL for name in ([protocol] if isinstance(protocol, str) else protocol))

    def _refuse_missing_place(self, done: str) -> None:
        """Raises PayloadStoreUnavailable when not only an object is missing, but the whole store."""
        try:
            _check_place(*self._file_system())
        except FileNotFoundError as error:
            raise self._away(done, error) from error

    def _away(self, done: str, error: Exception, outcome: str = "") -> PayloadStoreUnavailable:
        why = str(error).replace(self._url, self.shown_url).rstrip(".") or type(error).__name__
        return PayloadStoreUnavailable(
            f"the payload store {self.shown_url} cannot be {done}: {why}; {outcome}see whether it can be reached from "
            "here, and with which rights"
        )


def _open(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise FsspecMissing(f"payload_store needs the package fsspec: {install_command('store')}") from error
    protocol = url.partition(":")[0]
    if protocol in _ONE_CONNECTION:
        raise InvalidOption(
            f"payload_store: threads cannot share the one connection of {protocol}; mount that folder and give "
            "its path as file:///srv/payloads, or use a bucket"
        )
    is_local = url.startswith(("file:", "local:", "/"))
    try:
        files, path = url_to_fs(url, **({"auto_mkdir": True} if is_local else {}))
    except ImportError as error:
        raise FsspecMissing(
            f"payload_store with a URL of {protocol!r} needs one more package: {error}"
        ) from error
    except ValueError as error:
        raise InvalidOption(f"payload_store: {error}; give a URL as file:///srv/payloads or s3://bucket") from error
    return files, path.rstrip("/")


def _check_place(files: Any, root: str) -> None:
    """Raises FileNotFoundError when the folder of the store, or its bucket, does not exist.

    Neither is created: with an unmounted volume or a misspelt name, the payloads would be missing for all other
    processes. A place that the file system may not inspect counts as existing.
    """
    is_folder = root.startswith("/")  # otherwise a bucket is first; folders in it exist with their objects
    place, exists = root if is_folder else root.partition("/")[0], True
    with suppress(Exception):
        files.invalidate_cache()
        exists = not place or files.exists(place)
    if not exists:
        kind, remedy = ("folder", "create it, or mount it") if is_folder else ("bucket", "create it")
        raise FileNotFoundError(f"the {kind} {place} does not exist: {remedy}")


def _size(files: Any, path: str) -> int | None:
    with suppress(Exception):
        return int(files.size(path))
    return None


def _sync(paths: Collection[str], root: str) -> None:
    """Syncs files, and the folders up to the root, which may have been created for them."""
    folders = {folder for path in paths for folder in Path(path).parents if folder.is_relative_to(root)}
    for name in (*paths, *map(str, folders)):
        opened = os.open(name, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
