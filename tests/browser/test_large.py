"""The dashboard during an incident: 1 000 000 tasks, 50 000 of them dead, 200 queues, and workers that run.

Times are those of the response in the browser; commands are counted by MONITOR on the server.
"""

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import pytest
import structlog

from jobrunner import Client, Worker, job
from jobrunner.client.current import forget, use
from tests.browser.conftest import Served
from tests.browser.test_actions import confirm
from tests.support.server import Server
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
DEAD, BACKLOG, ELSEWHERE, QUEUES = 50_000, 550_000, 400_000, 200
PATHS = ["/", "/queues", "/queues/big", "/tasks", "/tasks?state=dead", "/tasks?queue=big&error=even",
         "/tasks?error=nowhere", "/tasks?queue=backlog&param=nowhere", "/tasks/last?queue=backlog", "/dead",
         "/dead?type=absent", "/workers", "/periodic", "/pipelines", "/history", "/redis", "/events",
         "/audit"]  # fmt: skip
MOST_MS, MOST_COMMANDS = 200, 50


@job(queue="big")
def repaired(n: int) -> None: ...


@pytest.fixture(scope="module")
def trouble(serve: Callable[..., str]) -> Iterator[Served]:
    from jobrunner.web.app import create_app
    from jobrunner.web.auth import Loopback

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    server = Server()
    client = use(Client(server.url, "large"))
    big = client.queue("big")
    big.configure(max_attempts=1)
    for start in range(0, DEAD, 1000):
        repaired.enqueue_many([repaired.bind(n=n) for n in range(start, start + 1000)])
        leases = big.reserve(1000)
        big.rollback_many(leases, error="ValueError: even" if start % 2000 else "KeyError: odd")
    client.queue("backlog").push("last", id="last")
    for _ in range(BACKLOG // 10_000):
        client.queue("backlog").push_many(range(10_000))
    for number in range(QUEUES - 2):
        client.queue(f"queue-{number}").push_many(range(ELSEWHERE // QUEUES))
    yield Served(serve(create_app(client, auth=Loopback())), client, server)
    forget()
    client.close()
    server.remove()
    structlog.reset_defaults()


@pytest.mark.parametrize("path", PATHS)
def test_a_page_is_quick_and_asks_little(trouble: Any, look: Any, path: str) -> None:
    tab = look()
    tab.goto(f"{trouble.url}{path}")
    tab.evaluate("document.getElementById('live-switch').click()")
    took_ms = []
    for _attempt in range(5):
        time.sleep(1.1)  # snapshots are shared for a second: this one is read anew
        took_ms.append(_answered_ms(tab, trouble.url + path))

    commands = _commands(trouble, lambda: _answered_ms(tab, trouble.url + path))

    print(f"{path}: {median(took_ms):.0f} ms (best {min(took_ms):.0f}), {len(commands)} commands")
    assert len(commands) <= MOST_COMMANDS, commands
    assert min(took_ms) <= MOST_MS, took_ms  # the others are what else this machine does


def test_all_the_dead_are_requeued_while_workers_run(trouble: Any, look: Any) -> None:
    queue = trouble.client.queue("big")
    worker = Worker(client=trouble.client, queues=["big"], concurrency=4)
    worker.start()
    tab = look()

    tab.goto(f"{trouble.url}/dead?queue=big")
    tab.get_by_role("button", name="Requeue all that match").click()
    confirm(tab)
    tab.wait_for_url("**/operations/*")
    shares = set()

    def is_done() -> bool:
        shares.add(tab.locator("progress").get_attribute("value"))
        return bool(tab.locator("#state").inner_text() == "done")

    wait_for(is_done, timeout_s=300)
    wait_for(lambda: queue.totals().get("succeeded", 0) == DEAD, timeout_s=300)
    worker.stop(grace=5)

    assert len(shares) > 2, "no progress was seen"
    assert f"{DEAD:,} of {DEAD:,}" in tab.locator("#progress h2").inner_text()
    assert {state: queue.counts()[state] for state in ("waiting", "pending", "dead")} == {
        "waiting": 0, "pending": 0, "dead": 0,
    }  # fmt: skip


def _answered_ms(tab: Any, url: str) -> float:
    """From asking to the last byte."""
    return float(
        tab.evaluate(
            "async (url) => { const began = performance.now(); await (await fetch(url)).text(); "
            "return performance.now() - began }",
            url,
        )
    )


def _commands(trouble: Any, ask: Callable[[], object]) -> list[str]:
    """The commands that arrive while something is asked for."""
    time.sleep(1.1)  # as above: else the snapshot of the page before is shared
    with trouble.server.connect() as connection, connection.monitor() as monitor:
        ask()
        connection.connection_pool.get_connection().send_command("ECHO", "enough")
        found = []
        while (said := monitor.next_command())["command"] != "ECHO enough":
            if said["client_type"] != "lua" and not said["command"].startswith("ZCARD"):  # the sizes of all lines
                found.append(said["command"][:80])
    return found
