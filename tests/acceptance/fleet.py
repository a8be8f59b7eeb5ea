"""Worker processes of a test: started, stopped, killed. None outlives the test."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.acceptance.ledger import VARIABLE, Ledger
from tests.conftest import wait_for

ROOT = Path(__file__).parents[2]
JOBS = "tests.acceptance.jobs_for_tests"


class WorkerProcess:
    """One worker in a process group of its own, with the lease keeper and children it starts."""

    def __init__(self, options: dict[str, Any], environment: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.acceptance.worker_process", json.dumps(options)],
                env=environment, cwd=ROOT, start_new_session=True, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        self.pid = self._process.pid

    def wait_ready(self) -> "WorkerProcess":
        """Returns when it works."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == "ready\n", f"the worker did not start: {line}{self.log.read_text()}"
        return self

    def send(self, number: int) -> None:
        """A signal to the worker alone."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9 of the worker; what it started is not touched."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM."""
        self._process.terminate()

    def wait(self, timeout_s: float = 20) -> int:
        """The exit code."""
        return self._process.wait(timeout_s)

    def summary(self, timeout_s: float = 20) -> dict[str, int]:
        """What it printed at its end."""
        said, _ = self._process.communicate(timeout=timeout_s)
        assert self._process.returncode == 0, self.log.read_text()
        found: dict[str, int] = json.loads(said.splitlines()[-1])
        return found

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def children(self) -> list[int]:
        """Processes it started, by id."""
        return children_of(self.pid)

    def end(self) -> None:
        """Whatever is left of its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGCONT)
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


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


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    return any(found == pid and state not in "ZX" for found, _, state in _processes())


def wait_ended(pids: list[int], timeout_s: float = 10) -> None:
    """Returns when none of them is alive."""
    wait_for(lambda: not any(is_alive(pid) for pid in pids), timeout_s=timeout_s)


def _processes() -> Iterator[tuple[int, int, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                yield int(entry.name), int(parent), state
