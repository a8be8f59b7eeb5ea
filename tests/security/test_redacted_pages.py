"""Pages that a viewer may read contain no secret, in HTML or JSON, wherever a task has one; odd data is no error."""

import asyncio
import base64
import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from click.testing import CliRunner
from starlette.testclient import TestClient

from jobrunner import AsyncClient, Client, Job, Worker, chain, group, job
from jobrunner.cli.main import jobrunner as command_line
from jobrunner.client import shared_redaction
from jobrunner.client.client import broker_of, keys_of
from jobrunner.redaction import HIDDEN, Redaction, names_hidden_in_errors
from jobrunner.web.app import create_app
from jobrunner.web.auth import Role
from jobrunner.web.credentials import Basic
from jobrunner.web.pages import all_pages
from tests.security.conftest import KEY, Connect
from tests.support.absent_node import take_away

SECRET = "hunter2"
JSON = {"accept": "application/json"}
HTML = {"accept": "text/html"}


@job(name="shown.open", queue="shown", result_ttl=600, max_attempts=1)
class Open(Job):
    """Has secrets everywhere."""

    iban: str
    nested: dict[str, Any]

    def run(self) -> Any:
        self.progress(1, 2, note=f"iban={SECRET}")
        if self.nested.get("fail"):
            raise ValueError(f"cannot pay: Open(iban='{SECRET}', password={SECRET!r}, other='seen')")
        return {"token": SECRET, "list": [{"iban": SECRET}], "name": "seen"}


@job(name="shown.next", queue="shown", result_ttl=600, max_attempts=1)
class Next(Job):
    """A step behind others."""

    def run(self) -> Any:
        return [*self.task.results]


def viewer(client: Client, **options: Any) -> TestClient:
    app = create_app(client, auth=Basic({"vic": ("vicpw", Role.VIEWER)}), **{"redact": ["iban"], **options})
    browser = TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 50000))
    browser.auth = ("vic", "vicpw")
    return browser


def filled(client: Client, raw: redis.Redis) -> tuple[list[str], str]:
    """Tasks in all states and the steps of a flow, their ids; and the id of the flow."""
    parameters = {"nested": {"Authorization": SECRET, "deep": [{"db_password": SECRET}]}}
    bad = Open(iban=SECRET, nested={**parameters["nested"], "fail": True}).enqueue().id
    good = Open(iban=SECRET, **parameters).enqueue().id
    flow = chain(group(Open(iban=SECRET, **parameters), Open(iban=SECRET, **parameters)), Next()).enqueue()
    Worker(client=client, queues=["shown"]).run(burst=True)
    waiting = Open(iban=SECRET, **parameters).enqueue().id
    scheduled = Open(iban=SECRET, **parameters).enqueue(in_=999).id
    keys = keys_of(client).queue("shown")
    for one in (bad, good, waiting, scheduled):
        raw.hset(keys.task(one), "headers", json.dumps({"authorization": SECRET, "iban": SECRET, "trace": "seen"}))
        raw.hset(keys.task(one), "a_field_of_a_newer_version", json.dumps({"iban": SECRET}))
        raw.hset(keys.task(one), "results", json.dumps([{"iban": SECRET}, [{"token": SECRET}]]))
    return [bad, good, waiting, scheduled, *(one.id for one in flow._flow.steps)], flow.id


def paths(ids: list[str], flow: str) -> list[str]:
    """Every page of the dashboard, with every task and a flow."""
    found = []
    names = {"queue": "shown", "worker": "unknown", "pipeline": "none", "type": "shown.open", "name": "shown.open"}
    names["flow"] = flow
    for page in all_pages():
        if page.path == "/tasks/{task}":
            found += [f"/tasks/{one}" for one in ids]
        elif "{" not in page.path:
            found.append(page.path)
        else:
            found.append(re.sub(r"\{(\w+)[^}]*\}", lambda one: names.get(one[1], "shown"), page.path))
    found += [f"/tasks?queue=shown&state={state}" for state in ("dead", "waiting", "scheduled")]
    return [*found, "/dead?queue=shown", "/metrics"]


@pytest.mark.parametrize(
    "options", [{}, {"payload_keys": [KEY]}, {"payload_keys": [KEY], "payload_encryption": "sign"}]
)
@pytest.mark.parametrize("headers", [HTML, JSON], ids=["page", "json"])
def test_no_page_tells_a_viewer_a_secret(
    connect: Connect, raw: redis.Redis, options: dict[str, Any], headers: dict[str, str]
) -> None:
    client = connect(**options)
    ids, flow = filled(client, raw)
    browser = viewer(client)
    for path in paths(ids, flow):
        answer = browser.get(path, headers=headers)
        assert answer.status_code in (200, 404), (path, answer.status_code)
        texts = [answer.text, *decoded(answer.text)]
        assert not [text for text in texts if SECRET in text], path
    assert HIDDEN in browser.get(f"/tasks/{ids[0]}", headers=HTML).text


def decoded(text: str) -> list[str]:
    """The decoded text of every base64 string in a page."""
    found = []
    for word in re.findall(r"[A-Za-z0-9+/]{16,}={0,2}", text):
        try:
            found.append(base64.b64decode(word + "=" * (-len(word) % 4)).decode("utf-8", "replace"))
        except ValueError:
            continue
    return found


def test_a_field_that_nobody_chose_to_show_is_not_shown(connect: Connect, raw: redis.Redis) -> None:
    client = connect()
    task = Next().enqueue()
    raw.hset(keys_of(client).queue("shown").task(task.id), "brand_new", "a-new-value")
    browser = viewer(client)

    for headers in (HTML, JSON):
        assert "a-new-value" not in browser.get(f"/tasks/{task.id}", headers=headers).text


@pytest.mark.parametrize(
    "name", ["payload", "result", "results", "headers", "progress", "outcomes", "error", "failures", "brand_new"]
)
def test_json_nested_3_000_deep_is_no_error_and_shows_no_secret(connect: Connect, raw: redis.Redis, name: str) -> None:
    client = connect()
    task, neighbour = Next().enqueue(), Next().enqueue()
    deep = '{"password":"' + SECRET + '","deep":' + "[" * 3_000 + "]" * 3_000 + "}"
    raw.hset(keys_of(client).queue("shown").task(task.id), name, deep)
    browser = viewer(client)

    for path in (f"/tasks/{task.id}", "/tasks?queue=shown", "/tasks?queue=shown&param=deep"):
        for headers in (HTML, JSON):
            answer = browser.get(path, headers=headers)
            assert answer.status_code == 200, (path, answer.text[:300])
            assert SECRET not in answer.text
    where = ["--url", client.settings.url, "--prefix", keys_of(client).prefix]
    for command in (["tasks", "show", task.id], ["tasks", "show", task.id, "--json"], ["tasks", "list", "shown"]):
        told = CliRunner().invoke(command_line, [*command, *where])
        assert told.exit_code == 0, (command, told.output[-300:])
        assert SECRET not in told.output, command
        assert (neighbour.id in told.output) is ("list" in command)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("ValueError: no iban=DE89 here", "ValueError: no iban=•••••• here"),
        ("Open(iban='DE 89', n=1)", "Open(iban=••••••, n=1)"),
        ("{'iban': 'DE\\'89', 'n': 1}", "{'iban': ••••••, 'n': 1}"),
        ('{"iban":"DE\\"89","n":1}', '{"iban":••••••,"n":1}'),
        ("db_password: x; n: 1", "db_password: ••••••; n: 1"),
        ("ibanes=1 my_iban=2", "ibanes=1 my_iban=2"),
        ("https://h/?token=abc&n=1", "https://h/?token=••••••&n=1"),
        ('{"iban":"cut off', '{"iban":••••••'),
        ("nothing to hide = at all", "nothing to hide = at all"),
    ],
)
def test_values_behind_names_are_hidden_in_free_text(text: str, hidden: str) -> None:
    assert Redaction(["iban"]).text(text) == hidden


def test_hiding_in_free_text_is_fast_whatever_the_text() -> None:
    redaction = Redaction(["iban", "a.*b"])
    texts = ["iban=" * 20_000, "'" * 100_000, "a" * 100_000, "a-" * 50_000, " =" * 50_000, '"iban":"' * 9_000]
    for text in [*texts, 'iban="' + "\\" * 99_999, "iban='" * 20_000, 'iban=\\"' * 20_000]:
        began = time.process_time()
        redaction.text(text)
        assert time.process_time() - began < 2, text[:20]


def test_names_that_a_worker_publishes_hold_everywhere(
    connect: Connect, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A worker with `redact` ran once; then a dashboard that names nothing, and a command in another folder."""
    worker = connect(redact=["iban", "pin"])
    task = Open(iban=SECRET, nested={"pin": SECRET, "fail": True}).enqueue()
    Worker(client=worker, queues=["shown"]).run(burst=True)
    raw.sadd(keys_of(worker).redact, "(((no pattern")
    client = connect()
    monkeypatch.chdir(tmp_path)
    browser = viewer(client, redact=[])

    for path in (f"/tasks/{task.id}", "/dead?queue=shown", f"/tasks?queue=shown&param={SECRET}"):
        for headers in (HTML, JSON):
            text = browser.get(path, headers=headers).text
            assert SECRET not in text.replace(f"param={SECRET}", "").replace(f'value="{SECRET}"', "").replace(
                f'"param":"{SECRET}"', ""
            ), path
    where = ["--url", client.settings.url, "--prefix", keys_of(client).prefix]
    for command in (["tasks", "show", task.id], ["tasks", "show", task.id, "--json"], ["dead", "list", "shown"]):
        told = CliRunner().invoke(command_line, [*command, *where])
        assert told.exit_code == 0, told.output
        assert SECRET not in told.output, command
        assert task.id in told.output


def test_names_come_from_the_environment_the_program_and_the_server_together(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBRUNNER_REDACT", "from_env, (a|b)_env")
    client = connect(redact=["from_program"])
    connect().redact("from_server")
    other = connect(redact=["from_program"])
    other.hide(["from_app"])

    hides = other.redaction()
    names = ["from_env", "a_env", "from_program", "from_server", "from_app", "password"]
    assert [name for name in names if not hides.hides(name)] == []
    assert not hides.hides("from")
    assert client is not other


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_errors_are_kept_and_logged_without_the_values_behind_hidden_names(
    connect: Connect, raw: redis.Redis, executor: str, capfd: pytest.CaptureFixture[str]
) -> None:
    connect().redact("iban")
    client = connect()
    bad = Open(iban=SECRET, nested={"fail": True}).enqueue()
    modules = [__name__] if executor == "processes" else []
    Worker(client=client, queues=["shown"], executor=executor, concurrency=1, modules=modules).run(burst=True)

    told = capfd.readouterr()
    stored = raw.hgetall(keys_of(client).queue("shown").task(bad.id))
    assert b"cannot pay: Open(iban=\xe2\x80\xa2" in stored[b"error"]
    for name, value in stored.items():
        assert SECRET.encode() not in value or name in (b"payload", b"progress"), name
    events = b"".join(value for _, fields in raw.xrange(keys_of(client).events) for value in fields.values())
    assert SECRET not in told.out + told.err
    assert SECRET.encode() not in events
    assert raw.lrange(keys_of(client).queue("shown").deaths, 0, -1) is not None


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_errors_hide_a_name_that_was_added_while_the_worker_ran(
    connect: Connect, raw: redis.Redis, executor: str, wait_until: Callable[..., Any]
) -> None:
    """The worker read the names when it started, and stored, logged and traced the value until it was started anew."""
    client = connect()

    def error_of_a_run() -> bytes:
        task = Open(iban=SECRET, nested={"fail": True}).enqueue()
        stored = keys_of(client).queue("shown").task(task.id)
        return wait_until(lambda: raw.hget(stored, "error"))  # type: ignore[no-any-return]

    modules = [__name__] if executor == "processes" else []
    options: dict[str, Any] = {"executor": executor, "concurrency": 1, "modules": modules, "heartbeat": 0.1}
    worker = Worker(client=client, queues=["shown"], **options)
    worker.start()
    try:
        assert SECRET.encode() in error_of_a_run()
        connect().redact("iban")
        wait_until(lambda: "iban" in names_hidden_in_errors())
        assert b"Open(iban=\xe2\x80\xa2" in error_of_a_run()
        client.redaction()
        raw.srem(keys_of(client).redact, "iban")
        wait_until(lambda: "iban" not in names_hidden_in_errors())
        assert SECRET.encode() in error_of_a_run()
    finally:
        worker.stop(grace=0)


def test_all_parameters_are_hidden_while_it_cannot_be_read_which_are_to_be(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are on one node of a cluster. A worker did not start without it, and no command or page showed a task."""
    client, late = connect(redact=["pin"]), [0.0]
    monkeypatch.setattr(shared_redaction, "monotonic", lambda: time.monotonic() + late[0])
    with monkeypatch.context() as absent:
        take_away(broker_of(client), absent, lambda key: key == keys_of(client).redact)
        hides = client.redaction()
        assert hides.shown({"city": "Bern", "list": [{"n": 1}]}) == {"city": HIDDEN, "list": HIDDEN}
        assert hides.text("no city='Bern', n=1 here") == f"no city={HIDDEN}, n={HIDDEN} here"
        late[0] = 6.0
        assert client.redaction() is hides
        assert "all parameters are hidden" in caplog.text
        assert caplog.text.count("node h:1 of the cluster does not answer") == 1, "once, not with each read"
    late[0] = 12.0
    assert client.redaction().names == ("pin",)


def test_the_asyncio_client_hides_what_was_published_and_publishes(connect: Connect) -> None:
    async def story() -> None:
        async with AsyncClient(connect().settings.url, connect().settings.prefix) as client:
            await client.redact("from_asyncio")
            client.hide(["of_this_client"])
            found = await client.redaction()
            assert {name: found.hides(name) for name in ("from_asyncio", "of_this_client", "city")} == {
                "from_asyncio": True, "of_this_client": True, "city": False
            }  # fmt: skip

    asyncio.run(story())
    assert connect().redaction().hides("from_asyncio")


def test_a_server_that_lost_the_names_of_a_worker_has_them_back_soon(
    connect: Connect, raw: redis.Redis, wait_until: Callable[..., Any]
) -> None:
    worker = Worker(client=connect(redact=["iban"]), queues=["shown"], heartbeat=0.2)
    worker.start()
    try:
        wait_until(lambda: connect().redaction().hides("iban"))
        raw.delete(keys_of(connect()).redact)

        wait_until(lambda: connect().redaction().hides("iban"))
    finally:
        worker.stop(grace=0)
