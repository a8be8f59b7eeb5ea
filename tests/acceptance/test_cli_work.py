"""`jobrunner work` as a process: the tasks it runs, how it stops, and its exit codes."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobrunner.broker.calls import leader as leader_calls
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.task import Task, TaskState, new_id
from tests.acceptance.fleet import wait_ended
from tests.support.loading_server import LoadingServer

pytestmark = pytest.mark.processes

JOBS = """
import atexit, multiprocessing, os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from jobrunner import current_task, job

@job(queue="maths")
def add(x: int, y: int = 0) -> int:
    return x + y

@job()
def stop_own_worker() -> str:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.3)
    return "finished"

@job()
def kill_own_worker() -> str:
    if current_task().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "finished"

@job()
def leave_a_thread() -> None:
    threading.Thread(target=threading.Event().wait).start()
    sys.stdout.close()

@job()
def leave_another_stdout() -> None:
    with open(os.devnull, "w") as sys.stdout:
        pass

@job()
def end_a_forked_process() -> list[int]:
    fork = multiprocessing.get_context("fork")
    listening = fork.Event()
    child = fork.Process(target=lambda: listening.set() or time.sleep(60))
    child.start()
    assert listening.wait(30)
    child.terminate()
    child.join(30)
    return [child.exitcode]

@job()
def outlast() -> None:
    atexit.register(Path("exited").touch)
    Path("begun").touch()
    time.sleep(600)

@job()
def hang() -> None:
    Path("begun").touch()
    with ThreadPoolExecutor() as pool:  # whose threads the interpreter waits for at its end
        pool.submit(threading.Event().wait).result()
"""


@pytest.fixture
def jobs(shell: Any) -> Any:
    shell.write("jobs_here.py", JOBS)
    return shell


def enqueue(client: Client, job: str, queue: str = "default", delay_s: float | None = None, **parameters: int) -> str:
    """As `jobrunner enqueue` does, in this process."""
    payload = json.dumps(parameters).encode()
    delay_ms = None if delay_s is None else delay_s * 1000
    return client.enqueue(Task(id=new_id(queue), type=job, queue=queue, payload=payload, delay_ms=delay_ms)).id


def worker_pids(client: Client) -> list[int]:
    return sorted(worker.pid for worker in client.workers())


def test_a_burst_runs_what_waits_and_ends(jobs: Any, client: Client) -> None:
    task = enqueue(client, "add", "maths", x=1, y=2)
    enqueue(client, "leave_another_stdout")

    said = jobs.run("work", "jobs_here", "--burst", "--json")

    assert said.code == 0, said.err
    assert json.loads(said.out)["finished"] == 2
    assert client.task(task).result(timeout=0) == 3


def test_modules_come_from_the_project_file(jobs: Any, client: Client) -> None:
    jobs.write("pyproject.toml", '[tool.jobrunner]\nmodules = ["jobs_here"]\n')
    task = jobs.run("enqueue", "add", "x=20").out.strip()

    assert jobs.run("work", "--burst").code == 0

    assert client.task(task).result(timeout=0) == 20


def test_a_drain_waits_for_what_is_scheduled(jobs: Any, client: Client) -> None:
    task = enqueue(client, "add", "maths", delay_s=1, x=5)

    assert jobs.run("work", "jobs_here", "--drain").code == 0

    assert client.task(task).result(timeout=0) == 5


def test_it_ends_after_so_many_tasks(jobs: Any, client: Client) -> None:
    for number in range(3):
        enqueue(client, "add", "maths", x=number)

    said = jobs.run("work", "jobs_here", "--max-tasks", "1", "--concurrency", "1", "--json")

    assert said.code == 0, said.err
    assert json.loads(said.out)["finished"] >= 1


def test_json_logs_are_one_object_a_line(jobs: Any) -> None:
    said = jobs.run("work", "jobs_here", "--burst", "--log-format", "json")

    events = [json.loads(line)["event"] for line in said.err.splitlines()]
    assert (*events[:2], events[-1]) == ("jobs loaded", "worker started", "worker stopped")


@pytest.mark.parametrize(("module", "hint"), [("shop", "name the module that has @job, such as shop.jobs, or"),
                                              ("nothing", "put @job() above a Job class or a function")])  # fmt: skip
def test_modules_that_declare_nothing_are_a_warning(jobs: Any, module: str, hint: str) -> None:
    """The package whose `__init__.py` imports no jobs: the worker ran, and said that all was well."""
    (jobs.folder / "shop").mkdir()
    jobs.write("shop/__init__.py", "")
    jobs.write("shop/jobs.py", JOBS)
    jobs.write("nothing.py", "")

    said = jobs.run("work", module, "--burst", "--log-format", "json")

    lines = [json.loads(line) for line in said.err.splitlines()]
    (told,) = [line for line in lines if line["event"].startswith("no job and no station is declared")]
    assert (said.code, told["level"], told["modules"]) == (0, "warning", [module])
    assert hint in told["hint"]


def test_asked_once_it_finishes_what_runs(jobs: Any, client: Client) -> None:
    task = enqueue(client, "stop_own_worker")

    said = jobs.run("work", "jobs_here", "--grace", "30")

    assert said.code == 0, said.err
    assert client.task(task).result(timeout=0) == "finished"
    assert client.workers() == []


def test_asked_twice_it_hands_back_at_once_and_spends_no_attempt(
    jobs: Any, client: Client, wait_until: Callable[..., Any]
) -> None:
    task = client.task(enqueue(client, "hang"))
    worker = jobs.start("work", "jobs_here", "--grace", "300")
    wait_until((jobs.folder / "begun").exists)

    worker.send_signal(signal.SIGTERM)
    worker.send_signal(signal.SIGINT)

    assert worker.wait(20) == 0
    assert (task.state, task.attempts, task.retry_count) == (TaskState.WAITING, 0, 0)
    assert client.workers() == []


@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=["alone", "supervised"])
def test_a_worker_whose_server_is_loading_its_data_waits_and_ends_well_when_it_is_asked(
    jobs: Any, options: list[str]
) -> None:
    server = LoadingServer()
    try:
        server.load()
        worker = jobs.start("work", "jobs_here", *options, JOBRUNNER_URL=server.url)
        line = next(line for line in worker.stderr if "the worker waits for its server" in line)
        assert "is loading its data" in line

        worker.send_signal(signal.SIGTERM)

        said = worker.communicate(timeout=60)[1]
        assert worker.returncode == 0, said
    finally:
        server.remove()


AT_THE_END = """
import os, signal

class Straggler:
    'Sends signals when Python takes the modules down, behind its last exit handler.'

    def __del__(self, kill=os.kill, pid=os.getpid(), here=os.getpid, numbers=(signal.SIGTERM, signal.SIGINT)):
        for number in numbers if here() == pid else ():
            kill(pid, number)

last = Straggler()
"""


@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=["alone", "supervised"])
def test_a_signal_that_comes_while_python_exits_changes_no_exit_code(
    jobs: Any, client: Client, options: list[str]
) -> None:
    """Python takes its handlers away before it is gone: a second SIGTERM then made 143 of a clean end."""
    jobs.write("sitecustomize.py", AT_THE_END)
    task = enqueue(client, "add", "maths", x=1)

    path = f"{jobs.folder}:{jobs.environment['PYTHONPATH']}"
    said = jobs.run("work", "jobs_here", "--burst", *options, PYTHONPATH=path)

    assert said.code == 0, said.err
    assert client.task(task).result(timeout=0) == 1


def test_what_outlasts_the_grace_period_is_handed_back_and_exit_handlers_run(
    jobs: Any, client: Client, wait_until: Callable[..., Any]
) -> None:
    """The last spans are sent by one. Not behind a thread that a job left, for which the interpreter would wait."""
    for job, handles in (("outlast", True), ("hang", False)):
        task = client.task(enqueue(client, job))
        worker = jobs.start("work", "jobs_here", "--grace", "200ms")
        wait_until((jobs.folder / "begun").exists)

        worker.send_signal(signal.SIGTERM)

        assert worker.wait(20) == 0
        assert (task.state, task.attempts) == (TaskState.WAITING, 0)
        assert (jobs.folder / "exited").exists() == handles
        assert task.cancel()
        for name in ("begun", "exited"):
            (jobs.folder / name).unlink(missing_ok=True)


def test_a_thread_that_a_job_left_behind_does_not_keep_it(jobs: Any, client: Client) -> None:
    """Also where the job closed stdout."""
    task = enqueue(client, "leave_a_thread")

    said = jobs.run("work", "jobs_here", "--burst", "--grace", "500ms")

    assert said.code == 0, said.err
    assert client.task(task).state is TaskState.SUCCEEDED


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_job_can_end_a_process_that_it_forked_and_the_worker_goes_on(
    jobs: Any, client: Client, executor: str
) -> None:
    task = enqueue(client, "end_a_forked_process")
    later = enqueue(client, "add", x=1)

    said = jobs.run("work", "jobs_here", "--burst", "--concurrency", "1", "--executor", executor)

    assert said.code == 0, said.err
    assert client.task(task).result(timeout=0) == [-signal.SIGTERM]
    assert client.task(later).result(timeout=0) == 1


def test_without_a_module_it_says_where_to_name_one(shell: Any) -> None:
    said = shell.run("work")

    assert said.code == 2
    assert said.line.startswith("Error: no module with jobs is named")


def test_a_worker_process_that_crashes_is_started_again(
    jobs: Any, client: Client, wait_until: Callable[..., Any]
) -> None:
    supervisor = jobs.start("work", "jobs_here", "--processes", "2")
    first, second = wait_until(lambda: len(found := worker_pids(client)) == 2 and found, timeout_s=60)

    os.kill(first, signal.SIGKILL)

    wait_until(lambda: any(pid not in (first, second) for pid in worker_pids(client)), timeout_s=60)
    supervisor.terminate()
    assert supervisor.wait(30) == 0
    assert set(worker_pids(client)) <= {first}  # killed, so it did not take its leave


def test_children_of_a_supervisor_get_its_url_by_no_argument(
    jobs: Any, client: Client, server: Any, wait_until: Callable[..., Any]
) -> None:
    """`ps` shows those to every user, and a URL may have a password. It precedes a module's own, as --url does."""
    jobs.write("elsewhere.py", f"import jobrunner\njobrunner.configure('redis://localhost:1')\n{JOBS}")
    with_password = server.url.replace("unix://", "unix://default:geheim@")
    if "@" not in with_password:
        pytest.skip("the server of the tests has no socket")
    task = enqueue(client, "add", "maths", x=1, y=2)

    supervisor = jobs.start("work", "elsewhere", "--processes", "2", "--url", with_password)
    pids = wait_until(lambda: len(found := worker_pids(client)) == 2 and found, timeout_s=60)

    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]
    assert not [line for line in lines if b"geheim" in line or server.url.encode() in line]
    assert client.task(task).result(timeout=30) == 3
    supervisor.terminate()
    assert supervisor.wait(30) == 0


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_at_another_url_keeps_the_other_options_that_a_module_configured(
    jobs: Any, client: Client, server: Any, processes: str
) -> None:
    """Without the keys, each task that a producer encrypted was dead."""
    key, own = "c2l4dGVlbiBieXRlcyB0d2ljZSwgc2l4dGVlbiBieXQ=", f"{client.settings.prefix}.own"
    configured = f"configure('redis://localhost:1', {own!r}, payload_keys=[{key!r}], require_encryption=True)"
    jobs.write("elsewhere.py", f"import jobrunner\njobrunner.{configured}\n{JOBS}")
    task = jobs.run("enqueue", "elsewhere.add", "x=1", "y=2", "--url", server.url).out.strip()

    said = jobs.run("work", "elsewhere", "--drain", "--processes", processes, "--url", server.url)

    assert said.code == 0, said.err
    with Client(server.url, own, payload_keys=[key]) as there:
        assert there.task(task).result(timeout=0) == 3


def test_a_worker_that_was_told_to_stop_is_not_started_again_and_the_others_are_looked_after(
    jobs: Any, client: Client, wait_until: Callable[..., Any]
) -> None:
    def tell_to_stop(worker: str) -> None:
        broker_of(client).run_many(leader_calls.order(keys_of(client), worker, "stop", "1", ttl_ms=60_000))

    supervisor = jobs.start("work", "jobs_here", "--processes", "2", "--heartbeat", "0.2")
    first, second = wait_until(lambda: len(found := client.workers()) == 2 and found, timeout_s=60)

    tell_to_stop(first.id)
    wait_ended([first.pid], timeout_s=60)  # a worker whose heartbeat is late is not in the list, either
    os.kill(second.pid, signal.SIGKILL)
    known = {first.id, second.id}
    (third,) = wait_until(lambda: [one for one in client.workers() if one.id not in known], timeout_s=60)
    assert supervisor.poll() is None
    wait_until(lambda: [one.id for one in client.workers()] == [third.id], timeout_s=60)

    tell_to_stop(third.id)
    assert supervisor.wait(30) == 0, "the last worker was asked to stop"


def test_workers_do_not_outlive_their_supervisor(jobs: Any, client: Client, wait_until: Callable[..., Any]) -> None:
    supervisor = jobs.start("work", "jobs_here", "--processes", "2")
    wait_until(lambda: len(worker_pids(client)) == 2, timeout_s=60)

    supervisor.kill()

    wait_until(lambda: worker_pids(client) == [], timeout_s=60)


def test_one_supervised_worker_that_is_killed_in_a_container_is_replaced_and_its_tasks_run_again_at_once(
    jobs: Any, client: Client
) -> None:
    """The kernel kills all processes of a container, the lease keeper among them, when its first process dies. An init
    in front of the worker ends with it."""
    container = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if shutil.which("unshare") is None or subprocess.run([*container, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this system lets nobody make a namespace of processes")
    task = jobs.run("enqueue", "jobs_here.kill_own_worker").out.strip()

    work = [sys.executable, "-m", "jobrunner", "work", "jobs_here", "--drain", "--processes", "1"]
    ended = subprocess.run([*container, *work], cwd=jobs.folder, env=jobs.environment, capture_output=True, timeout=60)

    assert ended.returncode == 0, ended.stderr
    record = client.task(task).record()
    assert (record.state, record.attempts) == (TaskState.SUCCEEDED, 2)
    assert [failure.what for failure in record.failures] == ["crashed"], "not expired: its lease had not ended"


def test_misuse_ends_the_supervisor_with_its_code(jobs: Any) -> None:
    said = jobs.run("work", "not_there", "--processes", "2")

    assert said.code == 2
    assert "ModuleNotFoundError" in said.err


def test_a_changed_file_starts_the_worker_again(jobs: Any, client: Client, wait_until: Callable[..., Any]) -> None:
    supervisor = jobs.start("work", "jobs_here", "--reload")
    (first,) = wait_until(lambda: worker_pids(client), timeout_s=60)

    module: Path = jobs.write("jobs_here.py", JOBS + "\nprint('changed')\n")
    os.utime(module, ns=(0, 1))

    wait_until(lambda: worker_pids(client) not in ([], [first]), timeout_s=60)
    supervisor.send_signal(signal.SIGINT)
    assert supervisor.wait(30) == 0


def test_a_server_that_evicts_is_refused_unless_allowed(jobs: Any, start_server: Callable[..., Any]) -> None:
    evicting = start_server(maxmemory="100mb", maxmemory_policy="allkeys-lru")

    refused = jobs.run("work", "jobs_here", "--burst", "--url", evicting.url)
    allowed = jobs.run("work", "jobs_here", "--burst", "--url", evicting.url, "--allow-eviction")

    assert refused.code == 2
    assert "allkeys-lru" in refused.line
    assert allowed.code == 0


def test_a_module_may_configure_the_client_that_the_worker_uses(jobs: Any, client: Client) -> None:
    prefix = f"{keys_of(client).prefix}-own"
    configured = f"from jobrunner import configure\nconfigure({client.settings.url!r}, {prefix!r})\n"
    jobs.write("app_here.py", configured + JOBS)
    added = jobs.run("enqueue", "add", "x=4", "-m", "jobs_here", JOBRUNNER_PREFIX=prefix).out.strip()

    said = jobs.run("work", "app_here", "--burst", "-q", "maths")

    assert said.code == 0, said.err
    with Client(client.settings.url, prefix) as own:
        assert own.task(added).result(timeout=30) == 4
        assert own.queue("maths").purge("waiting") == 0


def test_otel_sends_the_spans_of_attempts_where_the_variables_say(shell: Any, client: Client) -> None:
    shell.write("jobs.py", "from jobrunner import job\n\n@job(queue='mail')\ndef greet(): ...\n")
    shell.run("enqueue", "greet", "-m", "jobs")

    said = shell.run("work", "jobs", "--burst", "--otel", OTEL_TRACES_EXPORTER="console")

    assert said.code == 0, said.err
    assert '"name": "process mail"' in said.err
    assert '"jobrunner.outcome": "succeeded"' in said.err
    assert '"service.name": "jobrunner"' in said.err


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_spans_in_a_json_log_are_one_object_in_a_line_too(shell: Any, executor: str) -> None:
    shell.write(
        "jobs.py",
        "from jobrunner import job\n\n@job(queue='mail')\ndef greet(): other.enqueue()\n\n"
        "@job(queue='other')\ndef other(): ...\n",
    )
    shell.run("enqueue", "greet", "-m", "jobs")

    said = shell.run(
        "work", "jobs", "-q", "mail", "--burst", "--log-format", "json", "--executor", executor, "--otel",
        OTEL_TRACES_EXPORTER="console", OTEL_BSP_SCHEDULE_DELAY="10",
    )  # fmt: skip

    assert said.code == 0, said.err
    lines = [json.loads(line) for line in said.err.splitlines()]
    assert {line["name"] for line in lines if "name" in line} == {"process mail", "publish other"}


def test_a_worker_that_stops_does_not_wait_for_a_collector_that_does_not_answer(shell: Any) -> None:
    shell.write("jobs.py", "from jobrunner import job\n\n@job(queue='mail')\ndef greet(): ...\n")
    shell.run("enqueue", "greet", "-m", "jobs")

    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
              "OTEL_EXPORTER_OTLP_TIMEOUT": "600"}  # fmt: skip
        said = shell.run("work", "jobs", "--burst", "--otel", **at)

    assert said.code == 0, said.err
    assert "the last spans were not sent" in said.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("protocol", "advice"),
    [("grpc", "pip install opentelemetry-exporter-otlp-proto-grpc"), ("http/json", "choose http/protobuf or grpc")],
)
def test_otel_does_not_send_by_another_protocol_than_the_one_that_is_set(
    shell: Any, protocol: str, advice: str
) -> None:
    shell.write("jobs.py", "from jobrunner import job\n\n@job(queue='mail')\ndef greet(): ...\n")
    hidden = "import sys; sys.modules['opentelemetry.exporter.otlp.proto.grpc.trace_exporter'] = None\n"
    shell.write("sitecustomize.py", hidden)  # as if it was not installed, also where it is

    at = {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "PYTHONPATH": f"{shell.folder}:{shell.environment['PYTHONPATH']}"}
    said = shell.run("work", "jobs", "--burst", "--otel", **at)

    assert said.code == 2, said.err
    assert advice in said.line


def test_otel_with_an_unknown_exporter_says_which_there_are(shell: Any) -> None:
    shell.write("jobs.py", "from jobrunner import job\n\n@job(queue='mail')\ndef greet(): ...\n")

    said = shell.run("work", "jobs", "--burst", "--otel", OTEL_TRACES_EXPORTER="jaeger")

    assert said.code == 2
    assert "choose otlp, console or none" in said.line
