"""Permissions of every role on every route of the table of routes, and the effect of each action."""

import html
import re
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
import redis

from jobrunner import queue
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.errors import OutcomeUnknown, ServerRefused, ServerUnavailable
from jobrunner.inspector.audit import entries
from jobrunner.inspector.search import matching
from jobrunner.inspector.search_filter import Filter
from jobrunner.periodic import PeriodicDefinition
from jobrunner.queue_settings import QueueSettings, RateLimit
from jobrunner.task import Task
from jobrunner.web import operations
from jobrunner.web.auth import Identity, Role
from jobrunner.web.credentials import Token
from jobrunner.web.operations import Operations, read_operation
from jobrunner.web.pages import all_actions, all_pages
from jobrunner.web.routing import ROLE_OF
from jobrunner.worker.declarations import publish_declared
from tests.support.server import Server
from tests.support.waiting import wait_for

JSON = {"accept": "application/json"}
ACTIONS = {action.name: action for action in all_actions()}
CASES = [(action, role) for action in ACTIONS.values() for role in Role]


def path_of(action: Any) -> str:
    """A path of the action with something in every place."""
    return re.sub(r"\{[^}]*\}", "nothing", action.path)


def as_role(role: Role) -> Callable[[Any], Identity]:
    return lambda _: Identity(name="ann", role=role)


@pytest.fixture
def admin(browse: Callable[..., Any]) -> Any:
    return browse(auth=as_role(Role.ADMIN), name="ann")


def do(browser: Any, path: str, **fields: Any) -> Any:
    """The answer of an action to a program that has a form's token."""
    return browser.post_form(path, fields, headers=JSON)


def dead(client: Client, count: int, queue: str = "mail", type_: str = "Send") -> None:
    """That many dead tasks."""
    client.enqueue_many(
        Task(id=f"d{n}", queue=queue, payload=b'{"n":%d}' % n, type=type_, max_attempts=1) for n in range(count)
    )
    line = client.queue(queue)
    while held := line.reserve(n=500):
        line.rollback_many(held, error="broken")


def test_the_table_of_roles_names_each_action_and_nothing_else() -> None:
    assert set(ACTIONS) == set(ROLE_OF)


def test_no_action_is_there_for_a_viewer() -> None:
    assert min(ROLE_OF.values()) > Role.VIEWER


@pytest.mark.parametrize(("action", "role"), CASES, ids=lambda one: getattr(one, "name", one))
def test_each_role_may_do_what_its_role_says(browse: Callable[..., Any], action: Any, role: Role) -> None:
    """CVE-2026-48592: a user who may only read could edit."""
    answer = do(browse(auth=as_role(role), name="ann"), path_of(action))

    allowed = role >= ROLE_OF[action.name]
    assert (answer.status_code == 403) == (not allowed), answer.text
    if not allowed:
        least = ROLE_OF[action.name].name.lower()
        assert answer.json()["error"] == f"your role is {role.name.lower()}: this takes the role {least}"


@pytest.mark.parametrize("action", ACTIONS.values(), ids=lambda one: one.name)
def test_no_action_is_done_without_a_proof_that_it_was_meant(browse: Callable[..., Any], action: Any) -> None:
    """CVE-2022-51020: a page of another site could change data."""
    browser = browse(auth=as_role(Role.ADMIN), name="ann")
    path, token = path_of(action), browser.token(browser.dashboard)

    for headers, fields in (
        ({"sec-fetch-site": "same-origin"}, {}),
        ({"sec-fetch-site": "same-origin"}, {"csrf": "0" * 64}),
        ({"sec-fetch-site": "cross-site"}, {"csrf": token}),
        ({"sec-fetch-site": "same-site"}, {"csrf": token}),
        ({"origin": "https://evil.test"}, {"csrf": token}),
        ({"origin": "null"}, {"csrf": token}),
        ({}, {"csrf": token}),
    ):
        answer = browser.post(path, data=fields, headers={**JSON, **headers})
        assert answer.status_code == 403, (headers, fields)


@pytest.mark.parametrize("action", ACTIONS.values(), ids=lambda one: one.name)
def test_no_action_is_a_link(admin: Any, action: Any) -> None:
    assert admin.get(path_of(action), headers=JSON).status_code in (404, 405)


LEAST: dict[str, Role | None] = {
    **{action.name: action.role for action in all_actions()},
    **{page.name: page.role for page in all_pages()},
    "live": Role.VIEWER,
    "metrics": Role.VIEWER,
    "logout": Role.VIEWER,
    "sessions.end": Role.VIEWER,
} | dict.fromkeys(("health", "static", "login", "login.enter", "login.link"))
"""The least role that each route of the application asks for; None is open to everybody, and shows nothing."""
OPEN_ENDED = "live"
"""It answers for as long as the tab is open; test_live.py reads it."""


@pytest.mark.parametrize("auth", [Token("long enough"), lambda _: None], ids=["with a login page", "without"])
def test_every_route_has_its_least_role(browse: Callable[..., Any], auth: Any) -> None:
    with_login = {"login", "login.enter", "login.link", "logout", "sessions.end"}
    login = with_login if isinstance(auth, Token) else set()

    routes = {route.name for route in browse(auth=auth).app.routes}

    assert routes == {name for name in LEAST if name not in with_login} | login


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH"])
def test_nobody_gets_anything_but_what_is_open_by_any_method(browse: Callable[..., Any], method: str) -> None:
    browser = browse(auth=Token("long enough"), peer="10.0.0.9")

    for route in browser.app.routes:
        answer = browser.request(method, path_of(route), headers=JSON)
        if LEAST[route.name] is not None:
            assert answer.status_code in (401, 404, 405), (route.name, answer.text)
        assert "waiting" not in answer.text


@pytest.mark.parametrize("role", Role)
def test_each_role_sees_the_pages_of_its_role(browse: Callable[..., Any], role: Role) -> None:
    browser = browse(auth=as_role(role), name="ann")

    for route in browser.app.routes:
        least = LEAST[route.name]
        if "GET" in (getattr(route, "methods", None) or ()) and route.name != OPEN_ENDED and least is not None:
            answer = browser.get(path_of(route), headers=JSON)
            assert (answer.status_code in (401, 403)) == (role < least), (route.name, answer.text)


def test_a_dashboard_without_actions_has_none_for_an_admin_either(browse: Callable[..., Any]) -> None:
    browser = browse(auth=as_role(Role.ADMIN), name="ann", actions=False)

    assert do(browser, "/dead/requeue").status_code == 403


def test_a_queue_is_paused_resumed_and_limited(admin: Any, client: Client) -> None:
    client.queue("mail").push({})

    assert do(admin, "/queues/mail/pause", **{"for": "60"}).json()["done"] == "queue mail is paused for 60 s"
    assert client.queue("mail").is_paused()
    do(admin, "/queues/mail/resume")
    assert not client.queue("mail").is_paused()
    do(admin, "/queues/mail/limit", max_inflight="5", rate_max="10", rate_interval="2")
    settings = client.queue("mail").settings()
    assert (settings.max_inflight, settings.rate.max_tokens, settings.rate.seconds) == (5, 10, 2)  # type: ignore[union-attr]
    do(admin, "/queues/mail/limit", max_inflight="")
    assert client.queue("mail").settings().max_inflight == 0
    assert client.queue("mail").settings().rate is not None


def test_limits_of_partitions_rotation_and_history_are_set_and_lifted(admin: Any, client: Client) -> None:
    client.queue("mail").push({})
    rate = {"rate_per_partition_max": "3", "rate_per_partition_interval": "2", "rate_per_partition_unit": "HOURS"}
    kept = {"history_for": "1.5", "history_unit": "days", "history_max": "100"}

    done = do(admin, "/queues/mail/limit", max_inflight_per_partition="2", fair="1", **rate, **kept).json()["done"]

    found = client.queue("mail").settings()
    assert (found.max_inflight_per_partition, found.fair, found.history, found.history_max) == (2, True, 129_600, 100)
    assert found.rate_per_partition == RateLimit(3, interval=2, interval_unit="HOURS")
    assert "max inflight per partition 2" in done
    assert "rate per partition 3 in 2 hours" in done
    assert entries(client)[0].outcome == done
    do(admin, "/queues/mail/limit", max_inflight_per_partition="", fair="0", rate_per_partition_max="", history_for="",
       history_max="")  # fmt: skip
    assert client.queue("mail").settings() == QueueSettings()


def test_a_limit_form_without_a_limit_or_with_no_number_as_history_is_refused(admin: Any, client: Client) -> None:
    client.queue("mail").push({})
    client.queue("mail").configure(history=60)

    assert do(admin, "/queues/mail/limit", history_unit="days").status_code == 400
    assert client.queue("mail").settings().history == 60
    for text in ("nan", "7d"):
        refused = do(admin, "/queues/mail/limit", history_for=text, history_unit="days")
        assert refused.status_code == 400
        assert f"history_for={text!r}: give how long" in html.unescape(refused.text)
    assert client.queue("mail").settings().history == 60, "else what it keeps would be deleted"


WRONG = [
    *({"max_inflight": text} for text in ("1,000", "12.5", "-5", "99999999999", "1e4", "ten")),
    {"max_size": "1e4"},
    {"history_max": "0x10"},
    {"rate_max": "100", "rate_interval": "60s", "rate_unit": "SECONDS"},
    {"rate_max": "100", "rate_interval": "0"},
    {"rate_max": "100", "rate_unit": "hours"},
    {"rate_max": "fast"},
    {"fair": "perhaps"},
    {"history_for": "-3"},
    {"history_for": "7", "history_unit": "weeks"},
]


@pytest.mark.parametrize("fields", WRONG, ids=str)
def test_a_limit_that_is_none_is_refused_and_changes_nothing(admin: Any, client: Client, fields: Any) -> None:
    """One was lifted, or became another limit."""
    line = client.queue("mail")
    line.configure(max_inflight=10, max_size=500, rate=RateLimit(5, interval=1), history=60, history_max=9)
    before = line.settings()

    refused = do(admin, "/queues/mail/limit", **fields)

    assert refused.status_code == 400, refused.text
    assert any(f"{name}={text!r}: give" in html.unescape(refused.text) or f"{name}={text}: give" in refused.text
               for name, text in fields.items())  # fmt: skip
    assert line.settings() == before


def test_a_limit_of_0_is_no_limit(admin: Any, client: Client) -> None:
    client.queue("mail").configure(max_inflight=10, max_size=500, rate=RateLimit(5, interval=1))

    assert do(admin, "/queues/mail/limit", max_inflight="0", max_size="0", rate_max="0").status_code == 200

    assert client.queue("mail").settings() == QueueSettings()


@pytest.mark.parametrize("text", ["10m", "90s", "nan", "inf", "-3", "0", "99999999"])
def test_a_pause_for_no_length_of_time_is_refused(admin: Any, client: Client, text: str) -> None:
    """It was one without an end."""
    client.queue("mail").push({})

    refused = do(admin, "/queues/mail/pause", **{"for": text})

    assert (refused.status_code, client.queue("mail").is_paused()) == (400, False)
    assert f"for={text!r}: give seconds" in html.unescape(refused.text)


def test_the_form_sends_back_the_history_that_it_shows(admin: Any, client: Client) -> None:
    client.queue("mail").push({})
    client.queue("mail").configure(history=1_234_567)

    shown = re.search(r'name="history_for"[^>]*value="([^"]*)"', admin.get("/queues/mail").text)
    assert shown is not None
    do(admin, "/queues/mail/limit", history_for=shown[1], history_unit="minutes")

    assert client.queue("mail").settings().history == 1_234_567


def test_a_form_of_limits_leaves_what_another_user_changed_meanwhile(admin: Any, client: Client) -> None:
    line = client.queue("mail")
    line.configure(max_inflight=5, max_size=500, rate=RateLimit(7, interval=2, interval_unit="HOURS"), history=60)
    page = admin.get("/queues/mail").text
    form = re.search(r'<form[^>]*action="/queues/mail/limit".*?</form>', page, re.DOTALL)
    assert form is not None
    fields = {name: html.unescape(value)
              for name, value in re.findall(r'<input[^>]*name="([^"]*)"[^>]*value="([^"]*)"', form[0])
              if name != "fair"}  # fmt: skip
    for name, chosen in re.findall(r'<select name="([^"]*)".*?value="([^"]*)" selected', form[0]):
        fields[name] = chosen
    before = dict(fields)
    line.configure(max_size=20, rate=None, history=3600)  # another user

    unchanged = do(admin, "/queues/mail/limit", **before)
    done = do(admin, "/queues/mail/limit", **{**fields, "max_inflight": "6"})

    assert (unchanged.status_code, "as it was" in unchanged.json()["error"]) == (400, True)
    assert done.json()["done"] == "limits of queue mail: max inflight 6"
    found = line.settings()
    assert (found.max_inflight, found.max_size, found.rate, found.history) == (6, 20, None, 3600)
    do(admin, "/queues/mail/limit", **{**fields, "rate_unit": "MINUTES", "history_unit": "days"})
    found = line.settings()
    assert (found.rate, found.history) == (RateLimit(7, interval=2, interval_unit="MINUTES"), 86_400)


def test_a_declared_limit_that_was_changed_on_the_page_names_who_did(admin: Any, client: Client) -> None:
    queue("mail", max_inflight=4, history=3600)
    publish_declared(client, heartbeat_s=10)
    assert "declared, tests.unit.web.test_actions:" in admin.get("/queues/mail").text

    do(admin, "/queues/mail/limit", max_inflight="1", max_size="", history_for="1", history_unit="hours")
    origins = client.queue("mail").origins()
    assert (origins["max_inflight"].changed_by, origins["history"].changed_by) == ("ann", "")
    assert "max_size" not in origins, "it was none before"
    page = admin.get("/queues/mail").text
    assert "changed by ann" in page
    assert "declared 4, tests.unit.web.test_actions:" in page

    do(admin, "/queues/mail/limit", max_inflight="4", history_for="0.5", history_unit="hours", history_max="10")
    assert client.queue("mail").settings().history == 1800
    assert client.queue("mail").origins()["max_inflight"].changed_by == ""
    assert client.queue("mail").origins()["history"].changed_by == "ann"


def test_a_dead_task_is_requeued_and_a_scheduled_one_runs_now(admin: Any, client: Client) -> None:
    dead(client, 1)
    later = client.enqueue(Task(id="later", queue="mail", payload=b"{}", delay_ms=60_000))

    assert do(admin, "/tasks/d0/requeue", queue="mail").status_code == 200
    assert do(admin, "/tasks/later/run-now", queue="mail").status_code == 200
    assert (client.task("d0", queue="mail").state, later.state) == ("waiting", "waiting")
    assert do(admin, "/tasks/later/run-now", queue="mail").status_code == 400


def test_a_task_is_cancelled_and_another_deleted(admin: Any, client: Client, audit: Any) -> None:
    one, two = (client.enqueue(Task(id=name, queue="mail", payload=b"{}")) for name in ("one", "two"))

    do(admin, "/tasks/one/cancel", queue="mail")
    do(admin, "/tasks/two/delete", queue="mail")

    assert (one.state, two.exists()) == ("cancelled", False)
    assert audit("mail")["waiting"] == 0


def test_what_follows_the_deletion_of_a_task_of_a_partition_is_the_page_of_its_queue(
    admin: Any, client: Client
) -> None:
    line = client.queue("mail")
    line.configure(partitions=4)
    apart = next(one for one in line.push_many(range(40)) if "@" in one)

    done = do(admin, f"/tasks/{apart}/delete", queue="mail").json()

    assert (done["to"], admin.get(done["to"]).status_code) == ("/queues/mail", 200)


def test_what_pages_requeue_and_delete_has_an_event_for_each_queue(admin: Any, client: Client) -> None:
    dead(client, 6)
    do(admin, "/tasks/d0/requeue", queue="mail")
    admin.post_form("/tasks/bulk", {"action": "requeue", "ids": ["mail d1", "mail d2"]}, headers=JSON)
    do(admin, "/tasks/d3/delete", queue="mail")
    admin.post_form("/tasks/bulk", {"action": "cancel", "all": "1", "state": "dead"}, headers=JSON)

    def changes() -> list[Any]:
        kinds = ("dead_requeued", "queue_purged")
        return [(event.kind, event.queue, event.details) for event in client.events() if event.kind in kinds]

    wait_for(lambda: len(changes()) == 4)  # the last is of an operation, which runs in the background
    assert changes() == [
        ("dead_requeued", "mail", {"count": "1"}),
        ("dead_requeued", "mail", {"count": "2"}),
        ("queue_purged", "mail", {"state": "dead", "count": "1"}),
        ("queue_purged", "mail", {"state": "dead", "count": "2"}),
    ]


def test_a_finished_task_is_replayed(admin: Any, client: Client) -> None:
    client.queue("mail").configure(history=60)
    client.enqueue(Task(id="one", queue="mail", payload=b'{"a":1}'))
    client.queue("mail").reserve()[0].commit()

    again = do(admin, "/tasks/one/replay", queue="mail").json()["id"]

    assert client.task(again).record().payload == b'{"a":1}'


def test_what_cannot_be_replayed_is_a_conflict_and_no_fault_of_a_server(
    admin: Any, client: Client, server: Server, keys: Any
) -> None:
    secret = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
    client.queue("mail").configure(history=60)
    with Client(server.url, keys.prefix, payload_keys=[secret], payload_encryption="sign") as signing:
        task_id = signing.queue("mail").push({"a": 1})
        signing.queue("mail").reserve()[0].commit()

    answer = do(admin, f"/tasks/{task_id}/replay", queue="mail")

    assert answer.status_code == 409
    assert "no payload_keys are configured; set JOBRUNNER_PAYLOAD_KEYS" in answer.json()["error"]


def test_those_selected_are_changed_at_once(admin: Any, client: Client) -> None:
    dead(client, 3)

    answer = admin.post_form("/tasks/bulk", {"action": "requeue", "ids": ["mail d0", "mail d2"]}, headers=JSON)

    assert (answer.json()["changed"], client.queue("mail").counts()["waiting"]) == (2, 2)


def test_all_dead_that_match_are_requeued_in_the_background(admin: Any, client: Client) -> None:
    dead(client, 1200)
    dead(client, 3, queue="other")

    answer = do(admin, "/dead/requeue", queue="mail", type="Send", error="BROKEN")

    operation = answer.json()["to"]
    ended = wait_for(
        lambda: (found := admin.get(operation, headers=JSON).json()["operation"])["state"] == "done" and found
    )
    assert dict(ended["facts"])["Changed"] == "1,200"
    assert (client.queue("mail").counts()["waiting"], client.queue("other").counts()["dead"]) == (1200, 3)


def test_a_purge_deletes_everything_of_a_state(admin: Any, client: Client, audit: Any) -> None:
    dead(client, 700)
    client.queue("mail").push({})

    operation = do(admin, "/queues/mail/purge", state="dead").json()["to"]

    wait_for(lambda: admin.get(operation, headers=JSON).json()["operation"]["state"] == "done")
    assert (audit("mail")["dead"], audit("mail")["waiting"]) == (0, 1)


def test_only_an_admin_deletes_all_that_match(browse: Callable[..., Any], client: Client) -> None:
    dead(client, 1)
    browser = browse(auth=as_role(Role.OPERATOR), name="ann")

    refused = do(browser, "/tasks/bulk", action="delete", all="1")

    assert (refused.status_code, client.queue("mail").counts()["dead"]) == (403, 1)


WIDER = [
    ("/tasks/bulk", {"action": "delete", "all": True, "queue": "mail", "state": "Dead"}, "state='Dead': give one of"),
    ("/tasks/bulk", {"action": "delete", "all": True, "queue": "mail", "states": "dead"}, "no field 'states' here"),
    ("/tasks/bulk", {"action": "delete", "all": "none", "ids": ["mail d0"]}, "all='none': give 1 or 0"),
    ("/tasks/bulk", {"action": "delete", "all": True, "queue": "mail", "job": "="}, "names no job"),
    ("/dead/purge", {"queue": "mail", "error": "broken" + "x" * 200}, "has 206 characters: at most 200"),
    ("/dead/purge", {"queue": "mail", "error": " "}, "error=' ' is blank"),
    ("/dead/purge", {"queue": "mail", "state": "waiting"}, "state='waiting': give one of dead"),
    ("/dead/purge", {"queue": "mail", "error": ["no such", "broken"]}, "error is given twice"),
    ("/dead/requeue", {"queue": "mail", "jobs": "Other"}, "no field 'jobs' here"),
    ("/dead/requeue?job=Other", {}, "no field 'job' here"),
    ("/queues/mail/purge", {"state": "dead", "error": "other"}, "no field 'error' here"),
    ("/queues/mail/pause", {"for_s": 60}, "no field 'for_s' here: give for"),
    ("/queues/mail/limit", {"max_size": 5, "max_inflights": 5}, "no field 'max_inflights' here"),
]


@pytest.mark.parametrize(("path", "fields", "told"), WIDER, ids=lambda one: one if isinstance(one, str) else "")
def test_an_action_is_not_wider_than_what_was_asked_for(
    admin: Any, client: Client, path: str, fields: dict[str, Any], told: str
) -> None:
    """A condition that is not understood was left out, or cut."""
    dead(client, 3)
    client.queue("mail").push("waits")
    token = admin.token(admin.dashboard)

    headers = {**JSON, "sec-fetch-site": "same-origin"}
    refused = admin.post(path, json={"csrf": token, **fields}, headers=headers)

    assert (refused.status_code, told in refused.json()["error"]) == (400, True), refused.text
    assert client.queue("mail").counts()["dead"] == 3
    assert not [one for one in entries(client) if one.action.startswith("operation.")]
    assert (client.queue("mail").is_paused(), client.queue("mail").settings().max_size) == (False, None)


def test_only_an_admin_cancels_all_that_are_dead(browse: Callable[..., Any], client: Client) -> None:
    """A dead task that is cancelled is deleted a minute later."""
    dead(client, 2)
    operator = browse(auth=as_role(Role.OPERATOR), name="ann")

    refused = do(operator, "/tasks/bulk", action="cancel", all="1", queue="mail", state="dead")

    assert (refused.status_code, "requires the role admin" in refused.json()["error"]) == (403, True)
    assert client.queue("mail").counts()["dead"] == 2


@pytest.mark.parametrize("action", ["delete", "cancel"])
def test_tasks_selected_in_the_list_of_the_dead_are_left_when_they_are_requeued_meanwhile(
    admin: Any, client: Client, action: str
) -> None:
    dead(client, 2)
    assert client.task("d0", queue="mail").requeue()

    answer = do(admin, "/tasks/bulk", action=action, state="dead", ids=["mail d0", "mail d1"]).json()

    assert (answer["changed"], answer["chosen"]) == (1, 2)
    assert (client.queue("mail").ids("waiting"), client.queue("mail").ids("dead")) == (["d0"], [])


def test_a_task_that_was_requeued_since_its_page_was_read_is_not_deleted(admin: Any, client: Client) -> None:
    dead(client, 1)
    page = admin.get("/tasks/d0?queue=mail").text
    assert page.count('name="state" value="dead"') == 1
    assert client.task("d0", queue="mail").requeue()

    answer = do(admin, "/tasks/d0/delete", queue="mail", state="dead")

    assert answer.status_code == 400
    assert answer.json()["error"] == "task d0 was dead and is waiting now: it is not deleted"
    assert client.queue("mail").ids("waiting") == ["d0"]
    assert do(admin, "/tasks/d0/delete", queue="mail", state="waiting").status_code == 200


@pytest.mark.parametrize("path", ["/tasks/d0/cancel", "/tasks/bulk"])
def test_a_task_that_died_since_its_page_was_read_is_not_deleted_by_its_cancellation(
    admin: Any, client: Client, path: str
) -> None:
    dead(client, 1)
    fields = {"action": "cancel", "ids": ["mail d0"]} if path == "/tasks/bulk" else {"queue": "mail"}

    answer = do(admin, path, state="pending", **fields)

    assert answer.json().get("error", "task d0 is dead: nothing was changed") == "task d0 is dead: nothing was changed"
    assert answer.json().get("changed", 0) == 0
    assert client.queue("mail").ids("dead") == ["d0"]


def test_an_operation_that_cancels_leaves_what_dies_before_it_gets_there(
    browse: Callable[..., Any], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found_then_died(*args: Any) -> Any:
        for found in matching(*args):
            for lease in client.queue("mail").reserve(10):
                lease.rollback(error="broken")
            yield found

    client.enqueue(Task(id="t0", queue="mail", payload=b"1", max_attempts=1))
    monkeypatch.setattr(operations, "matching", found_then_died)
    operator = browse(auth=as_role(Role.OPERATOR), name="ann")

    operation = do(operator, "/tasks/bulk", action="cancel", all="1", queue="mail").json()["to"]

    wait_for(lambda: operator.get(operation, headers=JSON).json()["operation"]["state"] == "done")
    assert client.queue("mail").ids("dead") == ["t0"]


def test_to_cancel_all_leaves_what_is_dead(browse: Callable[..., Any], client: Client) -> None:
    dead(client, 2)
    line = client.queue("mail")
    line.push_many(["runs", "waits"])
    (lease,) = line.reserve()
    line.push("later", in_=60)
    operator = browse(auth=as_role(Role.OPERATOR), name="ann")

    operation = do(operator, "/tasks/bulk", action="cancel", all="1", queue="mail").json()["to"]

    ended = wait_for(
        lambda: (found := operator.get(operation, headers=JSON).json()["operation"])["state"] == "done" and found
    )
    assert (dict(ended["facts"])["Changed"], ended["total"]) == ("3", 3)
    assert line.counts() | {"done": 0} == {"waiting": 0, "scheduled": 0, "pending": 1, "dead": 2, "done": 0}
    assert lease.id in line.ids("pending")


def test_a_worker_that_is_there_can_be_told_and_no_other(admin: Any, client: Client) -> None:
    announce = leader_calls.announce(keys_of(client), "w1", {"host": "h"}, ttl_ms=60_000)
    broker_of(client).run(announce)

    assert do(admin, "/workers/w1/quiet").status_code == 200
    assert broker_of(client).run(announce).commands == {"quiet": b"1"}
    assert do(admin, "/workers/w2/stop").status_code == 404


def test_a_periodic_job_is_switched_and_run_and_an_unknown_one_is_not_there(admin: Any, client: Client) -> None:
    nightly = PeriodicDefinition(name="Nightly", queue="mail", schedule={"cron": "0 3 * * *", "tz": "UTC"},
                                 payload=b"{}", catch_up="last", overlap="skip", jitter=0.0)  # fmt: skip
    broker_of(client).run(leader_calls.define_periodics(keys_of(client), {"Nightly": msgspec.json.encode(nightly)}))

    do(admin, "/periodic/Nightly/disable")
    assert [job.enabled for job in client.periodics()] == [False]
    do(admin, "/periodic/Nightly/enable")
    assert [job.enabled for job in client.periodics()] == [True]
    assert client.task(do(admin, "/periodic/Nightly/run").json()["id"]).record().type == "Nightly"
    assert [(event.kind, event.job) for event in client.events()] == [
        ("periodic_disabled", "Nightly"),
        ("periodic_enabled", "Nightly"),
    ]
    for verb in ("run", "enable", "disable"):
        refused = do(admin, f"/periodic/Nope/{verb}")
        assert (refused.status_code, "known are Nightly" in refused.json()["error"]) == (404, True)


def test_who_did_what_is_noted_also_what_was_refused(admin: Any, client: Client) -> None:
    client.queue("mail").push({})
    do(admin, "/queues/mail/pause")
    do(admin, "/queues/none/pause")

    refused, done, came_in = admin.get("/audit", headers=JSON).json()["entries"]
    assert (came_in["who"], came_in["action"]) == ("ann", "login")
    assert (done["who"], done["role"], done["action"], done["what"]) == ("ann", "admin", "queue.pause", "mail")
    assert (done["outcome"], done["address"]) == ("queue mail is paused", "127.0.0.1")
    assert refused["outcome"].startswith("refused: there is no queue")


def test_what_is_done_to_many_is_noted_with_its_filter_and_its_number(admin: Any, client: Client) -> None:
    dead(client, 3)
    do(admin, "/dead/requeue", queue="mail", error="brok")

    ended = wait_for(lambda: [one for one in entries(client) if one.action == "operation.requeue"])
    begun = next(one for one in entries(client) if one.action == "dead.requeue")

    assert begun.what == "queue=mail state=dead error=brok"
    assert [(one.who, one.what) for one in ended] == [("ann", "queue=mail state=dead error=brok")]
    assert ended[0].outcome.startswith("done: 3 changed, 0 not")


def test_an_operation_says_why_some_tasks_were_not_changed_and_its_times_are_those_of_the_reader(
    browse: Callable[..., Any], client: Client
) -> None:
    client.queue("mail").push_many(range(5))
    client.queue("mail").reserve(2)
    browser = browse()

    begun = browser.post_form("/tasks/bulk", {"action": "delete", "all": "1"})

    path = begun.headers["location"]
    wait_for(lambda: "is done" in browser.get(path).text)
    page = browser.get(path).text
    assert "2: a worker holds them, or another client changed them first" in page
    assert len(re.findall(r"<dd><time datetime=", page)) == 2


def test_an_operation_that_fails_is_noted_with_what_it_changed_before(
    admin: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead(client, 1)
    monkeypatch.setattr("jobrunner.web.operations.change", Mock(side_effect=ServerRefused("no more")))
    do(admin, "/dead/purge")

    (ended,) = wait_for(lambda: [one for one in entries(client) if one.action == "operation.delete"])

    assert (ended.what, ended.outcome.partition(" (")[0]) == ("state=dead", "failed: no more: 0 changed, 0 not")


def test_the_record_of_an_operation_that_runs_for_more_than_a_day_is_kept_and_expires_after_its_end(
    client: Client, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: Any, **__: Any) -> int:
        (key,) = raw.keys("*operations:*")
        raw.pexpire(key, 60_000)  # as after nearly a day
        return 1

    dead(client, 1)
    monkeypatch.setattr("jobrunner.web.operations.change", late)
    operation = Operations(client).start("requeue", who="ann", wanted=Filter(state="dead"))

    wait_for(lambda: (found := read_operation(client, operation)) is not None and found.is_over)

    assert raw.pttl(*raw.keys("*operations:*")) > 80_000_000


def test_an_action_on_a_server_that_hangs_says_that_its_outcome_is_not_known(
    client: Client, browse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.queue("mail").push(1)
    broke = OutcomeUnknown("the connection to redis://x broke during pause; it was applied or it was not")
    monkeypatch.setattr("jobrunner.client.queue.Queue.pause", Mock(side_effect=broke))

    answer = browse().post_form("/queues/mail/pause")

    assert answer.status_code == 503
    assert f"The server did not answer, and what became of this is not known: {broke}" in answer.text


def test_a_stranger_is_told_that_a_server_is_away_that_hangs_while_the_session_is_read(
    browse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobrunner.web.access.Access.known", Mock(side_effect=OutcomeUnknown("at redis://secret")))

    answer = browse(auth=Token("x" * 20)).post_form("/queues/mail/pause")

    assert (answer.status_code, "The server is away." in answer.text, "secret" in answer.text) == (503, True, False)


def test_an_operation_that_cannot_be_noted_is_shown_as_it_ended(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobrunner.inspector.audit.write", Mock(side_effect=ServerUnavailable("away for a moment")))
    operation = Operations(client).start("requeue", who="ann", wanted=Filter(queue="mail"))
    for thread in threading.enumerate():
        if thread.name == "jobrunner-operation":
            thread.join(30)

    ended = read_operation(client, operation)
    assert ended is not None
    assert (ended.state, ended.error) == ("done", "")


def test_an_operation_that_an_outage_ended_is_shown_as_failed_when_the_server_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, tried = Server(appendonly="yes", appendfsync="always"), threading.Event()

    def goes_away(*_: Any, **__: Any) -> int:
        server.kill()
        raise ServerUnavailable("no server")

    def soon(_: float) -> None:
        tried.set()
        threading.Event().wait(0.01)

    monkeypatch.setattr(operations, "change", goes_away)
    monkeypatch.setattr(operations, "sleep", soon)
    with Client(server.url, retry_timeout=0.1) as client:
        client.queue("mail").push(1)
        operation = Operations(client).start("requeue", who="ann", wanted=Filter(queue="mail"))
        assert tried.wait(30)
        server.start()

        ended = wait_for(lambda: (found := read_operation(client, operation)) and found.is_over and found)
        note = wait_for(lambda: next(iter(entries(client)), None))
    server.remove()

    assert (ended.state, ended.error) == ("failed", "no server")
    assert (note.action, note.who) == ("operation.requeue", "ann")
    assert note.outcome.startswith("failed: no server: 0 changed")


def test_selected_tasks_are_named_in_the_audit_log(admin: Any, client: Client) -> None:
    ids = client.queue("mail").push_many([1, 2])
    do(admin, "/tasks/bulk", action="delete", ids=[f"mail {one}" for one in ids])

    note = entries(client)[0]

    assert (note.action, note.outcome) == ("tasks.bulk", "2 of 2 tasks deleted")
    assert note.what == f"2 selected: {' '.join(ids)}"


def test_as_many_tasks_as_can_be_selected_are_all_named_in_the_audit_log(
    admin: Any, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="jobrunner.audit")
    ids = client.queue("mail").push_many(range(500))
    do(admin, "/tasks/bulk", action="delete", ids=[f"mail {one}" for one in ids])

    notes = [one for one in reversed(entries(client)) if one.action == "tasks.bulk"]

    assert [one.what.partition(") ")[0] for one in notes][::4] == [
        "500 selected: (1 to 100 of 500", "500 selected: (401 to 500 of 500"
    ]  # fmt: skip
    assert [one for note in notes for one in note.what.partition(") ")[2].split()] == list(ids)
    lines = [record.getMessage() for record in caplog.records if "tasks.bulk" in record.getMessage()]
    assert all(any(f" {one} " in line for line in lines) for one in ids)


def test_a_filter_with_every_condition_is_whole_in_the_audit_log(admin: Any, client: Client) -> None:
    texts = {name: name[0] * 200 for name in ("job", "error", "param")}
    do(admin, "/dead/requeue", queue="q" * 60, **texts)

    begun = next(one for one in entries(client) if one.action == "dead.requeue")

    assert begun.what == f"queue={'q' * 60} state=dead " + " ".join(f"{name}={text}" for name, text in texts.items())


def test_every_request_that_is_to_change_something_leaves_an_entry(
    browse: Callable[..., Any], raw: redis.Redis, keys: Any
) -> None:
    """Also one that names what is not there, or lacks a field."""
    browser = browse(auth=as_role(Role.ADMIN), name="ann")
    browser.get("/")  # the first visit is an entry of its own
    silent = []
    for route in browser.app.routes:
        if "POST" in (getattr(route, "methods", None) or ()):
            before = raw.xlen(keys.audit)
            answer = browser.post_form(path_of(route), headers=JSON)
            silent += [(route.name, answer.status_code, answer.text)] if raw.xlen(keys.audit) == before else []
    assert silent == []
