"""Writers to the server may use any name. Every page renders it, and objects with odd names can be deleted."""

import html
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
import redis

from jobrunner.broker.keys import Keys
from jobrunner.client.client import Client
from jobrunner.task import Task
from jobrunner.web.pages import all_pages

JSON = {"accept": "application/json"}
ODD = ["a/b", "..", ".", "", "a?b", "a#b", "a%2Fb", "%", "%zz", "a b", "../../admin", "/", "//evil.example", "a\\b",
       "a\nb", "\x1b[2J", "<script>alert(1)</script>", '"', "'", "é", "x" * 5000, "a;b", "a&b=c", "{x}", "a:b/",
       "\u202e"]  # fmt: skip
PLAIN = [page.path for page in all_pages() if "{" not in page.path]
PAGES = [*PLAIN, "/queues/mail", "/tasks?queue=mail&state=dead", "/tasks?state=waiting", "/dead?queue=mail"]


def plant(raw: redis.Redis, keys: Keys, task_id: str, state: str) -> None:
    """A task of that id, as a producer writes it by hand."""
    mail = keys.queue("mail")
    fields = {"id": task_id, "type": "greet", "queue": "mail", "payload": "{}", "enqueue_time": 1, "error": "e"}
    raw.hset(mail.task(task_id), mapping=fields)
    raw.zadd(getattr(mail, state), {task_id: 1})


@pytest.fixture
def neighbour(client: Client) -> str:
    """A healthy dead task among the odd ones."""
    client.enqueue(Task(id="good", queue="mail", type="Send", payload=b"{}", max_attempts=1))
    client.queue("mail").reserve()[0].rollback(error="broken")
    return "good"


@pytest.mark.parametrize("state", ["dead", "waiting", "scheduled"])
def test_tasks_of_odd_ids_take_no_page_down_and_can_be_deleted(
    browse: Callable[..., Any], raw: redis.Redis, keys: Keys, neighbour: str, state: str
) -> None:
    for odd in ODD:
        plant(raw, keys, odd, state)
    browser = browse()

    for path in PAGES:
        answer = browser.get(path)
        assert answer.status_code == 200, path
        assert "<script>alert" not in answer.text
    dead = browser.get("/dead").text
    assert f'href="/tasks/{neighbour}?queue=mail"' in dead, "the others have their links"
    for link in re.findall(r'href="(/tasks/[^"]+)"', dead):
        assert browser.get(link.replace("&amp;", "&")).status_code == 200, link

    for odd in (one for one in ODD if len(one) < 900):
        gone = browser.post_form("/tasks/bulk", {"action": "delete", "ids": f"mail {odd}"}, headers=JSON)
        assert gone.json()["changed"] == 1, (odd, gone.text)
        assert raw.zscore(getattr(keys.queue("mail"), state), odd) is None, odd
    left = browser.post_form("/dead/requeue", {"queue": "mail", "id": neighbour}, headers=JSON)
    assert left.status_code == 200


def test_workers_operations_and_periodic_jobs_of_odd_names_take_no_page_down(
    browse: Callable[..., Any], raw: redis.Redis, keys: Keys
) -> None:
    now = raw.time()[0] * 1000
    for odd in ODD:
        raw.zadd(keys.workers, {odd: now})
        raw.hset(keys.worker(odd), mapping={"id": odd, "host": "h", "pid": "1", "queues": "mail", "concurrency": "2",
                                            "started": str(now), "heartbeat": str(now)})  # fmt: skip
        raw.hset(keys.operation(odd), mapping={"action": "delete", "state": "running", "total": "3"})
        raw.sadd(keys.queues, odd, f"{odd}/raw", "mail")
    browser = browse()

    for path in PLAIN:
        assert browser.get(path).status_code == 200, path


@pytest.mark.parametrize("path", ["/tasks/{}", "/tasks/{}?queue=mail", "/queues/{}", "/pipelines/{}", "/operations/{}"])
def test_an_odd_address_is_a_4xx(browse: Callable[..., Any], path: str) -> None:
    browser = browse()
    for text in (*(quote(odd, safe="") for odd in ODD), *(quote(quote(odd, safe=""), safe="") for odd in ODD)):
        status = browser.get(path.format(text)).status_code
        assert status in (200, 307, 400, 404), (path, text, status)


@pytest.mark.parametrize("action", ["pause", "resume", "limit", "purge"])
def test_an_odd_queue_in_an_action_is_a_4xx(browse: Callable[..., Any], action: str) -> None:
    browser = browse()
    for odd in ODD:
        if odd and "\n" not in odd:
            answer = browser.post_form(f"/queues/{quote(odd, safe='')}/{action}", {"state": "dead"}, headers=JSON)
            assert 400 <= answer.status_code < 500, (odd, answer.text)


INVISIBLE = "\u202e\u2066\u200b\u2060\ufeff\x7f\x9b"


def test_an_invisible_character_is_written_out(browse: Callable[..., Any], client: Client) -> None:
    """The page of a task of which a part would read backwards, or like another text."""
    payload = f'{{"to": "ada{INVISIBLE}", "א": "👩\u200d🚀"}}'.encode()
    client.enqueue(Task(id="good", queue="mail", type="Send", payload=payload, max_attempts=1))
    client.queue("mail").reserve()[0].rollback(error=f"no {INVISIBLE} such user")
    browser = browse()

    for path in ("/tasks/good?queue=mail", "/dead?queue=mail", "/dead"):
        page = browser.get(path).text
        texts = re.sub("<[^>]*>", "", page)
        assert not set(texts) & set(INVISIBLE), path
        assert "no \\u202e\\u2066\\u200b\\u2060\\ufeff\\u007f\\u009b such user" in texts, path
    page = browser.get("/tasks/good?queue=mail").text
    assert 'ada\\u202e\\u2066' in page
    assert "👩\u200d🚀" in page, "a joiner of letters is shown as it is"
    assert f"ada{INVISIBLE}" in re.search('data-copy="({[^>]*)">', page)[1], "copied as it is"  # type: ignore[index]
    edit = html.unescape(re.search("<textarea[^>]*>([^<]*)<", page)[1])  # type: ignore[index]
    assert json.loads(edit)["to"] == f"ada{INVISIBLE}"
