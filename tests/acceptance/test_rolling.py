"""SIGHUP to `jobrunner work`: new code, and nothing lost or done twice."""

import os
import pty
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobrunner.client.client import Client
from jobrunner.task import Task, new_id
from tests.acceptance.test_cli_work import worker_pids

pytestmark = pytest.mark.processes

VERSION = """
import os, time
from pathlib import Path
from jobrunner import job

@job(queue="v")
def version() -> int:
    return {version}

@job(queue="v")
def hold() -> int:
    Path("held").touch()
    while not Path("go").exists():
        time.sleep(0.005)
    return {version}

kept = []

@job(queue="v")
def leak() -> int:
    kept.append(b"x" * (80 * 2**20))
    return os.getpid()
"""


@pytest.fixture
def jobs(shell: Any) -> Any:
    deploy(shell, 1)
    return shell


def deploy(shell: Any, version: int | str) -> None:
    """Writes the module. Its time differs each time, else Python might take what it compiled before: it looks at whole
    seconds."""
    path: Path = shell.write("versioned.py", VERSION.format(version=version))
    os.utime(path, (0, len(str(version)) * 1000 + (version if isinstance(version, int) else 0)))


def enqueue(client: Client, job: str) -> str:
    return client.enqueue(Task(id=new_id("v"), type=job, queue="v", payload=b"{}")).id


def result(client: Client, job: str) -> Any:
    return client.task(enqueue(client, job)).result(timeout=30)


def test_a_roll_brings_new_code_and_the_task_at_hand_ends_with_the_old(
    jobs: Any, client: Client, wait_until: Callable[..., Any]
) -> None:
    supervisor = jobs.start("work", "versioned", "--processes", "2")
    before = wait_until(lambda: len(found := worker_pids(client)) == 2 and found, timeout_s=60)
    held = enqueue(client, "hold")
    wait_until((jobs.folder / "held").exists)

    deploy(jobs, 2)
    supervisor.send_signal(signal.SIGHUP)
    wait_until(lambda: len(set(worker_pids(client)) - set(before)) >= 1, timeout_s=60)
    (jobs.folder / "go").touch()
    wait_until(lambda: len(now := worker_pids(client)) == 2 and not set(now) & set(before), timeout_s=60)

    assert client.task(held).result(timeout=30) == 1
    assert result(client, "version") == 2
    supervisor.terminate()
    assert supervisor.wait(30) == 0


@pytest.mark.slow
def test_new_code_that_does_not_load_leaves_the_old_at_work(
    jobs: Any, client: Client, wait_until: Callable[..., Any]
) -> None:
    supervisor = jobs.start("work", "versioned", "--processes", "2", "--log-format", "json")
    before = wait_until(lambda: len(found := worker_pids(client)) == 2 and found, timeout_s=60)

    deploy(jobs, "this is no code")
    supervisor.send_signal(signal.SIGHUP)
    said = next(line for line in supervisor.stderr if "roll is stopped" in line)

    assert '"level": "error"' in said
    assert worker_pids(client) == before
    assert result(client, "version") == 1
    supervisor.terminate()
    assert supervisor.wait(30) == 0


def test_a_worker_alone_begins_anew_under_the_same_id(
    jobs: Any, client: Client, wait_until: Callable[..., Any]
) -> None:
    worker = jobs.start("work", "versioned")
    held = enqueue(client, "hold")
    wait_until((jobs.folder / "held").exists, timeout_s=60)

    deploy(jobs, 2)
    worker.send_signal(signal.SIGHUP)
    (jobs.folder / "go").touch()

    assert client.task(held).result(timeout=10) == 1
    wait_until(lambda: result(client, "version") == 2, timeout_s=60)
    assert worker_pids(client) == [worker.pid]
    worker.terminate()
    assert worker.wait(30) == 0


STARTED_TWICE = """
import os, signal
from pathlib import Path

if os.getsid(0) != os.getpid():
    os.setsid()  # away from the terminal of the tests, whose end SIGHUP would stand for
with Path("starts").open("a") as starts:
    starts.write("x")
if Path("starts").stat().st_size == 2:
    os.kill(os.getpid(), signal.SIGHUP)
"""


def test_a_second_sighup_that_comes_while_a_worker_begins_anew_is_another_restart(
    jobs: Any, client: Client, wait_until: Callable[..., Any]
) -> None:
    """Between its old and its new code a process has no handler: a deploy that reloads twice ended the worker."""
    deploy(jobs, 1)
    path = jobs.folder / "versioned.py"
    path.write_text(path.read_text() + STARTED_TWICE)
    worker = jobs.start("work", "versioned")
    wait_until(lambda: worker_pids(client) == [worker.pid], timeout_s=60)

    worker.send_signal(signal.SIGHUP)

    starts = jobs.folder / "starts"
    wait_until(lambda: starts.read_text() == "xxx" or worker.poll() is not None, timeout_s=60)
    assert worker.poll() is None
    assert client.task(enqueue(client, "version")).result(timeout=30) == 1
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0


@pytest.mark.slow
def test_a_worker_that_begins_anew_can_be_stopped_meanwhile(
    jobs: Any, client: Client, wait_until: Callable[..., Any]
) -> None:
    worker = jobs.start("work", "versioned")
    held = enqueue(client, "hold")
    wait_until((jobs.folder / "held").exists, timeout_s=60)

    worker.send_signal(signal.SIGHUP)
    assert any("worker exits to restart" in line for line in worker.stderr)
    worker.terminate()
    (jobs.folder / "go").touch()

    assert worker.wait(30) == 0
    assert client.task(held).result(timeout=0) == 1
    assert worker_pids(client) == []


def test_when_its_terminal_closes_it_stops(jobs: Any, client: Client, wait_until: Callable[..., Any]) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(jobs.folder)
        os.execve(sys.executable, [sys.executable, "-m", "jobrunner", "work", "versioned"], jobs.environment)
    wait_until(lambda: worker_pids(client) == [pid], timeout_s=60)

    os.close(terminal)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert worker_pids(client) == []


@pytest.mark.slow
def test_a_process_is_replaced_after_so_many_tasks_and_each_task_runs_once(
    jobs: Any, client: Client, wait_until: Callable[..., Any]
) -> None:
    supervisor = jobs.start("work", "versioned", "--processes", "2", "--max-tasks", "20", "--heartbeat", "0.2")
    before = wait_until(lambda: len(found := worker_pids(client)) == 2 and found, timeout_s=60)

    tasks = [client.task(enqueue(client, "version")) for _ in range(100)]
    wait_until(lambda: len(now := worker_pids(client)) == 2 and not set(now) & set(before), timeout_s=60)

    assert [task.result(timeout=10) for task in tasks] == [1] * 100
    assert {task.record().attempts for task in tasks} == {1}
    supervisor.terminate()
    assert supervisor.wait(30) == 0


@pytest.mark.slow
def test_a_process_that_leaks_is_replaced_and_works_on_until_then(
    jobs: Any, client: Client, wait_until: Callable[..., Any]
) -> None:
    supervisor = jobs.start(
        "work", "versioned", "--processes", "2", "--concurrency", "1", "--max-memory", "110MB", "--heartbeat", "0.2"
    )
    wait_until(lambda: len(worker_pids(client)) == 2, timeout_s=60)

    leaked = [result(client, "leak") for _ in range(2)]
    wait_until(lambda: len(now := worker_pids(client)) == 2 and not set(now) & set(leaked), timeout_s=60)

    assert result(client, "version") == 1
    supervisor.terminate()
    assert supervisor.wait(30) == 0


@pytest.mark.slow
def test_processes_that_crash_again_and_again_end_the_supervisor_with_1(jobs: Any) -> None:
    jobs.write("crashing.py", "import os\nos._exit(9)\n")

    said = jobs.run("work", "crashing", "--processes", "2")

    assert said.code == 1
    assert "worker not restarted after crashes" in said.err


@pytest.mark.slow
def test_a_limit_of_memory_that_is_too_little_to_begin_is_misuse(jobs: Any) -> None:
    said = jobs.run("work", "versioned", "--max-memory", "1MB")

    assert said.code == 2
    assert "max_memory is 1.0 MiB, and the process takes" in said.err.splitlines()[-1]


@pytest.mark.slow
def test_sighup_to_one_of_several_has_that_one_replaced(
    jobs: Any, client: Client, wait_until: Callable[..., Any]
) -> None:
    supervisor = jobs.start("work", "versioned", "--processes", "2", "--heartbeat", "0.2")
    first, second = wait_until(lambda: len(found := worker_pids(client)) == 2 and found, timeout_s=60)

    os.kill(first, signal.SIGHUP)
    wait_until(lambda: len(now := worker_pids(client)) == 2 and first not in now, timeout_s=60)

    assert second in worker_pids(client)
    supervisor.terminate()
    assert supervisor.wait(30) == 0
