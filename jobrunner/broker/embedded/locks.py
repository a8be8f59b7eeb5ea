"""The locks in the folder of an embedded server: they count its users, and show whether a server runs.

Invariants:

* Every lock is a flock(2), so the kernel takes it from a process that dies; no file has to be cleaned up. *
`server.lock` is held exclusively by the server process itself, through a descriptor it inherits. So it is held as long
as a server may write to the append-only file, whatever became of socket, pid file and starter. * `users.lock` is held
shared by every process that uses the server. It is taken and released only by the holder of `start.lock`, so no user
comes while the last user leaves. * `users-alive.lock` is held shared by the same processes, and the guard waits for it.
It is a file of its own: a process that tests whether it is the last user loses its share for a moment, in which the
kernel could wake the guard. * `guard.lock` is held exclusively by the guard process (guard.py). Its starter and the
guard itself take and release it under `start.lock`, so a server that has users has a guard.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from jobrunner.broker.embedded.files import OWN_REDIS
from jobrunner.clock import monotonic, sleep
from jobrunner.errors import EmbeddedServerError

# Longer than any holder of start.lock needs: neither a start nor a stop takes more than 10 s.
TURN_TIMEOUT_S: Final = 30.0
# As long as a guard or a user that leaves holds start.lock, where no server has to be started or stopped.
COUNT_TIMEOUT_S: Final = 0.25
POLL_S: Final = 0.01
_MOST_READINGS: Final = 20


class Share:
    """This process's share in a lock file.

    1. Holds a shared lock from `enter` to `leave`, or to the death of the process.
    2. Tells a forked child from its parent: the child has no share until it enters, and never releases its
       parent's.
    3. Detects a deleted or replaced file: such a share no longer counts.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._pid = 0

    @property
    def counts(self) -> bool:
        """Whether this process, and not its parent, holds a share in the file that is at the path now."""
        return self._fd is not None and self._pid == os.getpid() and _is_at(self._fd, self._path)

    def moved_to(self, path: Path) -> None:
        """Sets the path to which the lock file was moved."""
        self._path = path

    def enter(self) -> None:
        """Takes a share, unless this process has one, under start.lock. Raises OSError, EmbeddedServerError."""
        if self.counts:
            return
        self.leave()
        self._fd = _wait_for_lock(self._path, shared=True)
        self._pid = os.getpid()

    def leave(self) -> bool:
        """Releases the share; True when no other process has one, which is certain only under start.lock."""
        fd, self._fd = self._fd, None
        if fd is None:
            return False
        if self._pid != os.getpid():
            os.close(fd)  # fork shares the lock itself: to unlock it here would unlock it for the parent
            return False
        try:
            return _is_at(fd, self._path) and _flock(fd, fcntl.LOCK_EX, self._path)
        finally:
            unlock(fd)


@contextmanager
def turn(path: Path) -> Iterator[None]:
    """Holds the lock at `path` exclusively, among threads as among processes.

    Raises OSError, and EmbeddedServerError after 30 s of waiting.
    """
    fd = _wait_for_lock(path)
    try:
        yield
    finally:
        unlock(fd)


def try_lock(path: Path, *, shared: bool = False) -> int | None:
    """Locks the file at `path`, made if missing, without waiting: a descriptor, or None. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        locked = _flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, path) and _is_at(fd, path)
    except BaseException:
        os.close(fd)
        raise
    if locked:
        return fd
    os.close(fd)
    return None


def unlock(fd: int) -> None:
    """Ends the lock of a descriptor and closes it."""
    # Unlock before closing: a child forked meanwhile has a copy of the descriptor, which would keep the lock.
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def is_held_by(path: Path, pid: int) -> bool:
    """Whether process `pid` has the file at `path` open, as far as this process may read proc(5); False without it."""
    try:
        at = path.stat()
        return any(os.path.samestat(one.stat(), at) for one in Path(f"/proc/{pid}/fd").iterdir() if one.exists())
    except OSError:
        return False


def is_locked(path: Path) -> bool:
    """Whether any process holds the lock at `path` exclusively; False without the file. Raises OSError."""
    if not path.exists():
        return False
    fd = try_lock(path, shared=True)  # shared, so two probes at the same time do not see each other
    if fd is not None:
        unlock(fd)
    return fd is None


def count_shares(path: Path, *, start_lock: Path) -> int | None:
    """How many processes share the lock at `path`, or None where that is unknown. Raises OSError.

    Zero is certain. Other numbers come from proc_locks(5), which exists on Linux and shows one PID namespace. Unknown
    while another process starts or stops the server.
    """
    if not path.exists():
        return 0
    start = next((fd for _ in tries(COUNT_TIMEOUT_S) if (fd := try_lock(start_lock)) is not None), None)
    if start is None:
        return None
    try:
        alone = try_lock(path)
        if alone is not None:
            unlock(alone)
            return 0
        return _listed_shares(path) or None
    finally:
        unlock(start)


def tries(timeout_s: float) -> Iterator[None]:
    """Yields at once, then every 10 ms until `timeout_s` have passed."""
    end = monotonic() + timeout_s
    yield
    while monotonic() < end:
        sleep(POLL_S)
        yield


def _flock(fd: int, mode: int, path: Path) -> bool:
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise EmbeddedServerError(
            f"the file system of {path.parent} does not support flock ({error.strerror}): "
            f"name a folder on a local disk (embedded:///path), or {OWN_REDIS}"
        ) from error
    return True


def _wait_for_lock(path: Path, *, shared: bool = False) -> int:
    for _ in tries(TURN_TIMEOUT_S):
        fd = try_lock(path, shared=shared)
        if fd is not None:
            return fd
    raise EmbeddedServerError(
        f"another process has held {path} for {TURN_TIMEOUT_S:g} s, longer than the embedded server takes "
        f"to start or stop: end that process, or {OWN_REDIS}"
    )


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _listed_shares(path: Path) -> int:
    # The kernel writes a long list page by page, and omits or repeats lines when any process takes or releases a lock
    # between two pages. So a number counts when two readings in a row agree.
    before, shares = -1, _shares_once(path)
    for _ in range(_MOST_READINGS):
        if shares == before:
            break
        before, shares = shares, _shares_once(path)
    return shares


def _shares_once(path: Path) -> int:
    # "1: FLOCK  ADVISORY  READ 1234 08:02:5678 0 EOF", the device in hexadecimal.
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return 0
    at = path.stat()
    place = f"{os.major(at.st_dev):02x}:{os.minor(at.st_dev):02x}:{at.st_ino}"
    fields = [line.split() for line in lines]
    return sum(1 for field in fields if [field[1], *field[3:6:2]] == ["FLOCK", "READ", place])
