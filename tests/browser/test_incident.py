"""What is used when something breaks: alerts, plots that lead to tasks, local times, searches, flows, edits."""

from collections.abc import Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from jobrunner import chain, group
from tests.browser.accessible import problems
from tests.browser.conftest import THEMES
from tests.browser.scene import charge, send_mail
from tests.support.waiting import wait_for

WIDTHS = (390, 1440)
HAYSTACK = 20_000
BARS = "#plot-ended svg.plot-area [data-tip]"


@pytest.fixture
def tab(look: Any) -> Any:
    return look()


@pytest.fixture(scope="module")
def alerting(shop: Any, serve: Callable[..., str]) -> Callable[..., str]:
    """alerting(failed_share=…): the URL of a dashboard of the shop with these thresholds."""
    from jobrunner.web.app import create_app
    from jobrunner.web.auth import Loopback

    return lambda **alerts: serve(create_app(shop.client, auth=Loopback(), alerts=alerts))


@pytest.fixture(scope="module")
def flow(shop: Any) -> Any:
    """A flow of three mails and a bill."""
    mails = [send_mail.bind(to=f"{n}@example.com", template="flow") for n in range(3)]
    return chain(group(*mails), charge.bind(invoice=1, amount=1.5)).enqueue()


def colour_of(tab: Any, figure: str) -> str:
    """The painted colour of the number of a figure of the overview."""
    value = tab.locator(".figure", has_text=figure).locator(".value")
    return str(value.evaluate("(node) => getComputedStyle(node).color"))


@pytest.mark.parametrize("theme", THEMES)
def test_a_figure_above_its_threshold_has_the_colour_of_an_alert(
    alerting: Callable[..., str], look: Any, theme: str
) -> None:
    tab = look(theme=theme)
    tab.goto(alerting(failed_share=0.001, dead_per_hour=0.1) + "/")
    bad = tab.evaluate(
        "() => { const node = document.createElement('i'); node.className = 'bad'; document.body.append(node);"
        "return getComputedStyle(node).color }"
    )
    above = colour_of(tab, "Failed attempts")
    told = tab.inner_text("#thresholds")

    tab.goto(alerting(failed_share=0.9, dead_per_hour=0) + "/")
    below = colour_of(tab, "Failed attempts")

    assert (above == bad, below == bad) == (True, False)
    assert "failed attempts 0.1 %" in told
    assert "none for dead tasks" in tab.inner_text("#thresholds")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_tip_of_the_last_bar_stays_within_its_card_and_wraps_nothing(shop: Any, tab: Any, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 900})
    tab.goto(shop.url + "/")
    bar = tab.locator(BARS).last
    bar.scroll_into_view_if_needed()
    box = bar.bounding_box()

    tab.mouse.move(box["x"] + box["width"] - 0.5, box["y"] + box["height"] - 2)
    tip = tab.locator(".tip")
    tip.wait_for()

    card = tab.locator(".card", has=tab.locator("#plot-ended")).bounding_box()
    told = tip.bounding_box()
    assert card["x"] <= told["x"]
    assert told["x"] + told["width"] <= card["x"] + card["width"]
    lines = tip.inner_text().splitlines()
    line_px = tip.evaluate("(node) => parseFloat(getComputedStyle(node).lineHeight)")
    assert told["height"] < (len(lines) + 1) * line_px + 16, lines


def test_a_click_on_a_bar_opens_the_tasks_of_its_time_and_queue(shop: Any, tab: Any) -> None:
    queue = shop.client.queue("clicked")
    queue.push({"of": "any time"})
    tab.add_init_script("sessionStorage.setItem('live', 'off')")  # a new minute would have a bar of its own
    tab.goto(f"{shop.url}/queues/clicked")
    task = queue.push({"of": "this minute, or the next"})
    bar = tab.locator(BARS).last
    begins = datetime.fromisoformat(bar.get_attribute("data-at"))

    bar.click(force=True)
    tab.wait_for_url("**/tasks?*")
    tab.wait_for_selector(f"#tasks tr[data-key='clicked {task}']")

    assert datetime.fromisoformat(tab.input_value("[name=since]")) == begins
    assert datetime.fromisoformat(tab.input_value("[name=until]")) > begins
    assert tab.input_value("[name=queue]") == "clicked"


@pytest.mark.parametrize("zone", ["Europe/Madrid", "America/St_Johns"])
def test_times_are_in_the_zone_of_the_browser_with_utc_under_the_pointer(shop: Any, look: Any, zone: str) -> None:
    tab = look(timezone_id=zone)
    dead = shop.client.queue("mail").ids("dead")[0]
    for path in (f"/tasks/{dead}?queue=mail", "/audit", "/periodic", "/"):
        tab.goto(shop.url + path)
        tab.wait_for_selector("#live-sign[data-state=live]", state="attached")
        told = tab.evaluate(
            "() => [...document.querySelectorAll('time:not([data-relative])')]"
            ".map((one) => [one.dateTime, one.textContent, one.title])"
        )
        for instant, shown, title in told:
            at = datetime.fromisoformat(instant)
            assert shown == f"{at.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S}", path
            assert title == f"{at.astimezone(ZoneInfo('UTC')):%Y-%m-%d %H:%M:%S} UTC", path
        if path.startswith("/tasks"):
            assert told, "the page of a task has instants"
    label = tab.locator(".plot-x text[data-at]").first
    at = datetime.fromisoformat(label.get_attribute("data-at")).astimezone(ZoneInfo(zone))
    assert label.text_content() in (f"{at:%H:%M}", f"{at:%b %d}", f"{at:%d %b}")
    assert tab.locator("[data-zone]").first.inner_text() == zone


def test_a_search_of_20_000_tasks_stops_and_goes_on_to_its_end(shop: Any, tab: Any) -> None:
    queue = shop.client.queue("meadow")
    queue.push_many({"n": number} for number in range(HAYSTACK))
    needle = queue.push({"needle": 1})
    held: list[Any] = []
    tab.route("**/tasks?*after=*", lambda route: held.append(route) if len(held) < 1 else route.continue_())

    tab.goto(f"{shop.url}/tasks?queue=meadow&param=needle")
    wait_for(lambda: tab.wait_for_timeout(20) or held)
    tab.click("#searching [data-stop]")
    onward = tab.locator("#searching [data-onward]")
    onward.wait_for()
    assert "of 20,001, not finished" in tab.inner_text("#searching")
    assert "Nothing found" not in tab.inner_text("main")
    assert tab.locator("#tasks tbody tr").count() == 0

    onward.click()
    tab.wait_for_selector(f"#tasks tr[data-key='meadow {needle}']")
    tab.wait_for_selector("#searching [data-next]", state="detached")

    assert "20,001 searched" in tab.inner_text("#found")
    assert tab.locator("#tasks tbody tr").count() == 1


def test_a_flow_leads_to_its_tasks_and_they_lead_back(shop: Any, flow: Any, tab: Any) -> None:
    tab.goto(f"{shop.url}/flows")
    tab.locator(f"#flows a[href$='/flows/{flow.id}']").click()
    tab.locator("#steps a.row-link").first.click()
    tab.wait_for_url("**/tasks/*")
    assert tab.inner_text("h1") == "send_mail"

    tab.locator("dl.facts a[href*='/flows/']").click()
    tab.wait_for_url(f"**/flows/{flow.id}")
    tab.locator("#steps a[href*='/queues/']").first.click()

    assert tab.inner_text("h1") == "mail"


def test_a_task_of_a_station_leads_to_its_pipeline(shop: Any, tab: Any) -> None:
    queue = shop.client.queue("orders/lost")
    tab.goto(f"{shop.url}/tasks/{queue.ids('waiting')[0]}?queue=orders/lost")

    tab.locator("dl.facts a[href$='/pipelines/orders']").click()

    assert tab.inner_text("h1") == "orders"


def test_a_dead_task_is_edited_and_succeeds(shop: Any, tab: Any) -> None:
    send_mail.enqueue(to="nowhere.example.com", template="edit")
    queue = shop.client.queue("mail")
    dead = wait_for(lambda: [one.id for one in queue.tasks("dead") if "nowhere.example.com" in str(one.payload)])[0]
    tab.goto(f"{shop.url}/tasks/{dead}?queue=mail")

    tab.locator("details.edit summary").click()
    params = tab.locator("details.edit textarea")
    assert "nowhere.example.com" in params.input_value()
    params.fill(params.input_value().replace("nowhere.example.com", "ada@example.com"))
    tab.get_by_role("button", name="Requeue with these").click()

    wait_for(lambda: shop.client.task(dead, queue="mail").record().state == "succeeded")
    tab.wait_for_selector("#state:has-text('succeeded')")
    assert "changed: to" in tab.locator("main > .note-bar[role=status]").inner_text()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_pages_of_an_incident_can_be_read_by_everybody(
    shop: Any, flow: Any, alerting: Callable[..., str], look: Any, width: int, theme: str
) -> None:
    tab = look(theme=theme)
    tab.set_viewport_size({"width": width, "height": 844})
    dead = shop.client.queue("mail").ids("dead")[0]
    places = {
        "alerts": alerting(failed_share=0.001) + "/",
        "bar": f"{shop.url}/tasks?since=15%20min",
        "edit": f"{shop.url}/tasks/{dead}?queue=mail",
        "flow": f"{shop.url}/flows/{flow.id}",
        "limits": f"{shop.url}/queues/exports",
        "ticks": f"{shop.url}/periodic",
        "search": f"{shop.url}/tasks?queue=newsletter&param=nowhere",
        "audit": f"{shop.url}/audit",
    }
    found = {}
    for name, url in places.items():
        tab.goto(url)
        if name == "edit":
            tab.locator("details.edit summary").click()
        found[name] = problems(tab)

    assert {name: what for name, what in found.items() if what} == {}
