"""The endpoint of workers, read as Prometheus reads it, while workers are killed."""

import json
import os
import signal
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from jobrunner import Client
from jobrunner.broker.calls.tasks import show
from jobrunner.client.client import broker_of, keys_of
from jobrunner.errors import InvalidOption
from jobrunner.metrics.application import ApplicationMetrics
from jobrunner.task import Task
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

JOBS = """
import time
from jobrunner import Backoff, job

SOON = Backoff(base=0.01, factor=1, jitter=0)

@job(queue="mail", keepalive=2, result_ttl=600, backoff=SOON, max_attempts=20)
def send(seconds: float = 0.0) -> int:
    time.sleep(seconds)
    return 1

@job(queue="mail", keepalive=2, result_ttl=600, backoff=SOON, max_attempts=2)
def refuse() -> None:
    raise ValueError("no")
"""


@pytest.fixture
def jobs(shell: Any) -> Any:
    shell.write("jobs_here.py", JOBS)
    return shell


def enqueue(client: Client, job: str, count: int, payload: bytes = b"{}") -> list[str]:
    sent = [Task(id=f"{job}-{n}", type=job, queue="mail", payload=payload) for n in range(count)]
    return [handle.id for handle in client.enqueue_many(sent)]


def finished(client: Client) -> int:
    found = client.stats()["mail"]
    return found.totals.get("succeeded", 0) + found.dead


def record_of(client: Client, task_id: str) -> Any:
    return broker_of(client).run(show(keys_of(client), task_id, queue="mail"))


def url_of(process: Any) -> str:
    """Where it serves metrics, from its log; the rest of which is read behind."""
    for line in process.stderr:
        if '"metrics are served"' in line:
            threading.Thread(target=lambda: Counter(process.stderr), daemon=True).start()
            return json.loads(line)["url"].removesuffix("/metrics")
    raise AssertionError("it serves no metrics")


def get(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=20) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def samples(text: bytes) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def ended(text: bytes) -> dict[tuple[str, str], float]:
    return {
        (labels["type"], labels["outcome"]): value
        for name, labels, value in samples(text)
        if name == "jobrunner_tasks_total"
    }


def value_of(text: bytes, name: str, **wanted: str) -> float:
    return sum(value for one, labels, value in samples(text) if one == name and wanted.items() <= labels.items())


@pytest.fixture
def serve(jobs: Any) -> Callable[..., tuple[Any, str]]:
    def start(*words: str) -> tuple[Any, str]:
        process = jobs.start("work", "jobs_here", "--metrics-port", "0", "--log-format", "json", *words)
        return process, url_of(process)

    return start


@pytest.mark.slow
def test_totals_are_exact_after_workers_were_killed(serve: Any, client: Client) -> None:
    ids = enqueue(client, "send", 40, b'{"seconds":0.2}') + enqueue(client, "refuse", 5)
    _, url = serve("--processes", "2", "--concurrency", "3")

    wait_for(lambda: len(client.workers()) == 2 and finished(client) >= 10, timeout_s=60)
    for worker in client.workers():
        os.kill(worker.pid, signal.SIGKILL)
    wait_for(lambda: finished(client) == 45, timeout_s=90)

    status, text = get(f"{url}/metrics")
    recount = Counter((record.type, record.state) for record in map(partial(record_of, client), ids))
    totals = client.stats()["mail"].totals
    assert status == 200
    counted = ended(text)
    assert recount == {("send", "succeeded"): 40, ("refuse", "dead"): 5}
    assert counted[("send", "succeeded")] == 40
    assert counted[("refuse", "dead")] == 5
    for outcome in ("succeeded", "failed", "dead"):
        assert sum(by for (_, one), by in counted.items() if one == outcome) == totals.get(outcome, 0)
    assert value_of(text, "jobrunner_recovered_total", queue="mail") == totals["recovered"] > 0
    assert value_of(text, "jobrunner_enqueued_total", queue="mail") == 45
    assert value_of(text, "jobrunner_queue_depth", queue="mail", state="dead") == 5


def test_a_supervisor_answers_for_its_processes(serve: Any, client: Client) -> None:
    process, url = serve("--processes", "2")
    wait_for(lambda: len(client.workers()) == 2, timeout_s=60)

    wait_for(lambda: get(f"{url}/ready")[0] == 200)
    status, said = get(f"{url}/health")
    assert (status, json.loads(said)) == (200, {"status": "ok", "processes": 2, "running": 2})
    assert value_of(get(f"{url}/metrics")[1], "jobrunner_workers") == 2
    assert get(f"{url}/")[0] == 404

    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_a_supervisor_asks_the_server_that_a_module_of_its_workers_configures(
    serve: Any, jobs: Any, client: Client
) -> None:
    jobs.write("jobs_here.py", f"import jobrunner\njobrunner.configure(prefix='elsewhere')\n{JOBS}")
    process, url = serve("--processes", "2")

    wait_for(lambda: get(f"{url}/ready")[0] == 200, timeout_s=60)
    wait_for(lambda: value_of(get(f"{url}/metrics")[1], "jobrunner_workers") == 2)
    assert client.workers() == []

    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_a_worker_is_well_while_it_works(serve: Any, client: Client) -> None:
    process, url = serve("--concurrency", "2")
    wait_for(lambda: get(f"{url}/health")[0] == 200, timeout_s=60)

    enqueue(client, "send", 20, b'{"seconds":0.01}')
    count = "jobrunner_task_run_seconds_count"
    wait_for(lambda: value_of(get(f"{url}/metrics")[1], count, type="send") == 20, timeout_s=30)

    said = json.loads(get(f"{url}/ready")[1])
    assert (said["status"], said["worker"]) == ("ok", client.workers()[0].id)
    text = get(f"{url}/metrics")[1]
    assert 0.2 <= value_of(text, "jobrunner_task_run_seconds_sum", type="send") < 60
    assert value_of(text, "jobrunner_redis_round_trip_seconds_count") > 0
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_a_port_that_is_taken_is_one_line(serve: Any, jobs: Any) -> None:
    _, url = serve()
    said = jobs.run("work", "jobs_here", "--metrics-port", url.rpartition(":")[2])

    assert said.code == 2
    assert "choose another --metrics-port" in said.err.splitlines()[-1]


def test_what_is_missing_is_said_in_one_line(jobs: Any, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['prometheus_client'] = None\n")
    path = f"{tmp_path}{os.pathsep}{jobs.environment['PYTHONPATH']}"

    said = jobs.run("work", "jobs_here", "--metrics-port", "0", PYTHONPATH=path)

    assert said.code == 2
    assert 'pip install "jobrunner-queue[metrics]"' in said.err


OWN = """
import os
import signal
import prometheus_client
from jobrunner import job

done = prometheus_client.Counter("shop_done_total", "Done.", ["kind"])
here = prometheus_client.Gauge("shop_here", "Here.", multiprocess_mode="livesum")

@job(queue="mail", keepalive=2)
def count(kind: str) -> int:
    done.labels(kind).inc()
    here.set(1)
    return os.getpid()

@job(queue="mail", keepalive=2, max_attempts=1)
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("words", [("--processes", "2"), ("--executor", "processes", "--concurrency", "2")])
def test_metrics_that_jobs_define_are_those_of_all_processes_also_of_killed_ones(
    jobs: Any, client: Client, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Each process had its own in its memory, and the endpoint, in another process, had none."""
    jobs.write("own_here.py", OWN)
    folder = tmp_path / "new" / "metrics"
    process = jobs.start(
        "work", "own_here", "--metrics-port", "0", "--log-format", "json", *words, PROMETHEUS_MULTIPROC_DIR=str(folder)
    )
    url = url_of(process)

    def count(kind: str, times: int) -> None:
        payload = json.dumps({"kind": kind}).encode()
        sent = [Task(id=f"{kind}-{n}", type="count", queue="mail", payload=payload) for n in range(times)]
        client.enqueue_many(sent)
        wait_for(lambda: client.stats()["mail"].totals.get("succeeded", 0) == done + times, timeout_s=60)

    done = 0
    count("first", 30)
    text = get(f"{url}/metrics")[1]
    assert value_of(text, "shop_done_total", kind="first") == 30
    assert value_of(text, "shop_here") >= 1
    assert value_of(text, "jobrunner_enqueued_total", queue="mail") == 30
    enqueue(client, "die", 1)
    wait_for(lambda: client.stats()["mail"].dead == 1, timeout_s=60)
    done = 30
    count("second", 5)
    text = get(f"{url}/metrics")[1]
    assert value_of(text, "shop_done_total", kind="first") == 30, "counts of the killed process stay"
    assert value_of(text, "shop_done_total", kind="second") == 5
    alive = {int(path.stem.rpartition("_")[2]) for path in folder.glob("gauge_live*")}
    assert 0 < value_of(text, "shop_here") <= len(alive)
    assert all(Path(f"/proc/{pid}").exists() for pid in alive), "gauges of the killed process are gone"


@pytest.mark.parametrize("damage", [b"", b"x" * 100])
def test_a_damaged_file_hides_only_the_metrics_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes
) -> None:
    """It hid those of all jobs for good, as after a process that was killed at its start or on a full disk."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    for pid in (11, 12):
        values = MmapedDict(str(tmp_path / f"counter_{pid}.db"))  # type: ignore[no-untyped-call]
        key = mmap_key("shop_sent", "shop_sent_total", [], [], "Sent.")  # type: ignore[no-untyped-call]
        values.write_value(key, 2.0, 0.0)  # type: ignore[no-untyped-call]
        values.close()  # type: ignore[no-untyped-call]
    (tmp_path / "counter_1.db").write_bytes(damage)

    with capture_logs() as lines:
        text = ApplicationMetrics().text()

    assert value_of(text, "shop_sent_total") == 4
    assert [(line["files"], Path(line["first"]).name) for line in lines] == [(1, "counter_1.db")]


def test_metrics_of_jobs_need_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "counter_1.db").touch()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "counter_1.db"))
    with pytest.raises(InvalidOption, match=r"PROMETHEUS_MULTIPROC_DIR=.*: File exists; name a folder"):
        ApplicationMetrics()
