"""SIGHUP to a worker without a supervisor: it ends gracefully, and its command line begins anew in the same process."""

import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path

from jobrunner.logs import SafeLogger

_log = SafeLogger("jobrunner.worker")


class Restart:
    """Whether this process is to begin anew, which keeps its id: systemd and containers do not see it end.

    Create it before modules are loaded, so that their exit handlers run before the restart.
    """

    def __init__(self) -> None:
        self._folder = Path.cwd()
        self._is_wanted = self._is_stopping = False
        atexit.register(self._begin_anew)

    def ask(self, ask_to_stop: Callable[[], object]) -> None:
        """Asks for it, once; changes nothing when the worker was asked to stop before."""
        if self._is_wanted or self._is_stopping:
            return
        self._is_wanted = True
        _log.info("worker exits to restart")
        ask_to_stop()

    def stop(self, ask_to_stop: Callable[[], object]) -> None:
        """Asks to stop for good: gracefully the first time, also when it ends already in order to begin anew."""
        was_wanted, self._is_wanted = self._is_wanted, False
        self._is_stopping = True
        if not was_wanted:
            ask_to_stop()

    def leave(self) -> None:
        """Ends the process at once, well, or begins anew."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._begin_anew()
        os._exit(0)

    def _begin_anew(self) -> None:
        if self._is_wanted:
            os.chdir(self._folder)
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - this very command line
