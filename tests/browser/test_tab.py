"""An open tab follows the live stream, reports when the stream is interrupted, and can be used by keyboard."""

from typing import Any

import pytest

from jobrunner import Client
from jobrunner.broker.calls import leases
from jobrunner.client.client import broker_of, keys_of
from jobrunner.task import Task
from tests.browser.conftest import SIZES
from tests.browser.test_actions import confirm
from tests.support.server import Server

HIDE = """Object.defineProperty(document, 'hidden', {value: %s, configurable: true});
document.dispatchEvent(new Event('visibilitychange'))"""


@pytest.fixture
def tab(look: Any) -> Any:
    return look()


def sign(tab: Any, state: str, *, seen: bool = True) -> None:
    """Returns when the tab says so of itself; on a phone it says so in the menu."""
    wanted = "visible" if seen else "attached"
    tab.wait_for_selector(f"#live-sign[data-state={state}]", timeout=15_000, state=wanted)


def test_numbers_follow_without_a_reload(shop: Any, tab: Any) -> None:
    tab.goto(f"{shop.url}/queues?q=follow")
    sign(tab, "live")
    tab.evaluate("window.here = 1")

    shop.client.queue("follow").push_many(range(5))
    tab.wait_for_selector("tr[data-key=follow] td[data-name=Waiting]:text-is('5')")
    shop.client.queue("follow").pop(2)
    tab.wait_for_selector("tr[data-key=follow] td[data-name=Waiting]:text-is('3')")

    assert tab.evaluate("window.here") == 1


def test_what_a_page_had_no_reason_to_show_at_first_appears_and_goes(shop: Any, serve: Any, tab: Any) -> None:
    """The count of dead tasks in the menu, the bar of bulk actions, progress and error of a task."""
    from jobrunner.web.app import create_app
    from jobrunner.web.auth import Loopback

    with Client(shop.server.url, "unused") as client:
        queue = client.queue("mail")
        queue.configure(max_attempts=1)
        url = serve(create_app(client, auth=Loopback()))
        tab.goto(f"{url}/tasks")
        sign(tab, "live")
        assert not tab.is_visible(".bulk, #count-dead")

        (task_id,) = queue.push_many([{"n": 1}])
        tab.locator("input[name=ids]").check()
        assert tab.inner_text(".bulk [data-count]") == "1 selected"
        assert "(1)" in tab.inner_text(".bulk label")

        (lease,) = queue.reserve()
        tab.goto(f"{url}/tasks/{task_id}?queue=mail")
        sign(tab, "live")
        said = b'{"done": 1, "total": 2, "note": "half of it"}'
        broker_of(client).run(leases.progress(keys_of(client).queue("mail"), task_id, lease.token, said))
        tab.wait_for_selector("#progress :text('half of it')")
        lease.rollback(error="ValueError: no address")
        tab.wait_for_selector("#error :text('no address')")
        tab.wait_for_selector("#count-dead:text-is('1')")
        queue.requeue_dead()
        tab.wait_for_selector("#count-dead", state="hidden")


def test_what_was_chosen_and_typed_stays_while_the_page_follows(shop: Any, tab: Any) -> None:
    shop.client.queue("kept").push_many(range(3))
    tab.goto(f"{shop.url}/tasks?queue=kept&state=waiting")
    sign(tab, "live")
    tab.locator("input[name=ids]").first.check()
    tab.fill("[name=error]", "half a wo")

    shop.client.queue("kept").push(4)
    tab.locator("input[name=ids]").nth(3).wait_for()

    assert tab.locator("input[name=ids]").first.is_checked()
    assert tab.input_value("[name=error]") == "half a wo"


def test_tasks_of_one_id_in_two_queues_stay_while_the_page_follows(shop: Any, tab: Any) -> None:
    for queue in ("twin-a", "twin-b"):
        shop.client.enqueue(Task(id="twin", queue=queue, type="", payload=b"1", delay_ms=1_000_000))
    tab.goto(f"{shop.url}/tasks?state=scheduled")
    sign(tab, "live")
    assert tab.locator("tr:has-text('twin')").count() == 2

    shop.client.enqueue(Task(id="twin-c", queue="twin-c", type="", payload=b"1", delay_ms=1_000_000))
    tab.locator("tr:has-text('twin-c')").wait_for()

    assert tab.locator("tr:has-text('twin')").count() == 3


def test_a_search_goes_on_by_itself_to_the_last_task(shop: Any, tab: Any) -> None:
    shop.client.queue("haystack").push_many({"n": number} for number in range(12_000))
    needle = shop.client.queue("haystack").push({"needle": 1})
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))

    tab.goto(f"{shop.url}/tasks?queue=haystack&param=needle")
    tab.wait_for_selector(f"#tasks tr[data-key='haystack {needle}']")
    tab.wait_for_selector("#searching [data-next]", state="detached")

    assert len([url for url in asked if "after=" in url]) >= 2
    assert tab.locator("#tasks tbody tr").count() == 1
    assert "12,001 searched" in tab.inner_text("#found")
    tab.locator("#tasks input[name=ids]").check()
    assert tab.is_enabled(".bulk button[value=delete]")


def test_a_search_that_is_stopped_says_that_it_is_not_finished_and_goes_on_by_its_link(shop: Any, tab: Any) -> None:
    shop.client.queue("barn").push_many({"n": number} for number in range(12_000))
    tab.add_init_script("window.fetch = () => new Promise(() => undefined)")  # the next piece never comes

    tab.goto(f"{shop.url}/tasks?queue=barn&param=needle")
    tab.click("#searching [data-stop]")
    tab.wait_for_selector("#searching [data-onward]")

    assert "of 12,000, not finished" in tab.inner_text("#searching")
    assert "Nothing found" not in tab.inner_text("main")
    assert not tab.is_visible(".bulk")
    assert "after=" in (tab.get_attribute("#searching [data-onward]", "href") or "")


def test_on_a_phone_the_filters_are_folded(shop: Any, look: Any) -> None:
    tab = look(size="phone")
    tab.goto(f"{shop.url}/tasks")
    assert not tab.is_visible("[name=error]")

    tab.click("[data-fold]")

    assert tab.is_visible("[name=error]")
    assert tab.get_attribute("[data-fold]", "aria-expanded") == "true"


def test_a_hidden_tab_asks_for_nothing(shop: Any, tab: Any) -> None:
    tab.goto(f"{shop.url}/")
    sign(tab, "live")
    asked: list[str] = []

    tab.evaluate(HIDE % "true")
    sign(tab, "paused")
    tab.on("request", lambda request: asked.append(request.url))
    shop.client.queue("follow").push(1)
    tab.wait_for_timeout(3000)
    assert asked == []

    tab.evaluate(HIDE % "false")
    sign(tab, "live")


def test_live_updates_are_paused_and_stay_so_on_the_next_page(shop: Any, tab: Any) -> None:
    tab.goto(f"{shop.url}/")
    sign(tab, "live")

    tab.click("#live-switch")
    sign(tab, "paused")
    tab.goto(f"{shop.url}/queues")
    sign(tab, "paused")
    tab.click("#live-switch")

    sign(tab, "live")


def test_a_tab_says_when_the_dashboard_is_gone(shop: Any, chromium: Any) -> None:
    context = chromium.new_context()
    tab = context.new_page()
    tab.goto(f"{shop.url}/")
    sign(tab, "live")

    tab.context.set_offline(True)
    tab.evaluate(HIDE % "true")
    tab.evaluate(HIDE % "false")

    sign(tab, "lost")
    tab.context.set_offline(False)
    sign(tab, "live")
    context.close()


@pytest.mark.parametrize("size", ["desk", "phone"])
def test_a_tab_says_above_its_numbers_that_the_server_is_away(serve: Any, chromium: Any, size: str) -> None:
    from jobrunner.web.app import create_app
    from jobrunner.web.auth import Loopback

    server = Server(appendonly="yes", appendfsync="always")
    width, height = SIZES[size]
    context = chromium.new_context(viewport={"width": width, "height": height})
    with Client(server.url, "away") as client:
        client.queue("mail").push_many(range(3))
        tab = context.new_page()
        tab.goto(f"{serve(create_app(client, auth=Loopback()))}/queues/mail")
        sign(tab, "live", seen=size == "desk")

        server.kill()

        tab.wait_for_selector("#lost:has-text('The server is away')")
        assert "What this page shows was read before that." in tab.inner_text("#lost")
        server.start()
        tab.wait_for_selector("#lost", state="detached")
        sign(tab, "live", seen=size == "desk")
    context.close()
    server.remove()


def test_a_page_that_was_opened_while_the_server_is_away_opens_once_it_is_back(serve: Any, chromium: Any) -> None:
    from jobrunner.web.app import create_app
    from jobrunner.web.credentials import Token

    server = Server(appendonly="yes", appendfsync="always")
    context = chromium.new_context()
    with Client(server.url, "away", retry_timeout=0.5) as client:
        client.queue("mail").push_many(range(3))
        url = serve(create_app(client, auth=Token("correct-horse-battery")))
        tab = context.new_page()
        tab.goto(f"{url}/queues/mail")
        tab.fill("input[name=token]", "correct-horse-battery")
        tab.click("form button")
        sign(tab, "live")
        server.kill()

        tab.reload()

        tab.wait_for_selector("text=This page opens by itself")
        server.start()
        tab.wait_for_selector("h1:has-text('mail')")
        sign(tab, "live")
    context.close()
    server.remove()


def test_a_tab_whose_session_was_ended_says_so_and_goes_on_after_the_next_login(
    shop: Any, serve: Any, chromium: Any
) -> None:
    from jobrunner.web.app import create_app
    from jobrunner.web.credentials import Token

    def log_in(tab: Any, path: str) -> None:
        tab.goto(f"{url}{path}")
        tab.fill("input[name=token]", "correct-horse-battery")
        tab.click("form button")

    url = serve(create_app(shop.client, auth=Token("correct-horse-battery")))
    context, elsewhere = chromium.new_context(), chromium.new_context()
    tab, other = context.new_page(), elsewhere.new_page()
    log_in(tab, "/queues/mail")
    sign(tab, "live")

    log_in(other, "/sessions")
    other.get_by_role("button", name="End all").click()
    confirm(other)

    tab.wait_for_selector("#live-sign:has-text('signed out')", timeout=15_000)
    assert "You are logged out: reload the page to log in." in tab.inner_text("#lost")
    log_in(context.new_page(), "/")
    tab.evaluate(HIDE % "true")
    tab.evaluate(HIDE % "false")
    tab.wait_for_selector("#lost", state="detached")
    sign(tab, "live")
    context.close()
    elsewhere.close()


def test_the_page_of_a_task_says_when_it_has_left_the_server(shop: Any, chromium: Any) -> None:
    context = chromium.new_context()
    tab = context.new_page()
    queue = shop.client.queue("leaving")
    queue.push({"n": 1}, id="comes-back")
    tab.goto(f"{shop.url}/tasks/comes-back?queue=leaving")
    sign(tab, "live")

    queue.purge("waiting")

    tab.wait_for_selector("#live-sign[data-state=lost]:has-text('gone')")
    assert "it never was, or it finished and is no longer kept" in tab.inner_text("#lost")
    assert "waiting" in tab.inner_text("main")  # the page keeps what it read last

    queue.push({"n": 2}, id="comes-back")
    tab.wait_for_selector("#lost", state="detached")
    sign(tab, "live")
    context.close()


def test_the_keyboard_goes_everywhere(shop: Any, tab: Any) -> None:
    tab.goto(f"{shop.url}/")

    for key, path in {"q": "/queues", "t": "/tasks", "d": "/dead", "w": "/workers", "p": "/periodic", "l": "/pipelines",
                      "h": "/history", "r": "/redis", "e": "/events", "a": "/audit", "o": "/"}.items():  # fmt: skip
        tab.keyboard.press("g")
        tab.keyboard.press(key)
        tab.wait_for_url(shop.url + path)


def test_keys_show_help_search_and_move(shop: Any, tab: Any) -> None:
    tab.goto(f"{shop.url}/queues")

    tab.keyboard.press("?")
    tab.wait_for_selector("#shortcuts[open]")
    tab.keyboard.press("Escape")
    tab.keyboard.press("j")
    tab.keyboard.press("j")
    assert tab.evaluate("document.activeElement.textContent") == tab.locator("a.row-link").nth(1).inner_text()
    tab.keyboard.press("/")
    assert tab.evaluate("document.activeElement.name") == "q"
    tab.keyboard.type("g q")  # typing is typing
    assert tab.input_value("[name=q]") == "g q"


def test_every_action_is_reached_with_tab_and_seen_when_it_is(shop: Any, look: Any) -> None:
    tab = look()
    tab.add_init_script("sessionStorage.setItem('live', 'off')")  # the page must not change under the keyboard
    unseen, missed = {}, {}
    for path in ("/", "/queues", "/queues/mail", "/tasks?state=dead", "/workers", "/periodic", "/pipelines/orders",
                 "/history", "/redis", "/audit"):  # fmt: skip
        tab.goto(shop.url + path)
        reached = walk(tab)
        unseen[path] = [one["name"] for one in reached if not one["seen"]]
        missed[path] = tab.evaluate(NOT_REACHED)

    assert {path: some for path, some in unseen.items() if some} == {}
    assert {path: some for path, some in missed.items() if some} == {}


WALKED = """() => {
  const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect();
  const first = !("walked" in at.dataset);
  at.dataset.walked = "";
  const over = document.elementFromPoint(Math.min(Math.max(box.left + box.width / 2, 0), innerWidth - 1),
                                         Math.min(Math.max(box.top + box.height / 2, 0), innerHeight - 1));
  const shown = at.contains(over) || over?.contains(at) || at.closest("svg") !== null;
  return { first: first && at !== document.body, name: at.outerHTML.slice(0, 100),
           seen: shown && style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 };
}"""
"""Of the element in focus: whether it was in focus for the first time, and whether one sees that it is."""

NOT_REACHED = """() => [...document.querySelectorAll("a[href], button, select, input:not([type=hidden])")]
  .filter((one) => !("walked" in one.dataset) && !one.disabled && one.checkVisibility({ visibilityProperty: true }))
  .map((one) => one.outerHTML.slice(0, 100))"""


def walk(tab: Any) -> list[dict[str, Any]]:
    """Presses Tab from the top until the focus returns there; returns the elements that had the focus, in order."""
    reached = []
    while True:
        tab.keyboard.press("Tab")
        one = tab.evaluate(WALKED)
        if not one["first"]:
            return reached
        reached.append(one)


def test_keys_rest_live_updates_leave_a_field_and_close_the_menu(shop: Any, look: Any) -> None:
    tab = look(size="phone")
    tab.goto(f"{shop.url}/queues")
    sign(tab, "live", seen=False)

    tab.keyboard.press("p")
    sign(tab, "paused", seen=False)
    tab.keyboard.press("/")
    tab.keyboard.press("Escape")
    assert tab.evaluate("document.activeElement === document.body")
    tab.get_by_role("button", name="Menu").click()
    tab.get_by_role("button", name="Keyboard shortcuts").click()
    tab.wait_for_selector("#shortcuts[open]")
    tab.keyboard.press("Escape")
    tab.keyboard.press("Escape")

    assert tab.get_by_role("button", name="Menu").get_attribute("aria-expanded") == "false"


def test_every_key_that_is_told_of_is_heard(shop: Any, tab: Any) -> None:
    tab.goto(f"{shop.url}/")
    listed = tab.locator("#shortcuts dt").evaluate_all("all => all.map((one) => one.textContent.trim())")
    pages = tab.locator(".side a[data-go]").evaluate_all("all => all.map((one) => `g ${one.dataset.go}`)")

    assert [keys for keys in listed if keys.startswith("g ")] == pages
    assert {"?", "/", "j k", "x", "p", "t", "Esc"} <= set(listed)


def test_the_theme_is_kept(shop: Any, look: Any) -> None:
    tab = look(theme="light")
    tab.goto(f"{shop.url}/")
    light = tab.evaluate("getComputedStyle(document.body).backgroundColor")

    tab.click("#theme")
    tab.goto(f"{shop.url}/queues")

    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != light
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_question_is_asked_and_answered_by_keyboard(shop: Any, tab: Any) -> None:
    queue = shop.client.queue("asked")
    queue.push(1)
    tab.goto(f"{shop.url}/queues/asked")

    tab.locator("#queue-actions button", has_text="Pause").focus()
    tab.keyboard.press("Enter")
    tab.wait_for_selector("#ask[open]")
    assert tab.evaluate("document.activeElement.value") == "no"
    tab.keyboard.press("Escape")
    assert not queue.is_paused()
    assert tab.evaluate("document.activeElement.textContent.trim()") == "Pause"
    tab.keyboard.press("Enter")
    confirm(tab)
    tab.wait_for_selector(".badge.paused")


def test_a_question_that_follows_at_once_on_another_is_answered(shop: Any, tab: Any) -> None:
    """The event of the first dialog's end was taken for an answer to the second question: nothing was sent."""
    queue = shop.client.queue("twice")
    queue.push(1)
    tab.goto(f"{shop.url}/queues/twice")

    tab.evaluate("""() => {
        const button = document.querySelector("#queue-actions form[data-confirm] button");
        button.click();
        asking.close("no");
        button.click();
    }""")
    with tab.expect_request(lambda request: request.method == "POST") as sent:
        confirm(tab)

    assert sent.value.url.endswith("/queues/twice/pause")
    tab.wait_for_selector(".badge.paused")


def test_an_answer_is_to_the_question_though_another_operator_was_faster(shop: Any, tab: Any) -> None:
    """The live page put a form for "Resume" in place of that for "Pause" while the question was open."""
    queue = shop.client.queue("shared")
    queue.push(1)
    tab.goto(f"{shop.url}/queues/shared")
    tab.locator("#queue-actions button", has_text="Pause").click()
    tab.wait_for_selector("#ask[open]")

    queue.pause()
    tab.evaluate("""async () => {
        let html = "";
        while (!html.includes("badge paused")) html = await (await fetch(location.href)).text();
        show(html);
    }""")
    with tab.expect_request(lambda request: request.method == "POST") as sent:
        confirm(tab)

    assert sent.value.url.endswith("/queues/shared/pause")
    tab.wait_for_selector(".badge.paused")
    assert queue.is_paused()


def test_the_menu_of_a_phone_opens(shop: Any, look: Any) -> None:
    tab = look(size="phone")
    tab.goto(f"{shop.url}/")

    tab.get_by_role("button", name="Menu").click()
    tab.get_by_role("link", name="Workers").first.click()

    tab.wait_for_url("**/workers")


def test_a_spot_of_a_plot_tells_its_values(shop: Any, tab: Any) -> None:
    tab.goto(f"{shop.url}/")

    tab.locator("#plot-ended .hot").nth(20).hover()

    assert "succeeded" in tab.locator(".tip").inner_text()
