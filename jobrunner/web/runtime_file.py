"""What a running dashboard leaves for the user who started it, in a folder that nobody else can read.

`dashboard-PORT.json` has the address and a secret with which `jobrunner dashboard --link` asks for one more login
link; `open-PORT.html` leads a browser to the first one, as the arguments of a browser are shown to all users by `ps`.
Both are removed when the dashboard ends.
"""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path

from jobrunner.errors import InvalidOption


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
