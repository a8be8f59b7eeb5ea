"""File descriptors that this process cannot work without, and whether a job closed one.

A job that calls os.closerange, as code that makes a daemon does, closes what its worker works with. The numbers are
given to other files then, so what looks open may be another file: a descriptor is known by its inode.
"""

import os
from contextlib import suppress

_known: dict[int, tuple[int, int, str]] = {}


def note(descriptor: int, what: str) -> None:
    """Watches this descriptor: from now on `lost_descriptors` reports it when it is closed."""
    found = os.fstat(descriptor)
    _known[descriptor] = (found.st_dev, found.st_ino, what)


def forget(descriptor: int) -> None:
    """Stops watching a descriptor that its owner closes."""
    _known.pop(descriptor, None)


def lost_descriptors() -> list[str]:
    """The purposes of watched descriptors that are closed or refer to another file now."""
    return sorted({what for descriptor, (*identity, what) in list(_known.items()) if _identity(descriptor) != identity})


class Canary:
    """A watched descriptor opened only as a probe: whatever closes all descriptors closes it, too."""

    def __init__(self, what: str) -> None:
        self._descriptor, other = os.pipe()
        os.close(other)
        note(self._descriptor, what)

    def close(self) -> None:
        """Stops watching it, and closes it unless it was lost."""
        was_lost = _identity(self._descriptor) != list(_known.get(self._descriptor, (0, 0, ""))[:2])
        forget(self._descriptor)
        if not was_lost:
            os.close(self._descriptor)


def _identity(descriptor: int) -> list[int]:
    with suppress(OSError):
        found = os.fstat(descriptor)
        return [found.st_dev, found.st_ino]
    return []
