"""Access to the files below a table's root: on this machine, or through the file system of the format's library."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyarrow import fs


@dataclass(frozen=True)
class Storage:
    """The files below a table's root, on this machine or on a storage that the format's library reaches."""

    root: str
    """Path or URL."""
    library: str = ""
    """`deltalake` or `pyiceberg`, for a root that is not on this machine."""
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    @cached_property
    def _system(self) -> tuple[fs.FileSystem, str]:
        """(file system, path of the root in it)."""
        if not self.library:
            return fs.LocalFileSystem(), local_path(self.root)
        if self.library == "deltalake":
            from deltalake.fs import DeltaStorageHandler  # the extra may be absent

            return fs.PyFileSystem(DeltaStorageHandler(self.root)), ""
        from pyiceberg.io.pyarrow import PyArrowFileIO  # the extra may be absent

        scheme, netloc, path = PyArrowFileIO.parse_location(self.root)
        return PyArrowFileIO(dict(self.properties)).fs_by_scheme(scheme, netloc), path

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "library": self.library, "properties": dict(self.properties)}

    def path(self, name: str) -> str:
        """The address of a file, by its name below the root."""
        return f"{self.root}/{name}"

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine."""
        return not self.library

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return bool(self._system[0].get_file_info(self._path(name)).type is fs.FileType.File)

    def create(self, name: str) -> pa.NativeFile:
        """A stream to a new file, in folders that are made when they are missing."""
        system, _ = self._system
        path = self._path(name)
        if self.is_local:  # on an object store a folder would be one more object, never removed
            system.create_dir(path.rpartition("/")[0], recursive=True)
        return system.open_output_stream(path)

    def list(self, folder: str) -> list[fs.FileInfo]:
        """Files in a folder and below; their `path` is the name below the root. Empty when there is no such folder."""
        system, root = self._system
        selector = fs.FileSelector(self._path(folder), allow_not_found=True, recursive=True)
        found = [one for one in system.get_file_info(selector) if one.type is fs.FileType.File]
        return [fs.FileInfo(one.path.removeprefix(root).lstrip("/"), mtime=one.mtime) for one in found]

    def remove(self, name: str) -> None:
        """Removes a file; nothing happens when it is gone."""
        with suppress(FileNotFoundError):
            self._system[0].delete_file(self._path(name))

    def remove_empty(self, folder: str) -> None:
        """Removes an empty folder, where the storage has folders."""
        system, _ = self._system
        with suppress(OSError):
            if not system.get_file_info(fs.FileSelector(self._path(folder))):
                system.delete_dir(self._path(folder))

    def _path(self, name: str) -> str:
        root = self._system[1]
        return f"{root}/{name}" if root else name


def local_path(location: str) -> str:
    """The path of a location on this machine."""
    return fs.FileSystem.from_uri(location)[1] if location.startswith("file:") else location
