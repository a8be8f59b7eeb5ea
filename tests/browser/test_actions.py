"""Every action, done as a person does it: a button, a question, an answer, and what came of it on the server."""

from collections.abc import Iterable
from typing import Any

import pytest

from tests.support.waiting import wait_for

ODD_AND_EVEN = ("even", "odd")


def confirm(tab: Any, answer: str = "yes") -> None:
    """Answers the question that is asked."""
    tab.locator(f"dialog[open] [value={answer}]").click()


def press(tab: Any, name: str, *, within: str = "main", asked: bool = True) -> None:
    """Presses a button by its name, and says yes to what it asks."""
    tab.locator(within).get_by_role("button", name=name, exact=True).first.click()
    if asked:
        confirm(tab)


def told(tab: Any) -> str:
    """The line that an action left."""
    return str(tab.locator("main > .note-bar[role=status]").inner_text())


def dead(shop: Any, name: str, errors: Iterable[str]) -> Any:
    """A queue with one dead task for each error."""
    queue = shop.client.queue(name)
    queue.configure(max_attempts=1)
    found = list(errors)
    queue.push_many([{"n": n} for n in range(len(found))])
    for lease in queue.reserve(len(found)):
        lease.rollback(error=found[lease.payload["n"]])
    return queue


@pytest.fixture
def tab(look: Any) -> Any:
    return look()


def test_a_queue_is_paused_only_when_somebody_says_yes(shop: Any, tab: Any) -> None:
    queue = shop.client.queue("mail")
    tab.goto(f"{shop.url}/queues/mail")

    press(tab, "Pause", asked=False)
    confirm(tab, "no")
    assert not queue.is_paused()

    press(tab, "Pause")
    tab.wait_for_selector(".badge.paused")
    assert queue.is_paused()

    press(tab, "Resume", asked=False)
    tab.wait_for_selector("#state .badge.good")
    assert not queue.is_paused()
    assert "mail" in told(tab)


def test_limits_are_set_and_lifted(shop: Any, tab: Any) -> None:
    queue = shop.client.queue("images")
    tab.goto(f"{shop.url}/queues/images")

    tab.fill("[name=max_inflight]", "7")
    tab.fill("[name=rate_max]", "100")
    tab.select_option("[name=rate_unit]", "MINUTES")
    press(tab, "Set limits", asked=False)
    tab.wait_for_load_state()
    wait_for(lambda: queue.settings().max_inflight == 7)
    assert (queue.settings().rate.max_tokens, queue.settings().rate.interval_unit) == (100, "MINUTES")
    tab.goto(f"{shop.url}/queues?q=images")
    assert "7 at once" in tab.locator("tr[data-key=images]").inner_text()

    tab.goto(f"{shop.url}/queues/images")
    tab.fill("[name=max_inflight]", "")
    tab.fill("[name=rate_max]", "")
    press(tab, "Set limits", asked=False)
    wait_for(lambda: queue.settings().max_inflight == 0 and queue.settings().rate is None)


def test_a_queue_is_purged(shop: Any, tab: Any) -> None:
    queue = shop.client.queue("attic")
    queue.push_many([1, 2, 3])
    tab.goto(f"{shop.url}/queues/attic")

    tab.select_option("select[name=state]", "waiting")
    press(tab, "Purge…")
    tab.wait_for_url("**/operations/*")

    wait_for(lambda: queue.counts()["waiting"] == 0)
    tab.locator("#state:has-text('done')").wait_for()
    assert "3 of 3" in tab.locator("#progress h2").inner_text()


@pytest.mark.parametrize("script", [True, False])
def test_a_dead_task_is_requeued_with_and_without_javascript(shop: Any, look: Any, script: bool) -> None:
    queue = dead(shop, f"dying-{script}", ["no"])
    tab = look(java_script_enabled=script)

    tab.goto(f"{shop.url}/dead?queue={queue.name}")
    tab.locator("#tasks a.row-link").click()
    press(tab, "Requeue", asked=False)

    wait_for(lambda: queue.counts()["waiting"] == 1)
    tab.locator("#state:has-text('waiting')").wait_for()


def test_a_task_is_cancelled_run_now_and_deleted(shop: Any, look: Any) -> None:
    tab = look(astray=True)  # a page that follows a task may find it gone before it leads elsewhere
    from tests.browser import scene  # where it is imported at the top, each test process has its pipeline "orders"

    later = [scene.send_mail.using(in_=3600).enqueue(to="a@example.com", template=str(n)) for n in range(3)]

    for handle, name in zip(later, ("Cancel", "Run now", "Delete"), strict=True):
        tab.goto(f"{shop.url}/tasks/{handle.id}")
        press(tab, name, asked=name != "Run now")
        tab.wait_for_selector("main > .note-bar[role=status]")

    wait_for(lambda: not later[0].exists() or later[0].record().state == "cancelled")
    wait_for(lambda: later[1].record().state == "succeeded")
    wait_for(lambda: not later[2].exists())


def test_a_finished_task_is_run_again(shop: Any, tab: Any) -> None:
    before = shop.client.queue("mail").totals()["enqueued"]
    tab.goto(f"{shop.url}/history?queue=mail")

    tab.get_by_role("button", name="Run again").first.click()
    confirm(tab)

    wait_for(lambda: shop.client.queue("mail").totals()["enqueued"] == before + 1)


def test_chosen_tasks_are_deleted(shop: Any, tab: Any) -> None:
    queue = shop.client.queue("chosen")
    queue.push_many([{"n": n} for n in range(5)])
    tab.goto(f"{shop.url}/tasks?queue=chosen&state=waiting")
    assert tab.locator(".bulk button[value=delete]").is_disabled()

    for at in (0, 2):
        tab.locator("input[name=ids]").nth(at).check()
    assert "2 selected" in tab.locator("[data-count]").inner_text()
    press(tab, "Delete", within=".bulk")

    wait_for(lambda: queue.counts()["waiting"] == 3)


def test_a_range_is_chosen_with_shift(shop: Any, tab: Any) -> None:
    tab.goto(f"{shop.url}/tasks?queue=newsletter&state=waiting")

    tab.locator("input[name=ids]").nth(1).click()
    tab.locator("input[name=ids]").nth(6).click(modifiers=["Shift"])

    assert tab.locator("input[name=ids]:checked").count() == 6


def test_all_that_match_are_requeued_in_the_background(shop: Any, tab: Any) -> None:
    queue = dead(shop, "broken", ODD_AND_EVEN * 150)
    tab.goto(f"{shop.url}/tasks?queue=broken&state=dead&error=odd")

    tab.locator("input[name=all]").check()
    press(tab, "Requeue", within=".bulk")

    tab.wait_for_url("**/operations/*")
    wait_for(
        lambda: queue.counts() | {"done": 0} == {"waiting": 150, "scheduled": 0, "pending": 0, "dead": 150, "done": 0}
    )
    tab.locator("#state:has-text('done')").wait_for()  # it is noted behind the last slice
    tab.reload()
    assert "300 of 300" in tab.locator("#progress h2").inner_text()
    assert "150" in tab.locator("#facts").inner_text()
    assert tab.locator("#state").inner_text() == "done"


def test_the_dead_are_requeued_and_purged_by_what_they_died_of(shop: Any, tab: Any) -> None:
    queue = dead(shop, "failing", ODD_AND_EVEN * 10)

    tab.goto(f"{shop.url}/dead?queue=failing&error=odd")
    press(tab, "Requeue all that match")
    wait_for(lambda: queue.counts()["waiting"] == 10)
    tab.goto(f"{shop.url}/dead?queue=failing")
    press(tab, "Purge all that match")

    wait_for(lambda: queue.counts()["dead"] == 0)


def test_a_periodic_job_is_run_disabled_and_enabled(shop: Any, tab: Any) -> None:
    def job() -> Any:
        return next(one for one in shop.client.periodics() if one.name == "send_report")

    before = shop.client.queue("reports").totals().get("enqueued", 0)
    tab.goto(f"{shop.url}/periodic")
    press(tab, "Run now send_report")
    wait_for(lambda: shop.client.queue("reports").totals()["enqueued"] > before)

    press(tab, "Disable send_report")
    tab.wait_for_selector("tr:has-text('send_report') .badge.paused")
    assert not job().enabled
    press(tab, "Enable send_report", asked=False)
    wait_for(lambda: job().enabled)


def test_an_action_is_noted_in_the_audit_log(shop: Any, tab: Any) -> None:
    queue = shop.client.queue("reports")
    tab.goto(f"{shop.url}/queues")
    press(tab, "Pause reports", asked=False)
    wait_for(lambda: queue.is_paused())
    press(tab, "Resume reports", asked=False)
    wait_for(lambda: not queue.is_paused())

    tab.goto(f"{shop.url}/audit")

    first = tab.locator("#entries tbody tr").first.inner_text()
    assert "queue.resume" in first
    assert "reports" in first


def test_a_worker_is_quieted_and_resumed(shop: Any, tab: Any) -> None:
    worker = next(one.id for one in shop.client.workers() if "mail" in one.queues)

    def is_quiet() -> bool:
        return next(one.quiet for one in shop.client.workers() if one.id == worker)

    tab.goto(f"{shop.url}/workers")
    press(tab, f"Quiet {worker}")
    wait_for(is_quiet, timeout_s=30)
    tab.goto(f"{shop.url}/workers")
    press(tab, f"Resume {worker}", asked=False)

    wait_for(lambda: not is_quiet(), timeout_s=30)
