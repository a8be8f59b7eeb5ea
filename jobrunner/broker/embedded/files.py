"""The folder of an embedded server: the names of its files, the place of its socket, its disk errors."""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from jobrunner.errors import EmbeddedServerError

OWN_REDIS: Final = "use your own Redis (--url redis://… or JOBRUNNER_URL)"
# unix(7): sun_path has 108 bytes on Linux and 104 on macOS and the BSDs; the last one is the NUL.
SOCKET_PATH_BYTES: Final = 103


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFiles:
    """The names in one server folder. `folder` is absolute and free of symbolic links."""

    folder: Path

    @property
    def start_lock(self) -> Path:
        """Held exclusively by a process that becomes or ceases to be a user, or starts or stops the server."""
        return self.folder / "start.lock"

    @property
    def users_lock(self) -> Path:
        """Held shared by every process that uses the server."""
        return self.folder / "users.lock"

    @property
    def always_lock(self) -> Path:
        """Held shared by users with `fsync="always"`; read when a server is started."""
        return self.folder / "users-fsync-always.lock"

    @property
    def server_lock(self) -> Path:
        """Held exclusively by the server process itself."""
        return self.folder / "server.lock"

    @property
    def alive_lock(self) -> Path:
        """Held shared by every process that uses the server; the guard waits until all of them have ended."""
        return self.folder / "users-alive.lock"

    @property
    def guard_lock(self) -> Path:
        """Held exclusively by the guard of the server (guard.py)."""
        return self.folder / "guard.lock"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def pid_file(self) -> Path:
        return self.folder / "server.pid"

    @property
    def socket(self) -> Path:
        """The path of the server's socket: in the folder, or below the temporary folder when that path is too long."""
        near = self._near_socket
        if len(os.fsencode(near)) <= SOCKET_PATH_BYTES:
            return near
        return self._recorded_socket() or self._far_socket()

    def create(self) -> None:
        """Makes the folder, private and ignored by git, where it is missing. Raises OSError, EmbeddedServerError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.check_own()
        with suppress(FileExistsError), (self.folder / ".gitignore").open("x") as ignore:
            ignore.write("*\n")

    def check_own(self) -> None:
        """Raises EmbeddedServerError for a folder that another user made or may write, or planted files in.

        That user's own server could run in it, and get every payload; or the files could be links, through which this
        process would overwrite other files. Raises OSError.
        """
        at = self.folder.stat()
        if at.st_uid != os.getuid():
            if not os.access(self.folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.folder))
            raise self._foreign(self.folder, "belongs to another user")
        if at.st_mode & 0o022:
            raise self._foreign(self.folder, "may be written by other users (chmod go-w makes it yours)")
        locks = (self.start_lock, self.users_lock, self.alive_lock, self.always_lock, self.server_lock, self.guard_lock)
        for path in (self.log, self.pid_file, *locks):
            with suppress(FileNotFoundError):
                found = path.lstat()
                if not stat.S_ISREG(found.st_mode):
                    raise self._foreign(path, "is a link or no file")
                if found.st_uid != os.getuid():
                    raise self._foreign(path, "belongs to another user")
        for path in (self._near_socket, self.folder / "appendonlydir"):
            with suppress(FileNotFoundError):
                if path.lstat().st_uid != os.getuid():
                    raise self._foreign(path, "belongs to another user")

    def _foreign(self, path: Path, what: str) -> EmbeddedServerError:
        return EmbeddedServerError(
            f"{path} {what}: the embedded server uses nothing that others could have planted; remove it if it is of "
            f"no use, name another folder (embedded:///path), or {OWN_REDIS}"
        )

    def place_socket(self) -> Path:
        """The path for a new server's socket, its folder made. Raises OSError, EmbeddedServerError."""
        path, link = self.socket, self._near_socket
        if path == link:
            return path
        if not path.parent.parent.is_dir():  # the TMPDIR of an earlier starter is gone
            path = self._far_socket()
        _make_private(path)
        link.unlink(missing_ok=True)
        link.symlink_to(path)
        return path

    def remove_socket_folder(self) -> None:
        """Removes the folder of a socket below the temporary folder; call it when the server is gone."""
        path, link = self.socket, self._near_socket
        if path != link:
            for forget in (path.unlink, link.unlink, path.parent.rmdir):
                with suppress(OSError):
                    forget()

    @property
    def _near_socket(self) -> Path:
        return self.folder / "server.sock"

    @property
    def _private_name(self) -> str:
        return f"jobrunner-{os.getuid()}-{sha256(os.fsencode(self.folder)).hexdigest()[:16]}"

    def _far_socket(self) -> Path:
        return Path(tempfile.gettempdir(), self._private_name, "server.sock")

    def _recorded_socket(self) -> Path | None:
        # Two processes may have different TMPDIRs: the starter's counts, and a link in the folder points to it. A link
        # that was copied along with another folder leads to another server; its name has that folder's digest.
        with suppress(OSError):
            target = self._near_socket.readlink()
            return target if target.parent.name == self._private_name else None
        return None


@contextmanager
def disk_errors_explained(folder: Path) -> Iterator[None]:
    """Turns an OSError of the block into an EmbeddedServerError that names the remedy."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename is not None else ""
        what = f"the embedded server cannot use the folder {folder}: {error.strerror}{where}"
        raise EmbeddedServerError(f"{what}; {_remedy(error)}, or {OWN_REDIS}") from error


def _remedy(error: OSError) -> str:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "free some disk space"
        case errno.ENOTDIR | errno.EEXIST:
            return "name a folder, not a file (embedded:///path)"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return "make it writable for this user, name another (embedded:///path)"
        case _:
            return "name another (embedded:///path)"


def _make_private(socket: Path) -> None:
    folder = socket.parent
    if len(os.fsencode(socket)) > SOCKET_PATH_BYTES:
        raise EmbeddedServerError(f"{socket} is too long for a socket: set a shorter TMPDIR, or {OWN_REDIS}")
    folder.mkdir(mode=0o700, exist_ok=True)
    at = folder.lstat()
    if not stat.S_ISDIR(at.st_mode) or at.st_uid != os.getuid() or at.st_mode & 0o077:
        raise EmbeddedServerError(f"{folder} is not this user's alone: remove it, set TMPDIR, or {OWN_REDIS}")
