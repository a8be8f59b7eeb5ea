"""The id and release of a worker, its stage, and the requests to it."""

import os
import re
import socket
from enum import Enum

from jobrunner.attempt import new_mark
from jobrunner.errors import NewerFormat, OlderFormat, WorkerBroken
from jobrunner.logs import SafeLogger
from jobrunner.loop import Signal
from jobrunner.settings import MOST_RELEASE, check_release, file_settings

_STOP_NOW = 2
RELEASE_VARIABLES = (
    "SENTRY_RELEASE", "GIT_COMMIT", "HEROKU_BUILD_COMMIT", "HEROKU_SLUG_COMMIT", "SOURCE_VERSION", "RENDER_GIT_COMMIT",
    "RAILWAY_GIT_COMMIT_SHA", "KOYEB_GIT_SHA", "GAE_VERSION", "K_REVISION", "CI_COMMIT_SHA", "GITHUB_SHA",
)  # fmt: skip
"""Variables in which hosts and build services put the deployed version; the first that is set counts."""
_log = SafeLogger("jobrunner.worker")


def new_worker_id() -> str:
    """A new id, host.pid.mark, with a random mark, of the characters that names may have."""
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:60] or "host"
    return f"{host}.{os.getpid()}.{new_mark()}"


def configured_release() -> str:
    """The release of this process where no option names one: JOBRUNNER_RELEASE, then the file, then the first variable
    of the host or the build; "" when there is none. Raises InvalidOption.

    The host's variables were not set for this package: one with an odd value is cleaned, and never stops a worker.
    """
    if release := os.environ.get("JOBRUNNER_RELEASE", ""):
        check_release(release, "JOBRUNNER_RELEASE")
        return release
    if (stored := file_settings().release) is not None:
        return stored
    for name in RELEASE_VARIABLES:
        if found := os.environ.get(name, "").strip():
            release = "".join(one if one.isprintable() else "?" for one in found)[:MOST_RELEASE].strip()
            if release != found:
                _log.warning("the release was shortened or cleaned", variable=name, release=release)
            return release
    return ""


class RunUntil(Enum):
    """When `Worker.run` returns without being asked to stop."""

    STOPPED = "never"
    EMPTY = "nothing is waiting or pending"
    DRAINED = "nothing is scheduled either"


class WorkerState:
    """The stage of a worker and the requests to it. Any thread changes it; `wait` returns after a change."""

    def __init__(self) -> None:
        self.until = RunUntil.STOPPED
        self.is_working = False
        self.has_begun = False
        """Whether the worker ever began to work. Its parts, its id and its requests to stop belong to one run."""
        self.waits_for = ""
        """The reason why a starting worker waits for its server; '' when it does not."""
        self.is_quiet = False
        """Whether an operator made it quiet: it takes no new tasks."""
        self.gate = ""
        """The reason of the closed gate that keeps it from taking tasks; '' while all are open."""
        self.is_stopping = False
        """Whether the worker stops or will stop: by a request, a command of the dashboard, or itself."""
        self.stops_asked = 0
        """The number of stop requests by the program, signals included. A stop that began otherwise does not count: the
        first signal after it takes no time from running tasks."""
        self.refused: NewerFormat | OlderFormat | None = None
        """The server's answer to a version that must leave the prefix."""
        self.broken: WorkerBroken | None = None
        """The loss for which `run` ends."""
        self._changed = Signal()

    @property
    def must_stop_now(self) -> bool:
        """Whether a second request to stop came: running tasks get no more time."""
        return self.stops_asked >= _STOP_NOW

    def ask_to_stop(self) -> None:
        """Requests a graceful stop; a second call requests a stop at once. Safe in a signal handler and in any
        thread."""
        self.stops_asked += 1
        self.stop_gracefully()

    def stop_gracefully(self) -> None:
        """Requests a stop for a reason of the worker's own or by a command of the dashboard."""
        self.is_stopping = True
        self._changed.set()

    def stop_now(self) -> None:
        """Requests a stop at once: running tasks get no more time."""
        self.stops_asked = max(self.stops_asked, _STOP_NOW)
        self.stop_gracefully()

    def begin_work(self) -> None:
        """Records that the worker begins to work."""
        self.is_working = self.has_begun = True

    def begin_stop(self) -> None:
        """Records that the worker stops; a stop without an earlier request counts as a request of the program."""
        self.is_working = False
        if not self.is_stopping:
            self.ask_to_stop()

    def refuse(self, error: NewerFormat | OlderFormat) -> None:
        """Records that this version must leave the prefix."""
        self.refused = error
        self._changed.set()

    def wait(self, timeout_s: float) -> None:
        """Waits until the state changes, at most `timeout_s`."""
        self._changed.wait(timeout_s)
