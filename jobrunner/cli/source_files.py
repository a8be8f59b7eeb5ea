"""The .py files below a folder, and whether one changed. For `work --reload`."""

import os
from collections.abc import Iterator
from pathlib import Path


class SourceFiles:
    """Remembers when each file was last written. Leaves out hidden folders and virtual environments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written = dict(self._look())

    def changed(self) -> list[str]:
        """Paths that were written, added or removed since the last call, sorted."""
        before, self._written = self._written, dict(self._look())
        return sorted({path for path, _ in before.items() ^ self._written.items()})

    def _look(self) -> Iterator[tuple[str, int]]:
        for place, folders, names in os.walk(self._folder):
            folders[:] = [name for name in folders if _may_hold_sources(place, name)]
            for name in names:
                path = os.path.join(place, name)  # noqa: PTH118 - thousands of files, each second
                if name.endswith(".py") and (written := _written_ns(path)):
                    yield path, written


def _may_hold_sources(place: str, name: str) -> bool:
    return not name.startswith((".", "__pycache__")) and not Path(place, name, "pyvenv.cfg").exists()


def _written_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116
    except OSError:
        return 0  # removed while we looked, or a dangling link
