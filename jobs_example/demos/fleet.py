"""The worker processes of a demo, started by the command that a user would type."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from jobs_example.demos.processes import Process, descendants, kill_all

GRACE_S = 5.0
"""How long a worker may finish what it has begun when the demo is over."""

State = Literal["alive", "killed", "ended"]


@dataclass(slots=True, kw_only=True)
class WorkerProcess:
    """One worker, alive or not: ``jobrunner WORDS``; its output is in the file `log`."""

    name: str
    kind: str
    """The description of the worker in messages."""
    words: tuple[str, ...]
    process: subprocess.Popen[bytes] = field(repr=False)
    log: Path
    killed: bool = False

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    @property
    def state(self) -> State:
        """Alive, killed by the demo, or ended in any other way."""
        if self.killed:
            return "killed"
        return "alive" if self.alive else "ended"


class Fleet:
    """Starts workers with `environment` added to this process's own; leaving the `with` stops them all.

    1. `start` runs ``jobrunner`` with the words given in a process of its own.
    2. `kill` is a kill -9: no clean-up, as when the machine goes down.
    3. The end is a SIGTERM to each, a kill for those that do not go, and for what they started and left behind.
    """

    def __init__(self, environment: Mapping[str, str], logs: Path) -> None:
        self._environment = {**os.environ, **environment}
        self._logs = logs
        self.workers: list[WorkerProcess] = []
        self._orphans: list[Process] = []
        self._lifeline, self._end_of_lifeline = os.pipe()

    def __enter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        alive = [worker for worker in self.workers if worker.alive]
        for worker in alive:
            self._orphans += descendants(worker.pid)
            worker.process.terminate()
        for worker in alive:
            try:
                worker.process.wait(GRACE_S + 2)
            except subprocess.TimeoutExpired:
                self.kill(worker.name)
        kill_all(self._orphans)
        os.close(self._lifeline)
        os.close(self._end_of_lifeline)

    def start(self, name: str, kind: str, *words: str, environment: Mapping[str, str] | None = None) -> WorkerProcess:
        """A new worker: ``jobrunner WORDS``. A plain worker stops when this process was killed."""
        lifeline = [f"--lifeline={self._lifeline}"] if words[0] == "work" else []
        log = self._logs / f"worker-{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - the demo's own words
                [sys.executable, "-m", "jobrunner", *words, "--grace", str(GRACE_S), *lifeline],
                env={**self._environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                pass_fds=[self._lifeline],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        worker = WorkerProcess(name=name, kind=kind, words=words, process=process, log=log)
        self.workers.append(worker)
        return worker

    def kill(self, name: str) -> WorkerProcess:
        """kill -9 of the worker of that name; returns when its process is gone."""
        worker = next(worker for worker in self.workers if worker.name == name)
        self._orphans += descendants(worker.pid)
        worker.process.kill()
        worker.process.wait()
        worker.killed = True
        return worker
