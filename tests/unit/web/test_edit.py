"""Parameters of a dead task are changed and the task is requeued."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from jobrunner import job
from jobrunner.client.client import Client
from jobrunner.jobs.registry import forget
from jobrunner.task import Task

JSON = {"accept": "application/json"}
Browse = Callable[..., Any]
PARAMS = {"user": "ada", "n": 2, "token": "s3cret", "deep": [{"password": "p"}]}


@pytest.fixture
def dead(client: Client) -> str:
    """The path of a dead task."""
    client.enqueue(
        Task(
            id="t1", queue="mail", type="edit_me", payload=json.dumps(PARAMS).encode(), encoding="json", max_attempts=1
        )
    )
    client.queue("mail").reserve()[0].rollback(error="no")
    return "/tasks/t1"


def shown(browser: Any, path: str) -> Any:
    return json.loads(browser.get(f"{path}?queue=mail", headers=JSON).json()["editable"])


def send(browser: Any, path: str, params: Any, **fields: Any) -> Any:
    text = params if isinstance(params, str) else json.dumps(params)
    return browser.post_form(f"{path}/edit", {"queue": "mail", "params": text, **fields}, headers=JSON)


def test_what_was_changed_is_sent_and_hidden_values_stay(browse: Browse, client: Client, dead: str) -> None:
    browser = browse()
    form = shown(browser, dead)
    assert "s3cret" not in json.dumps(form)

    answer = send(browser, dead, form | {"user": "bob", "m": [1]}).json()

    assert answer["done"].endswith("changed: user, m")
    record = client.task("t1", queue="mail").record()
    assert (record.state, json.loads(record.payload)) == ("waiting", PARAMS | {"user": "bob", "m": [1]})
    rows = browser.get("/audit", headers=JSON).text
    assert "changed: user, m" in rows
    assert "bob" not in rows


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ({"x": True}, {"x": 1}, "x"),
        ({"x": True, "b": 2}, {"x": 1, "b": 3}, "x, b"),
        ({"x": [0, {"y": False}]}, {"x": [0, {"y": 0}]}, "x"),
        ({"x": 1}, {"x": 1.0}, "x"),
    ],
)
def test_a_value_that_python_takes_as_equal_to_the_one_before_is_a_change(
    browse: Browse, client: Client, before: Any, after: Any, names: str
) -> None:
    payload = json.dumps(before).encode()
    client.enqueue(Task(id="t2", queue="mail", type="", payload=payload, encoding="json", max_attempts=1))
    client.queue("mail").reserve()[0].rollback(error="no")

    answer = send(browse(), "/tasks/t2", after).json()

    assert answer.get("done", "").endswith(f"changed: {names}"), answer
    assert json.dumps(json.loads(client.task("t2", queue="mail").record().payload)) == json.dumps(after)


def test_hidden_values_follow_the_elements_of_a_list_that_are_moved(browse: Browse, client: Client) -> None:
    accounts = [{"user": user, "password": f"P{user}"} for user in "abc"]
    payload = json.dumps({"accounts": accounts}).encode()
    browser = browse()

    def edited(name: str, places: str) -> Any:
        client.enqueue(Task(id=name, queue="mail", type="", payload=payload, encoding="json", max_attempts=1))
        client.queue("mail").reserve()[0].rollback(error="no")
        seen = {one["user"]: one for one in shown(browser, f"/tasks/{name}")["accounts"]}
        changes = {"n": {"user": "n", "password": "new"}, "B": seen["b"] | {"user": "B"}}
        answer = send(browser, f"/tasks/{name}", {"accounts": [(seen | changes)[one] for one in places]})
        if answer.status_code >= 400:
            return answer.text
        (lease,) = client.queue("mail").reserve()
        return [f"{one['user']}:{one['password']}" for one in lease.payload["accounts"]]

    assert edited("swapped", "bac") == ["b:Pb", "a:Pa", "c:Pc"]
    assert edited("removed-and-added", "bcn") == ["b:Pb", "c:Pc", "n:new"]
    assert edited("removed", "ac") == ["a:Pa", "c:Pc"]
    assert edited("changed", "aBn") == ["a:Pa", "B:Pb", "n:new"]
    assert "stands for a hidden one" in edited("changed-and-moved", "Bcn")


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ("{", "not JSON"),
        ('{"n": NaN}', "NaN is no number of JSON"),
        ([1], "are an object of names and values"),
        (PARAMS, "nothing of the parameters"),
        ({"user": "••••••"}, "stands for a hidden one"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    browse: Browse, client: Client, dead: str, params: Any, said: str
) -> None:
    answer = send(browse(), dead, params)

    assert answer.status_code == 400
    assert said in answer.text
    assert client.task("t1", queue="mail").record().state == "dead"


def test_parameters_are_checked_against_a_job_that_is_known(browse: Browse, client: Client, dead: str) -> None:
    @job(queue="mail", name="edit_me")
    def edit_me(user: str, n: int) -> None: ...

    try:
        wrong = send(browse(), dead, {"user": "bob", "n": "two"})
        unknown = send(browse(), dead, {"user": "bob", "n": 2, "count": 1})
        right = send(browse(), dead, {"user": "bob", "n": 3})
    finally:
        forget("edit_me")

    assert (wrong.status_code, "cannot read its payload" in wrong.text) == (400, True)
    assert (unknown.status_code, "has no parameter 'count'" in unknown.text) == (400, True)
    assert right.status_code == 200


def test_a_task_that_is_not_dead_has_no_form_and_is_refused(browse: Browse, client: Client) -> None:
    client.enqueue(Task(id="t2", queue="mail", payload=b"{}", encoding="json"))
    browser = browse()

    assert "Edit and requeue" not in browser.get("/tasks/t2?queue=mail").text
    assert "only the parameters of a dead task" in send(browser, "/tasks/t2", {"a": 1}).text


def test_encrypted_parameters_are_not_shown_or_changed_without_a_key(
    browse: Browse, client: Client, server: Any, keys: Any
) -> None:
    secret = base64.b64encode(bytes(32)).decode()
    settings: dict[str, Any] = {"payload_keys": [secret], "payload_encryption": "encrypt"}
    with Client(server.url, keys.prefix, **settings) as encrypting:
        queue = encrypting.queue("mail")
        task_id = queue.push({"user": "ada"}, max_attempts=1)
        queue.reserve()[0].rollback(error="no")
    browser, path = browse(), f"/tasks/{task_id}"

    page = browser.get(f"{path}?queue=mail")
    answer = send(browser, path, {"user": "bob"})

    assert "(encrypted)" in page.text
    assert "Edit and requeue" not in page.text
    assert (answer.status_code, "encrypted" in answer.text) == (400, True)
    row = next(row for row in browser.get("/dead", headers=JSON).json()["tasks"] if row["id"] == task_id)
    assert row["params"] == "(encrypted)"


def test_parameters_of_a_job_that_was_enqueued_by_a_program_are_edited(browse: Browse, current: Client) -> None:
    @job(queue="mail", max_attempts=1)
    def greet(name: str, n: int = 1) -> None: ...

    task = greet.enqueue("ada")
    current.queue("mail").reserve()[0].rollback(error="no")
    browser, path = browse(), f"/tasks/{task.id}"

    assert shown(browser, path) == {"name": "ada", "n": 1}
    assert send(browser, path, {"name": "bob", "n": 1}).json()["done"].endswith("changed: name")
    forget("greet")
    assert current.queue("mail").reserve()[0].payload == {"name": "bob", "n": 1}


def test_bytes_of_an_item_are_not_edited_though_they_look_like_json(browse: Browse, client: Client) -> None:
    item = client.queue("mail").push(b'{"n": 1}', max_attempts=1)
    client.queue("mail").reserve()[0].rollback(error="no")

    assert not browse().get(f"/tasks/{item}?queue=mail", headers=JSON).json()["editable"]
