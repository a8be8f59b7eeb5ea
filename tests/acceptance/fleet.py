"""Worker processes of a test: started, stopped, killed. None outlives the test."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from jobrunner.soak.history import recorder
from tests.acceptance.forks import forks
from tests.acceptance.ledger import VARIABLE, Ledger
from tests.acceptance.worker_process import main
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
JOBS = "tests.acceptance.jobs_for_tests"
FRESH = "JOBRUNNER_TEST_FRESH"
"""A variable of workers that must begin as new interpreters do, not as forks of one that has imported things."""


class WorkerProcess:
    """One worker in a process group of its own, with the lease keeper and children it starts."""

    def __init__(self, options: dict[str, Any], environment: dict[str, str], log: Path) -> None:
        self.log = log
        log.touch()
        near, far = forks().Pipe(duplex=False)
        self._process = forks().Process(target=_work, args=(far, options, environment, log), daemon=True)
        self._process.start()
        far.close()
        self._said = os.fdopen(os.dup(near.fileno()))
        near.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def wait_ready(self) -> "WorkerProcess":
        """Returns when it works."""
        line = self._said.readline()
        assert line == "ready\n", f"the worker did not start: {line}{self.log.read_text()}"
        return self

    def send(self, number: int) -> None:
        """A signal to the worker alone."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL to the worker alone; its child processes are not touched."""
        self._process.kill()
        self.wait()

    def stop(self) -> None:
        """SIGTERM."""
        self._process.terminate()

    def wait(self, timeout_s: float = 20) -> int:
        """The exit code."""
        self._process.join(timeout_s)
        assert self._process.exitcode is not None, f"waited {timeout_s:g} s in vain for its end"
        return self._process.exitcode

    def summary(self, timeout_s: float = 20) -> dict[str, int]:
        """The output of the worker at its end."""
        assert self.wait(timeout_s) == 0, self.log.read_text()
        found: dict[str, int] = json.loads(self._said.read().splitlines()[-1])
        return found

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.is_alive()

    def children(self) -> list[int]:
        """Processes it started, by id."""
        return children_of(self.pid)

    def end(self) -> None:
        """Whatever is left of its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGCONT)
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()  # it may not have got as far as a group of its own
        self.wait()
        self._said.close()


def _work(far: Connection, options: dict[str, Any], environment: dict[str, str], log: Path) -> None:
    os.setsid()
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    for source, target in ((far.fileno(), 1), (os.open(log, os.O_WRONLY | os.O_APPEND), 2)):
        os.dup2(source, target)
    far.close()
    recorder.install_if_asked()
    if FRESH in environment:
        program = [sys.executable, "-m", "tests.acceptance.worker_process", json.dumps(options)]
        os.execve(sys.executable, program, environment)
    main(**options)


class Fleet:
    """Starts workers on one server and prefix. `modules` defaults to the jobs of the tests."""

    def __init__(self, url: str, prefix: str, folder: Path) -> None:
        self._common = {"url": url, "prefix": prefix}
        self._folder = folder
        self.ledger = Ledger(folder / "ledger")
        python_path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.environment = {**os.environ, VARIABLE: str(self.ledger.path), "PYTHONPATH": python_path}
        self.workers: list[WorkerProcess] = []

    def launch(self, environment: Mapping[str, str] | None = None, **options: Any) -> WorkerProcess:
        """A new worker that may not work yet; `environment` is added to that of all."""
        known = {"modules": [JOBS], "queues": ["t"], **self._common, **options}
        log = self._folder / f"worker{len(self.workers)}.log"
        self.workers.append(WorkerProcess(known, {**self.environment, **(environment or {})}, log))
        return self.workers[-1]

    def start(self, count: int = 1, **options: Any) -> list[WorkerProcess]:
        """New workers that work."""
        return [worker.wait_ready() for worker in [self.launch(**options) for _ in range(count)]]

    def start_one(self, **options: Any) -> WorkerProcess:
        """A new worker that works."""
        return self.start(**options)[0]

    def module(self, name: str, text: str) -> str:
        """A module that workers can load; returns its name."""
        (self._folder / f"{name}.py").write_text(text)
        return name

    def close(self) -> None:
        """Ends them all."""
        for worker in self.workers:
            worker.end()


def children_of(pid: int) -> list[int]:
    """Processes whose parent is `pid`, without those that ended."""
    return [child for child, parent, state in _processes() if parent == pid and state not in "ZX"]


def group_of(leader: int) -> list[int]:
    """Processes of the group that this one led, without those that ended."""
    return [pid for pid, _, state in _processes() if state not in "ZX" and _group(pid) == leader]


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    return any(found == pid and state not in "ZX" for found, _, state in _processes())


def wait_ended(pids: list[int], timeout_s: float = 10) -> None:
    """Returns when none of them is alive."""
    wait_for(lambda: not any(is_alive(pid) for pid in pids), timeout_s=timeout_s)


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _processes() -> Iterator[tuple[int, int, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                yield int(entry.name), int(parent), state
