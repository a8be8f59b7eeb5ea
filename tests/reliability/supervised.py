"""`jobrunner work --processes N` on a stage, as an operator or systemd runs it."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Self

from tests.acceptance.fleet import JOBS, ROOT, children_of
from tests.reliability.stage import PREFIX, QUEUE, Stage

_LOOK_S = 0.02
_LONGEST_S = 120.0


class Supervised:
    """A supervisor and its worker processes; as a context manager it kills the remaining processes at the end."""

    def __init__(self, stage: Stage, processes: int, **options: object) -> None:
        self._log = stage.folder / "supervisor.log"
        self.processes = processes
        known = {"url": stage.server.url, "prefix": PREFIX, "queue": QUEUE, "processes": processes, **options}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in known.items()]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jobrunner", "work", JOBS, "--log-format=json", *words],
                cwd=ROOT, env=stage.fleet.environment, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # the workers see that and end
        self._process.wait()

    def pids(self) -> list[int]:
        """The ids of the worker processes, including those that start or end."""
        return children_of(self._process.pid)

    def logged(self, event: str) -> int:
        """The number of log lines with that event, of the supervisor and its processes."""
        return self._log.read_text().count(f'"event": "{event}"')

    def left_with(self) -> list[int]:
        """How many tasks each process had in hand when it was asked to stop."""
        stopping = (line for line in self._log.read_text().splitlines() if '"event": "worker stopping"' in line)
        return [json.loads(line)["in_hand"] for line in stopping]

    def wait_rolled(self, done: int, look: Callable[[], object] = lambda: None) -> None:
        """Returns when so many rolls are over, stopped ones too; calls `look` meanwhile."""
        ends = time.monotonic() + _LONGEST_S
        while self.logged("roll is complete") + self.logged("roll is stopped") < done:
            assert time.monotonic() < ends, f"waited in vain for the end of roll {done}"
            look()
            time.sleep(_LOOK_S)

    def roll(self) -> None:
        """SIGHUP."""
        self._process.send_signal(signal.SIGHUP)

    def stop(self, timeout_s: float = 60) -> int:
        """SIGTERM; returns the exit code."""
        self._process.terminate()
        return self._process.wait(timeout_s)
