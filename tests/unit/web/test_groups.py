"""The page of dead tasks opens with errors in groups; one group has its page, and is requeued or purged."""

import re
from collections.abc import Callable, Iterable, Iterator
from html import unescape
from typing import Any

import pytest

from jobrunner.client.client import Client
from jobrunner.inspector.audit import entries
from jobrunner.inspector.error_groups import ErrorGroups, read_groups
from jobrunner.inspector.live_snapshot import look
from jobrunner.inspector.search import matching
from jobrunner.inspector.task_rows import TaskPosition
from jobrunner.task import Task, new_id
from jobrunner.web import operations
from jobrunner.web.operations import read_operation
from tests.support.waiting import wait_for

JSON = {"accept": "application/json"}


def fail(client: Client, job: str, *errors: str, attempts: int = 1, queue: str = "mail") -> None:
    """Tasks of a job whose first attempts failed: dead with `attempts=1`, else to be tried again."""
    for error in errors:
        client.enqueue(Task(id=new_id(queue), queue=queue, type=job, payload=b"{}", max_attempts=attempts))
        client.queue(queue).reserve()[0].rollback(error=error, delay=3600)


@pytest.fixture
def failing(client: Client) -> Client:
    """Three declined cards, one timeout that is tried again, and one rollup."""
    fail(client, "Charge", *[f"CardDeclined: card {n}" for n in range(3)])
    fail(client, "Charge", "TimeoutError: no answer", attempts=3)
    fail(client, "Rollup", "KeyError: 'total'", queue="stats")
    return client


def id_of(client: Client, title: str) -> str:
    return next(one.id for one in read_groups(client).groups if one.title == title)


def test_the_page_opens_with_groups(browse: Callable[..., Any], failing: Client) -> None:
    page = browse().get("/dead")

    text = page.text
    assert text.index("CardDeclined: card #") < text.index('id="tasks"')
    assert "TimeoutError: no answer" in text
    values = browse().get("/dead", headers=JSON).json()["errors_found"]
    assert [(one["error_type"], one["dead"], one["count"]) for one in values["groups"]] == [
        ("CardDeclined", 3, 3), ("KeyError", 1, 1), ("TimeoutError", 0, 1),
    ]  # fmt: skip
    assert browse().get("/dead?queue=stats", headers=JSON).json()["errors_found"]["dead"] == 1


def test_queues_in_which_nothing_failed_are_not_asked_for_groups(
    browse: Callable[..., Any], failing: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of queues that took seconds, every two of them in each open tab."""
    asked: list[str] = []

    def read(client: Client, queues: Iterable[str]) -> ErrorGroups:
        asked.extend(queues)
        return read_groups(client, queues)

    for n in range(20):
        failing.queue(f"quiet-{n}").push(n)
    fail(failing, "Later", "OSError: away", attempts=3, queue="retried")
    monkeypatch.setattr("jobrunner.web.pages.tasks.read_groups", read)

    found = browse().get("/dead", headers=JSON).json()["errors_found"]

    assert sorted(asked) == ["mail", "retried", "stats"]
    assert {one["queue"] for one in found["groups"]} == {"mail", "retried", "stats"}


def test_a_job_is_shown_with_its_groups(browse: Callable[..., Any], failing: Client) -> None:
    def titles(query: str) -> list[str]:
        found = browse().get(f"/dead?{query}", headers=JSON).json()["errors_found"]
        return [one["error_type"] for one in found["groups"]]

    assert titles("queue=mail&job=%3DCharge") == ["CardDeclined", "TimeoutError"], "the second is tried again"
    assert titles("job=roll") == ["KeyError"]
    assert titles("job=%3Dcharge") == []


def test_all_groups_of_a_job_and_queue_are_those_of_the_short_list(browse: Callable[..., Any], client: Client) -> None:
    fail(client, "Charge", *[f"Error{letter}: no" for letter in "ABCDEFGHIJKLMNOPQRSTU"])
    fail(client, "Rollup", "KeyError: 'total'")
    page = browse().get("/dead?queue=mail&job=%3DCharge").text

    (link,) = re.findall(r'href="([^"]*groups=all[^"]*)">All 21 groups<', page)
    found = browse().get(f"/dead{unescape(link)}", headers=JSON).json()["errors_found"]["groups"]
    assert [one["job"] for one in found] == ["Charge"] * 21


def test_a_search_shows_what_it_found_and_no_groups(browse: Callable[..., Any], failing: Client) -> None:
    assert browse().get("/dead?error=declined", headers=JSON).json()["errors_found"] is None


def test_a_group_has_its_page_with_its_tasks(browse: Callable[..., Any], failing: Client) -> None:
    group = id_of(failing, "CardDeclined: card #")

    page = browse().get(f"/dead?queue=mail&group={group}")

    assert "Requeue 3 dead tasks of this group?" in page.text
    assert "Delete 3 dead tasks of this group?" in page.text
    assert page.text.count('data-name="Error"') == 3
    assert f'name="group" value="{group}"' in page.text, "a search keeps the group"


@pytest.mark.parametrize("path", ["/dead?queue=mail&group=no-such", "/dead?queue=gone&group=%3Cb%3E"])
def test_a_group_that_is_not_there_is_said_on_the_page_and_in_json(
    browse: Callable[..., Any], failing: Client, path: str
) -> None:
    page = browse().get(path)
    assert (page.status_code, "of errors; it may have left" in page.text, "<b>" in page.text) == (404, True, False)
    assert "has no group" in browse().get(path, headers=JSON).json()["error"]


def test_a_group_without_a_queue_is_refused(browse: Callable[..., Any], failing: Client) -> None:
    answer = browse().get("/dead?group=abc", headers=JSON)
    assert (answer.status_code, "give both queue and group" in answer.json()["error"]) == (400, True)


def finished(client: Client, answer: Any) -> Any:
    operation = answer.json()["operation"]
    wait_for(lambda: (found := read_operation(client, operation)) and found.is_over)
    return read_operation(client, operation)


def noted(client: Client, action: str) -> str:
    """The outcome of an action in the audit log, which also has that of its operation."""
    (entry,) = [entry for entry in entries(client) if entry.action == action]
    return entry.outcome


def test_a_group_is_requeued_at_a_rate(browse: Callable[..., Any], failing: Client) -> None:
    group = id_of(failing, "CardDeclined: card #")
    browser = browse()

    answer = browser.post_form("/dead/requeue", {"queue": "mail", "group": group, "rate": "0.01"}, headers=JSON)

    done = finished(failing, answer)
    assert (done.state, done.done, done.rate) == ("done", 3, 0.01)
    counts = failing.queue("mail").counts()
    assert (counts["dead"], counts["waiting"], counts["scheduled"]) == (0, 1, 3), "the others are due 100 s apart"
    assert noted(failing, "dead.requeue").startswith(
        f"requeueing 3 dead tasks of group {group} of queue mail (CardDeclined: card #) at 0.6/min"
    )
    assert failing.queue("stats").counts()["dead"] == 1


def test_a_group_is_purged(browse: Callable[..., Any], failing: Client) -> None:
    group = id_of(failing, "CardDeclined: card #")
    fail(failing, "Charge", "Other: x")

    answer = browse().post_form("/dead/purge", {"queue": "mail", "group": group}, headers=JSON)

    assert finished(failing, answer).done == 3
    assert failing.queue("mail").counts()["dead"] == 1
    assert "deleting 3 dead tasks of group" in noted(failing, "dead.purge")


@pytest.mark.parametrize(
    ("path", "fields"), [("/dead/purge", {}), ("/tasks/bulk", {"action": "cancel", "all": "1", "state": "dead"})]
)
def test_a_task_that_is_requeued_during_a_purge_is_not_deleted(
    browse: Callable[..., Any], failing: Client, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, str]
) -> None:
    """A purge beside a requeue deleted tasks that waited again: 18,250 of 58,500."""

    def found_then_requeued(*args: Any) -> Iterator[list[TaskPosition]]:
        for found in matching(*args):
            failing.task(found[0].id, queue="mail").requeue()
            yield found

    monkeypatch.setattr(operations, "matching", found_then_requeued)

    answer = browse().post_form(path, {"queue": "mail", **fields}, headers=JSON)

    done = finished(failing, answer)
    assert (done.done, done.refused) == (2, 1)
    counts = failing.queue("mail").counts()
    assert (counts["dead"], counts["waiting"]) == (0, 1)


def test_nothing_happens_to_a_group_that_is_not_there(browse: Callable[..., Any], failing: Client) -> None:
    answer = browse().post_form("/dead/requeue", {"queue": "mail", "group": "gone"}, headers=JSON)

    assert (answer.status_code, "has no group 'gone'" in answer.json()["error"]) == (404, True)
    assert failing.queue("mail").counts()["dead"] == 3


@pytest.mark.parametrize("rate", ["fast", "nan", "0", "-1", "2e6"])
def test_a_rate_that_is_none_is_refused(browse: Callable[..., Any], failing: Client, rate: str) -> None:
    answer = browse().post_form("/dead/requeue", {"queue": "mail", "rate": rate}, headers=JSON)

    assert (answer.status_code, "give tasks per second" in answer.json()["error"]) == (400, True)
    assert failing.queue("mail").counts()["dead"] == 3


def test_odd_texts_in_an_error_are_text(browse: Callable[..., Any], client: Client) -> None:
    fail(client, "Charge", "Bad<script>alert(1)</script>: \x1b[31m ü")

    text = browse().get("/dead").text
    assert "<script>alert(1)" not in text


def test_dead_tasks_of_before_are_counted_apart(browse: Callable[..., Any], client: Client, raw: Any) -> None:
    fail(client, "Charge", "Boom: x")
    raw.delete(*raw.keys("*mail:errors*"))

    assert "1 dead task in no group" in browse().get("/dead").text


def test_the_overview_has_the_exact_number_of_dead_tasks(browse: Callable[..., Any], client: Client) -> None:
    fail(client, "Charge", *["Boom: x"] * 25)

    assert 'data-name="Dead now">25</td>' in browse().get("/").text


@pytest.mark.parametrize("name", ["mail", "orders/raw"])
def test_a_queue_with_partitions_has_the_groups_of_all_its_shards(
    browse: Callable[..., Any], client: Client, name: str
) -> None:
    queue = client.queue(name)
    queue.configure(partitions=3, max_attempts=1)
    [queue.push(number) for number in range(12)]
    leases = queue.reserve(12)
    shards = {lease.queue for lease in leases}
    assert len(shards) == 3
    for lease in leases:
        lease.rollback(error="CardDeclined: no")

    for query in ("", f"queue={name}"):
        found = browse().get(f"/dead?{query}", headers=JSON).json()["errors_found"]
        (group,) = found["groups"]
        assert (group["queue"], group["dead"], group["count"], found["dead"]) == (name, 12, 12, 12)
    page = browse().get(f"/dead?queue={name}&group={group['id']}").text
    assert "An id that no address can have" not in page
    for lease in leases:
        assert browse().get(f"/tasks/{lease.id}?queue={lease.queue}").status_code == 200
    assert f'href="/queues/{name}">{max(shards)}</a>' in page
    assert [(one.queue, one.dead) for one in look(client).failing] == [(name, 12)]
