"""A worker process that receives commands from the page of workers."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner import Client
from jobrunner.broker.call import command
from jobrunner.client.client import broker_of, keys_of
from jobrunner.task import Task, new_id
from tests.browser.conftest import Served
from tests.browser.test_actions import confirm, told
from tests.support.server import Server
from tests.support.waiting import wait_for

JOBS = """
import time
from pathlib import Path
from jobrunner import job

@job(queue="work")
def hold(name: str) -> str:
    Path(f"{name}.begun").touch()
    while not Path(f"{name}.go").exists():
        time.sleep(0.01)
    return name
"""


@pytest.fixture
def site(serve: Callable[..., str]) -> Iterator[Served]:
    """A dashboard of a server where nothing is."""
    create_app = pytest.importorskip("jobrunner.web.app").create_app
    from jobrunner.web.auth import Loopback

    server = Server()
    client = Client(server.url, "site")
    yield Served(serve(create_app(client, auth=Loopback())), client, server)
    client.close()
    server.remove()


@pytest.fixture
def process(site: Served, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`jobrunner work`, in the folder of the test."""
    (tmp_path / "held_jobs.py").write_text(JOBS)
    options = ["--heartbeat", "0.2", "--concurrency", "2", "--url", site.server.url, "--prefix", "site"]
    command = [sys.executable, "-m", "jobrunner", "work", "held_jobs", *options]
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen(command, cwd=tmp_path, stderr=log)
    yield running
    running.kill()
    running.wait()


def hold(site: Served, name: str) -> Any:
    payload = f'{{"name": "{name}"}}'.encode()
    return site.client.enqueue(Task(id=new_id("work"), type="hold", queue="work", payload=payload))


def test_a_worker_process_is_quieted_resumed_and_stopped(
    site: Served, look: Any, process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    tab = look()
    (worker,) = wait_for(site.client.workers, timeout_s=30)
    row = tab.locator(f'tr[data-key="{worker.id}"]')
    first = hold(site, "first")
    wait_for((tmp_path / "first.begun").exists)
    tab.goto(f"{site.url}/tasks/{first.id}")
    tab.locator("#holder a", has_text=str(process.pid)).click()
    tab.wait_for_url(f"**/workers?at={worker.id}#worker-{worker.id}")

    row.get_by_role("button", name="Quiet").click()
    confirm(tab)
    row.locator(".badge", has_text="quiet").wait_for()
    assert "reserves nothing new" in told(tab)
    second = hold(site, "second")
    (tmp_path / "first.go").touch()
    wait_for(lambda: site.client.workers()[0].finished == 1)
    assert first.state == "succeeded"
    assert (second.state, process.poll()) == ("waiting", None)

    row.get_by_role("button", name="Resume").click()
    wait_for((tmp_path / "second.begun").exists)
    row.get_by_role("button", name="Stop").click()
    confirm(tab)
    row.locator(".badge", has_text="stopping").wait_for()
    third = hold(site, "third")
    (tmp_path / "second.go").touch()

    assert process.wait(30) == 0
    assert (second.record().state, second.result(timeout=1)) == ("succeeded", "second")
    assert third.record().state == "waiting"
    orders = keys_of(site.client).commands(worker.id)
    assert not broker_of(site.client).run(command("EXISTS", orders, read=int)), "orders end with it"
    tab.locator("#workers", has_text="No worker is at work").wait_for()
    tab.locator("#unserved", has_text="No worker serves work").wait_for()
