"""Lists that are searched: what a page says of a search that is finished, is not, or failed."""

import html
import re
from collections.abc import Callable
from typing import Any

import pytest

from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.clock import utc_now
from jobrunner.errors import ServerUnavailable
from jobrunner.task import Task
from jobrunner.web.pages import tasks as pages

PAYLOAD = b'{"user":"ann%d","token":"s3cret"}'
JSON = {"accept": "application/json"}
Browse = Callable[..., Any]


def fill(client: Client, count: int, *, type_: str = "ChargeCard", queue: str = "pay") -> None:
    client.enqueue_many(
        Task(id=f"{type_}{n}", queue=queue, type=type_, payload=PAYLOAD % n, encoding="json")
        for n in range(count)
    )


def die(client: Client, name: str, error: str = "KeyError: 'x'") -> None:
    client.enqueue(Task(id=name, queue="mail", type="Send", payload=b"{}", max_attempts=1))
    client.queue("mail").reserve()[0].rollback(error=error)


@pytest.mark.parametrize("job", ["charge", "CARD", "=ChargeCard"])
def test_a_job_is_found_by_a_part_of_its_name_in_any_case(browse: Browse, client: Client, job: str) -> None:
    fill(client, 2)
    fill(client, 2, type_="ChargeCardLater" if job.startswith("=") else "Other")

    found = browse().get("/tasks", params={"job": job}, headers=JSON).json()

    assert {row["type"] for row in found["tasks"]} == {"ChargeCard"}
    assert (found["finished"], found["search"]["said"]) == (True, "2 found, all 4 searched")


def test_a_row_has_its_parameters_without_secrets(browse: Browse, client: Client) -> None:
    fill(client, 1)
    page = html.unescape(browse().get("/tasks").text)

    assert 'user="ann0"' in page
    assert "s3cret" not in page


def test_a_search_whose_time_is_up_is_not_finished_and_its_link_goes_on(
    browse: Browse, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_BUDGET_S", 0.0)
    fill(client, 1100)
    fill(client, 1, type_="Needle", queue="zoo")
    browser, path, said = browse(), "/tasks?job=needle", []

    while path:
        page = browser.get(path).text
        said.append(re.search(r'id="found" data-live>([^<]*)', page)[1])  # type: ignore[index]
        assert "Nothing found" not in page
        onward = re.search(r'data-onward href="([^"]*)"', page)
        path = f"/tasks{html.unescape(onward[1])}" if onward else ""

    assert said[0] == "searched 250 of 1,101, not finished"
    assert said[-1] == "all 1,101 searched"
    assert "Needle" in page


def test_a_time_is_an_instant_or_an_age_and_a_wrong_one_is_refused_in_the_page_and_in_json(
    browse: Browse, client: Client
) -> None:
    fill(client, 1)
    browser = browse()

    assert browser.get("/tasks?since=15%20min", headers=JSON).json()["total"] == 1
    assert len(browser.get("/tasks?until=2h%20ago", headers=JSON).json()["tasks"]) == 0
    wrong = browser.get("/tasks?since=yesterday", headers=JSON).json()
    assert "since='yesterday' is no time" in wrong["search"]["refused"]
    assert (wrong["tasks"], wrong["finished"]) == ([], False)
    assert "Nothing was searched" in browser.get("/tasks?since=yesterday").text
    assert browser.post_form("/tasks/bulk", {"action": "cancel", "all": "1", "since": "soon"}).status_code == 400


@pytest.mark.parametrize("path", ["/tasks", "/dead", "/history"])
def test_a_list_that_was_not_searched_does_not_say_that_it_is_empty_and_keeps_what_was_typed(
    browse: Browse, client: Client, path: str
) -> None:
    die(client, "lost")
    fill(client, 1)

    page = browse().get(f"{path}?queue=mail&job=%3DSend&error=bad&since=3%20o%27clock").text

    assert "Nothing was searched" in page
    assert not re.search(r"No (dead )?tasks|0 in all|No queue keeps", page)
    typed = {"job": "=Send", "error": "bad", "since": "3 o'clock"}
    fields = {name: re.search(rf'name="{name}" value="([^"]*)"', page) for name in typed}
    assert {name: html.unescape(found[1]) for name, found in fields.items() if found} == typed
    assert "<option selected>mail</option>" in page


@pytest.mark.parametrize("query", ["queue=%C3%A4", "queue=%C3%A4&group=12", "since=soon&queue=mail&group=12"])
def test_a_condition_that_cannot_be_read_is_said_on_the_page_of_the_dead(browse: Browse, query: str) -> None:
    page = browse().get(f"/dead?{query}")

    assert page.status_code == 200
    assert page.text.count("Nothing was searched") == 2


def test_an_age_is_kept_as_an_instant_so_that_all_pages_are_of_one_search(browse: Browse, client: Client) -> None:
    fill(client, 60)

    first = browse().get("/tasks?since=1%20h", headers=JSON).json()

    assert re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:.]+Z", first["search"]["filters"]["since"])
    assert "since=20" in first["onward"]


def test_a_server_that_goes_away_midway_is_said_and_is_not_nothing_found(
    browse: Browse, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, 1)
    browser = browse()
    browser.get("/tasks")

    def away(*_: Any, **__: Any) -> Any:
        raise ServerUnavailable("no answer within 5 s")

    monkeypatch.setattr(pages, "search", away)
    for headers in (JSON, {"accept": "text/html"}):
        answer = browser.get("/tasks?job=x", headers=headers)
        assert answer.status_code == 503
        assert answer.text.count("he server is away: no answer within 5 s") == answer.text.count("erver is away") == 1
        assert "Nothing found" not in answer.text


def test_dead_tasks_are_requeued_by_the_filter_that_is_shown(browse: Browse, client: Client) -> None:
    die(client, "a")
    die(client, "b", error="TimeoutError")
    browser = browse()

    done = browser.post_form("/dead/requeue", {"job": "sen", "error": "timeout", "since": "1 h"}, headers=JSON).json()

    operation = browser.get(f"/operations/{done['operation']}", headers=JSON).json()["operation"]
    assert "job=sen" in dict(operation["facts"])["Tasks"]
    assert "error=timeout" in operation["back"]


def test_history_says_how_long_an_attempt_ran_without_its_wait_in_the_worker(
    browse: Browse, client: Client, raw: Any
) -> None:
    queue, keys = client.queue("mail"), keys_of(client).queue("mail")
    queue.configure(history=3600)
    for name in ("job", "item"):
        client.enqueue(Task(id=name, queue="mail", payload=b"{}"))
        (lease,) = queue.reserve(1)
        raw.hset(keys.task(name), "started_at", int(utc_now().timestamp() * 1000) - 90_000)
        lease.commit()
    raw.hset(keys.task("job"), "run_ms", 250)

    found = browse().get("/history", headers=JSON).json()["records"]

    took = {row["id"]: row["took_s"] for row in found}
    assert took["job"] == 0.25
    assert 90 <= took["item"] < 150


def test_history_has_pages_and_is_searched(browse: Browse, client: Client) -> None:
    client.queue("mail").configure(history=3600)
    fill(client, 70, queue="mail")
    while leases := client.queue("mail").reserve(n=50):
        for lease in leases:
            lease.commit()
    browser = browse()

    first = browser.get("/history", headers=JSON).json()
    second = browser.get(f"/history{first['onward']}", headers=JSON).json()
    ids = [row["id"] for row in first["records"] + second["records"]]
    assert (len(first["records"]), len(set(ids)), second["finished"]) == (50, 70, True)
    assert first["records"][0]["state"] == "succeeded"

    found = browser.get("/history?param=user%3Dann7", headers=JSON).json()
    assert [row["id"] for row in found["records"]] == ["ChargeCard7"]
    newest = browser.get("/history?order=oldest&queue=mail", headers=JSON).json()
    assert newest["records"][0]["id"] == ids[-1]


def test_a_slice_of_a_search_costs_few_commands(browse: Browse, client: Client) -> None:
    fill(client, 12_000)
    browser = browse()
    path = browser.get("/tasks?error=none", headers=JSON).json()["onward"]
    sent: list[int] = []
    replies = broker_of(client)._replies
    broker_of(client)._replies = lambda calls, *rest: sent.append(len(calls)) or replies(calls, *rest)  # type: ignore[method-assign,func-returns-value]
    browser.dashboard.live.forget()

    assert browser.get(f"/tasks{path}", headers=JSON).status_code == 200
    assert sum(sent) <= 50


def test_a_list_of_hundreds_of_queues_takes_a_name_and_offers_those_with_most_tasks(
    browse: Callable[..., Any], client: Client
) -> None:
    """An option for each of 10,000 queues was 290 kB of each page."""
    client.enqueue_many(Task(id=f"t{n}", queue=f"q{n:03}", payload=b"{}", max_attempts=1) for n in range(201))
    client.queue("q150").reserve()[0].rollback(error="broken")
    browser = browse()

    dead, tasks, one = (browser.get(path).text for path in ("/dead", "/tasks", "/tasks?queue=q007"))

    assert re.findall(r'<option value="(q\d+)"', dead) == ["q150"]
    assert len(re.findall(r'<option value="q\d+"', tasks)) == 200
    assert '<select name="queue"' not in tasks
    assert re.search(r'<input [^>]*name="queue" value="q007"', one)
    assert "t7" in one
    assert "t8" not in one
