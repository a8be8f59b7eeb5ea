"""Every action, done as a person does it: a button, a question, an answer, and what came of it on the server."""

from typing import Any

import pytest

from tests.browser import scene
from tests.conftest import wait_for


def confirm(tab: Any, verb: str | None = None) -> None:
    """Says yes to the question."""
    dialog = tab.locator("dialog[open]")
    dialog.wait_for()
    dialog.locator("[value=yes]").click()


def told(tab: Any) -> str:
    """The line that an action left."""
    return str(tab.locator("main > .note-bar[role=status]").inner_text())


@pytest.fixture
def tab(look: Any) -> Any:
    return look()


def test_a_queue_is_paused_only_when_somebody_says_yes(shop: Any, tab: Any) -> None:
    queue = shop.client.queue("mail")
    tab.goto(f"{shop.url}/queues/mail")

    tab.get_by_role("button", name="Pause", exact=True).last.click()
    tab.locator("dialog[open] [value=no]").click()
    assert not queue.paused

    tab.locator("#queue-actions button", has_text="Pause").click()
    confirm(tab)
    tab.wait_for_selector(".badge.paused")
    assert queue.paused

    tab.locator("#queue-actions button", has_text="Resume").click()
    tab.wait_for_selector("#state .badge.good")
    assert not queue.paused
    assert "mail" in told(tab)


def test_limits_are_set_and_lifted(shop: Any, tab: Any) -> None:
    queue = shop.client.queue("images")
    tab.goto(f"{shop.url}/queues/images")

    tab.fill("[name=max_inflight]", "7")
    tab.fill("[name=rate_max]", "100")
    tab.select_option("[name=rate_unit]", "MINUTES")
    tab.get_by_role("button", name="Set limits").click()
    tab.wait_for_load_state()
    wait_for(lambda: queue.settings.max_inflight == 7)
    assert (queue.settings.rate.max_tokens, queue.settings.rate.interval_unit) == (100, "MINUTES")

    tab.fill("[name=max_inflight]", "")
    tab.fill("[name=rate_max]", "")
    tab.get_by_role("button", name="Set limits").click()
    wait_for(lambda: queue.settings.max_inflight == 0 and queue.settings.rate is None)


def test_a_queue_is_purged(shop: Any, tab: Any) -> None:
    queue = shop.client.queue("attic")
    queue.push_many([1, 2, 3])
    tab.goto(f"{shop.url}/queues/attic")

    tab.select_option("select[name=state]", "waiting")
    tab.get_by_role("button", name="Purge…").click()
    confirm(tab)

    wait_for(lambda: queue.counts()["waiting"] == 0)
    assert "3" in told(tab)


@pytest.mark.parametrize("script", [True, False])
def test_a_dead_task_is_requeued_with_and_without_javascript(shop: Any, look: Any, script: bool) -> None:
    queue = shop.client.queue(f"dying-{script}")
    queue.configure(max_attempts=1)
    queue.push({"n": 1})
    queue.reserve()[0].rollback(error="no")
    tab = look(java_script_enabled=script)

    tab.goto(f"{shop.url}/dead?queue={queue.name}")
    tab.locator("a.row-link").click()
    tab.get_by_role("button", name="Requeue").click()

    wait_for(lambda: queue.counts()["waiting"] == 1)
    assert tab.locator("#state").inner_text() == "waiting"


def test_a_task_is_cancelled_run_now_and_deleted(shop: Any, tab: Any) -> None:
    later = [scene.send_mail.using(in_=3600).enqueue(to="a@example.com", template=str(n)) for n in range(3)]
    button = {"Cancel": "Cancel", "Run now": "Run now", "Delete": "Delete"}

    for handle, name in zip(later, button, strict=True):
        tab.goto(f"{shop.url}/tasks/{handle.id}")
        tab.locator("#task-actions button", has_text=name).click()
        if name != "Run now":
            confirm(tab)
        tab.wait_for_selector("main > .note-bar[role=status]")

    wait_for(lambda: not later[0].exists or later[0].state == "cancelled")
    wait_for(lambda: later[1].state == "succeeded")
    wait_for(lambda: not later[2].exists)


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
    tab.locator(".bulk button[value=delete]").click()
    confirm(tab)

    wait_for(lambda: queue.counts()["waiting"] == 3)


def test_a_range_is_chosen_with_shift(shop: Any, tab: Any) -> None:
    tab.goto(f"{shop.url}/tasks?queue=newsletter&state=waiting")

    tab.locator("input[name=ids]").nth(1).click()
    tab.locator("input[name=ids]").nth(6).click(modifiers=["Shift"])

    assert tab.locator("input[name=ids]:checked").count() == 6


def test_all_that_match_are_requeued_in_the_background(shop: Any, tab: Any) -> None:
    queue = shop.client.queue("broken")
    queue.configure(max_attempts=1)
    queue.push_many([{"n": n} for n in range(300)])
    for lease in queue.reserve(300):
        lease.rollback(error="odd" if lease.payload["n"] % 2 else "even")
    tab.goto(f"{shop.url}/tasks?queue=broken&state=dead&error=odd")

    tab.locator("input[name=all]").check()
    tab.locator(".bulk button[value=requeue]").click()
    confirm(tab)

    tab.wait_for_url("**/operations/*")
    wait_for(
        lambda: queue.counts() | {"done": 0} == {"waiting": 150, "scheduled": 0, "pending": 0, "dead": 150, "done": 0}
    )
    tab.reload()
    assert "300 of 300" in tab.locator("#progress h2").inner_text()
    assert "150" in tab.locator("#facts").inner_text()
    assert tab.locator("#state").inner_text() == "done"


def test_the_dead_are_requeued_and_purged_by_what_they_died_of(shop: Any, tab: Any) -> None:
    queue = shop.client.queue("failing")
    queue.configure(max_attempts=1)
    queue.push_many([{"n": n} for n in range(20)])
    for lease in queue.reserve(20):
        lease.rollback(error="odd" if lease.payload["n"] % 2 else "even")

    tab.goto(f"{shop.url}/dead?queue=failing&error=odd")
    tab.get_by_role("button", name="Requeue all that match").click()
    confirm(tab)
    wait_for(lambda: queue.counts()["waiting"] == 10)
    tab.goto(f"{shop.url}/dead?queue=failing")
    tab.get_by_role("button", name="Purge all that match").click()
    confirm(tab)

    wait_for(lambda: queue.counts()["dead"] == 0)


def test_a_periodic_job_is_run_disabled_and_enabled(shop: Any, tab: Any) -> None:
    def job() -> Any:
        return next(one for one in shop.client.periodics() if one.name == "send_report")

    before = shop.client.queue("reports").totals().get("enqueued", 0)
    tab.goto(f"{shop.url}/periodic")
    tab.get_by_role("button", name="Run now send_report").click()
    confirm(tab)
    wait_for(lambda: shop.client.queue("reports").totals()["enqueued"] > before)

    tab.get_by_role("button", name="Disable send_report").click()
    confirm(tab)
    tab.wait_for_selector("tr:has-text('send_report') .badge.paused")
    assert not job().enabled
    tab.get_by_role("button", name="Enable send_report").click()
    wait_for(lambda: job().enabled)


def test_an_action_is_noted_in_the_audit_log(shop: Any, tab: Any) -> None:
    tab.goto(f"{shop.url}/queues")
    tab.get_by_role("button", name="Pause reports").click()
    wait_for(lambda: shop.client.queue("reports").paused)
    tab.get_by_role("button", name="Resume reports").click()
    wait_for(lambda: not shop.client.queue("reports").paused)

    tab.goto(f"{shop.url}/audit")

    first = tab.locator("#entries tbody tr").first.inner_text()
    assert "queue.resume" in first
    assert "reports" in first


def test_a_worker_is_quieted_and_resumed(shop: Any, tab: Any) -> None:
    tab.goto(f"{shop.url}/workers")

    tab.get_by_role("button", name="Quiet").first.click()
    confirm(tab)

    tab.wait_for_selector("main > .note-bar[role=status]")
    assert shop.client.broker.run(_orders(shop))


def _orders(shop: Any) -> Any:
    from jobrunner.broker.call import command

    worker = shop.client.workers()[0].id
    return command("HGETALL", shop.client.keys.worker(worker) + b":orders", read=lambda reply: reply)
