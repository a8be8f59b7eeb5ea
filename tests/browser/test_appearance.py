"""Every page, on a phone and on a desk, light and dark: nothing is cut off, all can be read, and all has a name.

Looked at are pages with work of every kind, the same pages of a server where nothing was ever done, those that are met
on the way in or astray, and what opens over a page. With the environment variable JOBRUNNER_LOOKS a picture of each is
made into the folder that it names, for a person to look at.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jobrunner import Client, Worker, chain, group
from jobrunner.broker.calls import batch_log
from jobrunner.client.client import broker_of, keys_of
from jobrunner.inspector.error_groups import read_groups
from jobrunner.inspector.search import search
from jobrunner.inspector.search_filter import Filter
from jobrunner.jobs.batch_record import BatchRecord, write_record
from jobrunner.task import Task, new_id
from tests.browser.accessible import problems
from tests.browser.conftest import SIZES, THEMES
from tests.browser.scene import charge, send_mail
from tests.support.waiting import wait_for

PATHS = {
    "overview": "/",
    "overview-week": "/?span=7d",
    "queues": "/queues",
    "queue": "/queues/mail",
    "queue-running": "/queues/images",
    "queue-paused": "/queues/billing",
    "queue-unserved": "/queues/newsletter",
    "station": "/queues/orders/checked",
    "tasks": "/tasks",
    "tasks-running": "/tasks?state=pending",
    "dead": "/dead",
    "nothing-found": "/tasks?error=no-such-error-anywhere",
    "workers": "/workers",
    "periodic": "/periodic",
    "pipelines": "/pipelines",
    "pipeline": "/pipelines/orders",
    "batches": "/pipelines/orders/priced",
    "history": "/history",
    "history-searched": "/history?job=mail&since=1%20h",
    "flows": "/flows",
    "redis": "/redis",
    "events": "/events",
    "audit": "/audit",
    "astray": "/no-such-page",
    "no-such-task": "/tasks/0000",
}
TASKS = {"dead": "billing", "pending": "exports", "scheduled": "mail", "waiting": "newsletter", "done": "mail"}
BARE = (
    *("/", "/queues", "/tasks", "/dead", "/workers", "/periodic", "/pipelines", "/history", "/flows", "/redis"),
    *("/events", "/audit"),
)
CUT_OFF = """() => [...document.querySelectorAll("main, .scroll, .table, .card")]
  .filter((one) => one.scrollWidth > one.clientWidth)
  .map((one) => `${one.outerHTML.slice(0, 60)}: ${one.scrollWidth} in ${one.clientWidth}`)"""
AGED = """() => document.querySelectorAll("time[data-relative]").forEach((one) => {
  one.textContent = one.textContent.startsWith("in ") ? "in 59 min" : "59 min ago"; })"""
OPENED = {
    "help": ("/queues", lambda tab: tab.keyboard.press("?")),
    "question": ("/queues/mail", lambda tab: tab.locator("#queue-actions button").last.click()),
    "chosen": ("/dead", lambda tab: tab.locator("#select-page, input[name=all]").last.check()),
}


@pytest.fixture(scope="module")
def places(shop: Any, serve: Callable[..., str]) -> Iterator[dict[str, str]]:
    """URLs of pages by name."""
    from jobrunner.web.app import create_app
    from jobrunner.web.auth import Loopback
    from jobrunner.web.credentials import Token
    from jobrunner.web.operations import Operations, read_operation

    operation = Operations(shop.client).start("requeue", who="ann", wanted=Filter(queue="billing", error="unknown"))
    wait_for(lambda: (found := read_operation(shop.client, operation)) and found.is_over)
    bare = Client(shop.server.url, "bare")
    urls = {name: shop.url + path for name, path in PATHS.items()}
    urls |= {f"task-{state}": shop.url + first(shop, queue, state) for state, queue in TASKS.items()}
    mails = [send_mail.bind(to=f"{n}@example.com", template="x") for n in range(3)]
    bills = [charge.bind(invoice=n, amount=1.5) for n in (1, 2)]
    note_batches(shop.client)
    flow = chain(group(*mails, on_dead=bills[1]), bills[0]).enqueue()
    failing = read_groups(shop.client).groups[0]
    urls["group"] = f"{shop.url}/dead?queue={failing.queue}&group={failing.id}"
    urls["flow"] = f"{shop.url}/flows/{flow.id}"
    urls["operation"] = f"{shop.url}/operations/{operation}"
    urls["login"] = serve(create_app(shop.client, auth=Token("a-token-that-is-long-enough"))) + "/login"
    home = serve(create_app(bare, auth=Loopback()))
    yield urls | {f"bare-{path.strip('/') or 'overview'}": home + path for path in BARE}
    bare.close()


def note_batches(client: Client) -> None:
    """Batches as of a station on Spark, one of which was split; the scene has none."""
    shared = {"began_ms": time.time() * 1000 - 90_000, "items": 20_000, "run_s": 4.2, "advance_s": 0.8}
    cause = "ValueError: no price for the item 4242 in the catalogue of this month (orders.py:12 price)"
    records = [
        BatchRecord(id="01a214556222-orders", outcome="decided", attempt=1, rows=19_204, **shared),
        BatchRecord(id="01a214556223-orders", outcome="split", attempt=2, cause=cause, spilled_bytes=9**8, **shared),
    ]
    log = batch_log.note(keys_of(client).queue("orders/priced"), [write_record(one) for one in records])
    broker_of(client).run_many(log)


def first(shop: Any, queue: str, state: str) -> str:
    """The path of the first task of a state."""
    found = search(shop.client, Filter(queue=queue, state=state), limit=1).tasks[0]
    return f"/tasks/{found.id}?queue={found.queue}"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES)
def test_every_page_can_be_read_by_everybody(places: dict[str, str], look: Any, size: str, theme: str) -> None:
    tab = look(size=size, theme=theme, astray=True)
    found = {}
    for name, url in places.items():
        tab.goto(url)
        found[name] = problems(tab)
        if folder := os.environ.get("JOBRUNNER_LOOKS"):
            tab.screenshot(path=Path(folder) / f"{name}-{size}-{theme}.png", full_page=True)

    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.parametrize("size", ["small-desk", "picture"])
def test_no_table_is_cut_off_on_a_smaller_desk(places: dict[str, str], look: Any, size: str) -> None:
    tab = look(size=size, astray=True)
    found = {}
    for name, url in places.items():
        tab.goto(url)
        tab.evaluate(AGED)  # as the pages are some time later, with the longest words for it
        found[name] = tab.evaluate(CUT_OFF)

    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES)
def test_what_opens_over_a_page_can_be_read_by_everybody(shop: Any, look: Any, size: str, theme: str) -> None:
    tab = look(size=size, theme=theme)
    found = {}
    for name, (path, opens) in OPENED.items():
        tab.goto(shop.url + path)
        opens(tab)
        found[name] = problems(tab)
    if size == "phone":
        tab.goto(shop.url)
        tab.get_by_role("button", name="Menu").click()
        found["menu"] = problems(tab)

    assert {name: what for name, what in found.items() if what} == {}


def test_what_is_wrong_with_a_page_is_found(look: Any) -> None:
    tab = look()
    pale, nameless = "<p style='color: #bbb'>pale</p>", "<button></button><img src='data:,'>"
    tab.set_content(f"<main><h1>A</h1><h3>B</h3>{pale}{nameless}</main>")

    found = "\n".join(problems(tab))

    for what in ("headings 1,3", "a button without a name", "contrast 1.92: pale", "color-contrast:", "image-alt:"):
        assert what in found


def test_a_task_tells_its_error_and_no_secret(shop: Any, look: Any) -> None:
    tab = look()
    tab.goto(f"{shop.url}/tasks?state=dead&queue=mail")
    tab.locator("a.row-link").first.click()
    tab.wait_for_selector("ol.timeline")

    assert "is no address: it has no @" in tab.inner_text("main")
    assert "sk-1" not in tab.content()


def test_pages_are_read_without_javascript(shop: Any, look: Any) -> None:
    tab = look(size="phone", java_script_enabled=False)

    tab.goto(shop.url + "/")
    tab.get_by_role("navigation").get_by_role("link", name="Queues").click()
    tab.get_by_role("link", name="mail", exact=True).click()

    assert tab.inner_text("h1") == "mail"


BEYOND = """() => [...document.querySelectorAll("table.cards td")]
  .filter((cell) => cell.offsetParent !== null)
  .map((cell) => {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), range = document.createRange();
    const boxes = [...cell.querySelectorAll(".shares")].map((one) => one.getBoundingClientRect());
    const edge = cell.getBoundingClientRect();
    while (texts.nextNode()) {
      range.selectNodeContents(texts.currentNode);
      for (const box of range.getClientRects()) {
        const meets = boxes.some((bar) => box.right > bar.left + 1 && box.left < bar.right - 1
                                          && box.bottom > bar.top + 1 && box.top < bar.bottom - 1);
        if (meets || box.left < edge.left - 1 || box.right > edge.right + 1) return cell.textContent;
      }
    }
  }).filter(Boolean)"""


@contextmanager
def long_names(
    shop: Any, serve: Callable[..., str], job: str = "company.invoices.quarterly.SendInvoice", rest: str = ""
) -> Iterator[str]:
    """The address of a dashboard with a job and a queue that have long names, and a worker."""
    from jobrunner.web.app import create_app
    from jobrunner.web.auth import Loopback

    client = Client(shop.server.url, f"long-names-{time.monotonic_ns()}")
    queue = client.queue(f"invoices-of-western-europe.service.events{rest}")
    for number in range(3):
        client.enqueue(Task(id=new_id(queue.name), type=job, queue=queue.name, payload=b"{}", max_attempts=1))
        (lease,) = queue.reserve(1)
        lease.rollback(error=f"ValueError: order {number} cannot be delivered")
    queue.pause()
    queue.resume()
    worker = Worker(client=client, queues=[queue.name], concurrency=4)
    worker.start()
    try:
        wait_for(client.workers)
        yield serve(create_app(client, auth=Loopback()))
    finally:
        worker.stop(grace=0)
        client.close()


def test_long_names_stay_in_their_cells_on_a_phone(shop: Any, serve: Callable[..., str], look: Any) -> None:
    with long_names(shop, serve) as home:
        tab = look(size="phone")
        for path in ("/dead", "/tasks?state=dead", "/workers", "/queues"):
            tab.goto(home + path)
            assert tab.locator("table.cards td").count() > 2, path
            assert tab.evaluate(BEYOND) == [], path


@pytest.mark.parametrize("size", ["phone", "desk"])
def test_names_of_128_characters_push_nothing_off_the_page(
    shop: Any, serve: Callable[..., str], look: Any, size: str
) -> None:
    with long_names(shop, serve, job="x" * 128, rest="x" * 87) as home:
        tab = look(size=size)
        found = {}
        for path in ("/", "/dead", "/events", "/workers", "/queues"):
            tab.goto(home + path)
            assert tab.get_by_text("x" * 87).count(), path
            found[path] = tab.evaluate(CUT_OFF)

    assert {path: what for path, what in found.items() if what} == {}


def test_queues_are_found_by_name_on_a_phone(shop: Any, look: Any) -> None:
    tab = look(size="phone")
    tab.goto(shop.url + "/queues")

    tab.locator("input[name=q]").fill("bill", timeout=5_000)
    tab.locator("input[name=q]").press("Enter")
    tab.wait_for_url("**q=bill**")

    assert tab.locator("table.cards td.lead a").all_inner_texts() == ["billing"]
