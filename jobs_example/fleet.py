"""The worker processes of the demo: real ones, started like anyone would start them."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from jobs_example.jobs import WORKER_VARIABLE

Executor = Literal["threads", "processes", "async"]

GRACE_S = 5.0
"""How long a worker may finish what it has begun when the demo is over."""


@dataclass(slots=True, kw_only=True)
class WorkerProcess:
    """One worker, alive or not; its output is in the file `log`."""

    name: str
    executor: Executor
    concurrency: int
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
    def state(self) -> Literal["alive", "killed", "ended"]:
        """Alive, killed by the demo, or ended in any other way."""
        if self.killed:
            return "killed"
        return "alive" if self.alive else "ended"


class Fleet:
    """Starts workers with `environment` added to this process's own; leaving the `with` stops them all.

    1. `start` runs ``jobrunner work`` in a process of its own.
    2. `kill` is a kill -9: no farewell, no clean-up, as when the machine takes it.
    3. The end is a SIGTERM to each, and a kill for those that do not go.
    """

    def __init__(self, modules: tuple[str, ...], environment: Mapping[str, str], logs: Path) -> None:
        self._modules = modules
        self._environment = {**os.environ, **environment}
        self._logs = logs
        self.workers: list[WorkerProcess] = []

    def __enter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        alive = [worker for worker in self.workers if worker.alive]
        for worker in alive:
            worker.process.terminate()
        for worker in alive:
            try:
                worker.process.wait(GRACE_S + 2)
            except subprocess.TimeoutExpired:
                self.kill(worker.name)

    def start(self, name: str, executor: Executor, concurrency: int) -> WorkerProcess:
        """A new worker, which serves every queue of the modules."""
        command = [sys.executable, "-m", "jobrunner", "work", *self._modules]
        options = ["--executor", executor, "--concurrency", str(concurrency), "--grace", str(GRACE_S)]
        log = self._logs / f"worker-{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - the command is made of constants
                [*command, *options],
                env={**self._environment, WORKER_VARIABLE: name},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        worker = WorkerProcess(name=name, executor=executor, concurrency=concurrency, process=process, log=log)
        self.workers.append(worker)
        return worker

    def kill(self, name: str) -> WorkerProcess:
        """kill -9 of the worker of that name; returns when its process is gone."""
        worker = next(worker for worker in self.workers if worker.name == name)
        worker.process.kill()
        worker.process.wait()
        worker.killed = True
        return worker
