"""No secret of a URL is anywhere: reprs, errors and their causes, logs, commands, pages; strangers see no address."""

import asyncio
import re
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from jobrunner import AsyncClient, Client, Worker
from jobrunner.broker.connect import Endpoint
from jobrunner.cli import options
from jobrunner.cli.error_boundary import guarded
from jobrunner.cli.main import jobrunner as command_line
from jobrunner.client.client import endpoint_of, keys_of
from jobrunner.formatting import safe_url
from jobrunner.web.app import create_app
from jobrunner.web.auth import Role
from jobrunner.web.credentials import Basic, Token
from tests.security.conftest import Connect
from tests.support.server import Server

SECRET = "hunter2"
AWAY = [
    "redis://me:{0}@127.0.0.1:1/0",
    "redis://{0}@127.0.0.1:1/0",
    "redis://127.0.0.1:1/0?username=worker&password={0}",
    "redis://127.0.0.1:1/0?client_name=token-{0}&password={0}",
    "rediss://127.0.0.1:1?ssl_password={0}",
    "unix:///nowhere/s?db=0&password={0}",
    "unix://me:{0}@/nowhere/s",
    "redis+sentinel://me:{0}@127.0.0.1:1,127.0.0.1:2/m?sentinel_username={0}&sentinel_password={0}&password={0}",
    "redis+cluster://me:{0}@127.0.0.1:1",
]
WRONG = [
    "reds://me:{0}@host/0",
    "redis://me:{0}@host:{0}/0",
    "redis://me:a/{0}@host:6379/0",
    "redis://me:a?{0}@host:6379/0",
    "redis://me:a#{0}@host:6379/0",
    "redis://me:a@{0}@host:6379/0",
    "redis://h/0?socket_timeout={0}",
    "redis+sentinel://me:{0},host/m",
    "redis+cluster://me@me:{0}@host",
    "embedded://me:{0}@folder",
    "{0}",
    "redis://[{0}",
]


def error_text(call: Callable[[], object]) -> str:
    """The text of an error with all causes, and its reprs; '' when there was none."""
    try:
        call()
    except Exception as error:
        chain: list[str] = ["".join(traceback.format_exception(error, chain=True))]
        link: BaseException | None = error
        while link is not None:
            chain += [str(link), repr(link)]
            link = link.__cause__ or link.__context__
        return "\n".join(re.sub(r"^ .*$", "", text, flags=re.MULTILINE) for text in chain)
    return ""


@pytest.mark.parametrize("url", AWAY)
def test_nothing_of_a_server_that_is_away_tells_the_secret(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "_RETRY_TIMEOUT_S", 0.0)
    with Client(url.format(SECRET), retry_timeout=0) as client:
        assert SECRET not in repr(client) + repr(client.settings) + str(endpoint_of(client)) + repr(endpoint_of(client))
        told = error_text(lambda: client.queue("mail").push("x"))
        assert told
        assert SECRET not in told
    for words in (["status"], ["tasks", "list", "mail"], ["doctor"], ["queues", "list", "--json"], ["top", "--once"]):
        answer = CliRunner().invoke(command_line, [*words, "--url", url.format(SECRET)])
        assert SECRET not in answer.output + repr(answer.exception), words


@pytest.mark.parametrize("url", WRONG)
def test_nothing_of_a_wrong_url_tells_the_secret(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    told = error_text(lambda: Client(url.format(SECRET), retry_timeout=0).queue("mail").push("x"))
    assert told
    assert SECRET not in told
    assert guarded(command_line, ["status", "--url", url.format(SECRET), "--debug"]) != 0
    said = capfd.readouterr()
    assert SECRET not in re.sub(r"^ .*$", "", said.out + said.err, flags=re.MULTILINE)


def test_a_server_without_auth_that_repeats_the_password_in_its_answer_does_not_tell_it(
    start_server: Callable[..., Server],
) -> None:
    own = start_server(rename_command="AUTH SESAME").url.replace("unix://", f"unix://me:{SECRET}@")

    async def push(url: str) -> None:
        async with AsyncClient(url) as client:
            await client.queue("mail").push("x")

    def run_async(coroutine: Callable[..., Any], *given: Any) -> None:
        asyncio.run(coroutine(*given))

    for url in (own, f"{own}?client_name=me"):
        for told in (
            error_text(partial(Client(url).queue("mail").push, "x")),
            error_text(partial(run_async, push, url)),
        ):
            assert "unknown command 'AUTH'" in told
            assert SECRET not in told


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://me:pw@host:6379/3", "redis://host:6379/3"),
        ("rediss://host", "rediss://host"),
        ("unix:///run/s?db=2&password=x", "unix:///run/s?db=2"),
        ("redis://h/0?db=x", "redis://h/0"),
        ("redis+sentinel://u:p@a:1,b:2/m/3?sentinel_password=x", "redis+sentinel://a:1,b:2/m/3"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("embedded:///a/b", "embedded:///a/b"),
    ],
)
def test_host_port_path_and_database_are_shown(url: str, shown: str) -> None:
    assert safe_url(url) == shown


def viewer(client: Client, *, with_login: bool = True) -> TestClient:
    auth: Any = Basic({"vic": ("vicpw", Role.VIEWER)})
    browser = TestClient(create_app(client, auth=auth), base_url="http://127.0.0.1", client=("127.0.0.1", 50000))
    if with_login:
        browser.auth = ("vic", "vicpw")
    return browser


@pytest.mark.parametrize("headers", [{"accept": "text/html"}, {"accept": "application/json"}], ids=["page", "json"])
@pytest.mark.parametrize("url", AWAY)
def test_strangers_learn_nothing_of_a_server_that_is_away(url: str, headers: dict[str, str]) -> None:
    with Client(url.format(SECRET), "my-prefix", retry_timeout=0) as client:
        strangers = (viewer(client, with_login=False), _with_token(client))
        for path in ("/", "/tasks", "/health", "/metrics", "/live", "/login", "/no-such-page", "/tasks/x-y"):
            for browser in strangers:
                answer = browser.get(path, headers=headers | {"authorization": "Bearer wrong"})
                for word in (SECRET, "127.0.0.1:1", "nowhere", "my-prefix", "Error 111", "refused"):
                    assert word not in answer.text, (path, word)
        told = viewer(client).get("/", headers=headers).text
        assert SECRET not in told


def test_strangers_learn_nothing_of_a_server_that_is_there(server: Server, connect: Connect) -> None:
    client = connect()
    client.queue("secret-line").push("x", id="secret-task", max_attempts=1)
    Worker(client=client, queues=["secret-line"]).run(burst=True)
    info = server.connect().info("server")
    words = {str(server.socket), keys_of(client).prefix + ":", "secret-line", "secret-task", info["redis_version"],
             info.get("valkey_version", info["redis_version"]), info["run_id"]}  # fmt: skip
    for browser in (viewer(client, with_login=False), _with_token(client)):
        for route in browser.app.routes:  # type: ignore[attr-defined]
            path = re.sub(r"\{[^}]*\}", "secret-line", route.path)
            answer = browser.get(path, headers={"accept": "application/json"})
            text = answer.text.replace(path, "") + str(answer.headers).replace(path, "")
            assert not [word for word in words if word in text], (path, text)


def _with_token(client: Client) -> TestClient:
    app = create_app(client, auth=Token("t" * 32))
    return TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 50000), follow_redirects=False)


def test_no_page_line_of_the_log_or_answer_has_the_password_of_a_server_that_is_there(
    server: Server, connect: Connect, capfd: pytest.CaptureFixture[str]
) -> None:
    sign = "&" if "?" in server.url else "?"
    url = f"{server.url}{sign}username=default&password={SECRET}"
    plain = connect()
    with Client(url, keys_of(plain).prefix, retry_timeout=0) as client:
        said = error_text(client.queues)  # a server without passwords may refuse one
        if not said:
            Worker(client=client, queues=["mail"]).run(burst=True)
        texts = [viewer(client).get(path).text for path in ("/", "/queues", "/workers", "/health")]
        told = capfd.readouterr()
        assert not [text for text in [*texts, told.out, told.err, said] if SECRET in text]


def test_the_endpoint_is_shown_alike_whatever_else_the_url_has() -> None:
    assert str(Endpoint("redis://h:1/2?password=x&client_name=y")) == str(Endpoint("redis://u:p@h:1/2")) == "redis://h:1/2"
