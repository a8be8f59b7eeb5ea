"""Processes of the contenders, each in a session of its own, so that it ends with its children."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from benchmarks.processes import members

ROOT = Path(__file__).resolve().parent.parent
_GRACE_S = 8.0


class ChildFailed(Exception):
    """A process of a contender ended too early or with an error; the message ends with its last lines of output."""


class Child:
    """Runs at the repository's root while the `with` block does; then SIGTERM to the group, then SIGKILL to all."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._command = command
        self._environment = whole_environment(environment)
        self._log = log

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, cwd=ROOT, start_new_session=True, stdout=log, stderr=log
            )
        self.pid = self._process.pid
        return self

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self._signal(signal.SIGKILL)
        for pid in members([self.pid]):  # those with a process group of their own
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def check_alive(self) -> None:
        """Raises ChildFailed when the process has ended."""
        if self._process.poll() is not None:
            raise _failure(self._command, self._process.returncode, self._log.read_text(errors="replace"))

    def words(self) -> str:
        """The last lines it wrote."""
        return _last_lines(self._log.read_text(errors="replace"))

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def whole_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process at the repository's root.

    Python stores bytecode there, as pip does for the peers: else a source tree is compiled at each start, which took
    half of the time of an import.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPATH": str(ROOT), **environment}


def run_to_end(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Runs a process and returns what it printed. Raises ChildFailed when its exit code is not 0."""
    done = subprocess.run(command, env=whole_environment(environment), cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise _failure(command, done.returncode, done.stderr)
    return done.stdout


def _failure(command: Sequence[str], code: int, written: str) -> ChildFailed:
    return ChildFailed(f"{' '.join(command)} ended with {code}: {_last_lines(written)}")


def _last_lines(written: str) -> str:
    return " | ".join(written.splitlines()[-6:]) or "it wrote nothing"
