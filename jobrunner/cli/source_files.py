"""The source files of a program, which `work --reload` watches."""

import os
from collections.abc import Iterator
from pathlib import Path

from jobrunner.clock import sleep

_LOOK_EVERY_S = 1.0
_QUIET_S = 0.3
_MOST_LOOKS = 20


class SourceFiles:
    """Finds changed .py files below a folder. Leaves out hidden folders and virtual environments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written = dict(self._look())

    def await_changes(self) -> list[str]:
        """Waits for a change and until no more follow, as one save often makes several writes: a temporary file,
        several files, a formatter afterwards. Returns the changed paths, sorted."""
        paths: set[str] = set()
        while not paths:
            sleep(_LOOK_EVERY_S)
            paths.update(self.changed())
        for _ in range(_MOST_LOOKS):
            sleep(_QUIET_S)
            if not (more := self.changed()):
                break
            paths.update(more)
        return sorted(paths)

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
    return not name.startswith((".", "__pycache__")) and not _is_environment(place, name)


def _is_environment(place: str, name: str) -> bool:
    return os.path.exists(os.path.join(place, name, "pyvenv.cfg"))  # noqa: PTH110, PTH118 - Path.exists may raise


def _written_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116
    except OSError:
        return 0  # removed meanwhile, or a dangling link
