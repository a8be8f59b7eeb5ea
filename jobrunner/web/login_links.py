"""Login links: tokens that let in one browser each, and the files by which the user who started a dashboard gets more.

`dashboard-PORT.json`, in a folder that nobody else can read, has the address and a secret with which `jobrunner
dashboard --link` asks for one more link; `open-PORT.html` leads a browser to the first one, as `ps` shows the arguments
of a browser to all users. Both are removed when the dashboard ends.
"""

import hmac
import json
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path

from jobrunner.errors import InvalidOption
from jobrunner.web.auth import Identity, LoginAuth
from jobrunner.web.roles import Role


class LoginLinks(LoginAuth):
    """Login links: each logs in one browser as an admin. A user who can read this process's output can use one."""

    by_link = True
    _MOST = 20

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self.owner = secrets.token_urlsafe(32)
        """The secret of the user who started the dashboard, for requests of more links (see `left_for_owner`)."""
        self._unused: dict[bytes, None] = {}
        self._lock = threading.Lock()

    def new_token(self) -> str:
        """A token for one more link. It is good until it is used; of many unused ones the oldest end."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._unused[self._digest(token)] = None
            while len(self._unused) > self._MOST:
                del self._unused[next(iter(self._unused))]
        return token

    def is_owner(self, given: str) -> bool:
        """Whether that is the owner's secret."""
        return hmac.compare_digest(given.encode(), self.owner.encode())

    def accept(self, given: str) -> Identity | None:
        """The admin "local", once for each token."""
        with self._lock:
            # Found by its digest, so the time that takes says nothing of the token.
            is_new = self._unused.pop(self._digest(given), False) is None
        return self.session_of("local") if is_new else None

    def session_of(self, name: str) -> Identity | None:
        """The admin "local"."""
        return Identity(name="local", role=Role.ADMIN) if name == "local" else None

    def signing_key(self) -> bytes:
        """Of this process: its sessions end with it."""
        return self._key

    def _digest(self, token: str) -> bytes:
        return hmac.digest(self._key, token.encode("utf-8", "surrogatepass"), "sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningDashboard:
    """A dashboard that runs: its address, and the secret of its owner."""

    url: str
    owner: str


@contextmanager
def left_for_owner(port: int, url: str, owner: str, link: str) -> Iterator[Path | None]:
    """Leaves both files within the block; yields the page that leads to `link`, None where there is no safe folder."""
    try:
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(folder)
        page, facts = folder / f"open-{port}.html", _facts_of(folder, port)
        _write(facts, json.dumps({"url": url, "owner": owner}))
        _write(page, f'<meta charset="utf-8"><meta http-equiv="refresh" content="0; url={escape(link)}">')
    except OSError:  # a container without a home, a full disk: one link less, and no reason not to serve
        yield None
        return
    try:
        yield page
    finally:
        for path in (page, facts):
            with suppress(OSError):
                path.unlink()


def running_on(port: int) -> RunningDashboard:
    """Reads the file of the dashboard on that port. Raises InvalidOption when this user runs none there."""
    try:
        folder = _folder()
        _check_private(folder)
        said = json.loads(_facts_of(folder, port).read_text("utf-8"))
        return RunningDashboard(url=str(said["url"]), owner=str(said["owner"]))
    except (OSError, ValueError, KeyError) as error:
        raise InvalidOption(
            f"this user runs no dashboard with login links on port {port}; name its --port, or start one"
        ) from error


def _folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime, "jobrunner")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "jobrunner")


def _facts_of(folder: Path, port: int) -> Path:
    return folder / f"dashboard-{port}.json"


def _check_private(folder: Path) -> None:
    at = folder.lstat()
    if not stat.S_ISDIR(at.st_mode) or at.st_uid != os.getuid() or at.st_mode & 0o077:
        raise PermissionError(f"{folder} is not this user's alone")


def _write(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
