"""Edges of what protects the dashboard: origins, cookies, keys of forms, large requests, notes of refusals."""

import hashlib
import hmac
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis

from jobrunner.broker.keys import Keys
from jobrunner.client.client import Client
from jobrunner.inspector import audit as notes_module
from jobrunner.web.access import BROWSER_COOKIE
from jobrunner.web.addresses import site_of
from jobrunner.web.app import create_app
from jobrunner.web.auth import Identity, Loopback, Role, TrustedProxy
from jobrunner.web.credentials import Basic, Token
from jobrunner.web.sessions_and_login_throttle import MOST
from tests.unit.web.conftest import Browser

JSON = {"accept": "application/json"}
TOKEN = Token("long enough")
Browse = Callable[..., Any]


def test_all_loopback_addresses_are_one_site(browse: Browse) -> None:
    assert {site_of(one) for one in ("127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1")} == {"loopback"}
    wrong = {**JSON, "authorization": "Bearer wrong one"}

    found = [browse(auth=TOKEN, peer=f"127.0.0.{n + 1}").get("/", headers=wrong).status_code for n in range(MOST + 2)]

    assert found == [401] * (MOST - 1) + [429] * 3


@pytest.mark.parametrize("path", ["/", "/login", "/health", "/tasks", "/no-such-page", "/metrics"])
@pytest.mark.parametrize(
    "query", ["&".join(f"a{n}=1" for n in range(2500)), "a=%ff%00", "&" * 3000, "a=" + "9" * 60_000]
)
def test_a_large_or_odd_query_is_no_500_and_has_the_headers(browse: Browse, path: str, query: str) -> None:
    for browser in (browse(auth=TOKEN), browse()):
        answer = browser.get(f"{path}?{query}", headers=JSON)
        assert answer.status_code < 500
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("count", [101, 3000])
def test_many_headers_are_refused_with_the_headers(browse: Browse, count: int) -> None:
    answer = browse(auth=TOKEN).get("/login", headers={f"x-{n}": "1" for n in range(count)})

    assert answer.status_code == 431
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "make",
    [
        Loopback,
        lambda: lambda _: Identity(name="local", role=Role.ADMIN),
        lambda: TrustedProxy("X-User", ["127.0.0.1"], roles={"local": Role.ADMIN}),
    ],
)
def test_without_a_secret_nobody_can_make_the_token_of_a_form(client: Client, make: Any) -> None:
    browser = Browser(create_app(client, auth=make()), headers={"x-user": "local"})
    client.queue("mail").push(1)
    planted = "A" * 43
    browser.cookies.set(BROWSER_COOKIE, planted)
    computed = hmac.new(planted.encode(), b"form\0local", hashlib.sha256).hexdigest()

    headers = {**JSON, "sec-fetch-site": "same-origin"}
    refused = browser.post("/queues/mail/pause", data={"csrf": computed}, headers=headers)

    assert refused.status_code == 403
    assert not client.queue("mail").is_paused()
    assert browser.post_form("/queues/mail/pause", headers=JSON).status_code == 200


def test_with_a_secret_several_processes_take_each_others_forms(client: Client) -> None:
    client.queue("mail").push(1)
    apps = [create_app(client, auth=Loopback(), secret="shared by all of them") for _ in range(2)]
    first, second = (Browser(app) for app in apps)
    token = first.token(first.dashboard)
    second.cookies.update(first.cookies)

    headers = {**JSON, "sec-fetch-site": "same-origin"}
    assert second.post("/queues/mail/pause", data={"csrf": token}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("served", "origin", "status"),
    [
        ("http", "http://jobs.example", 200),
        ("http", "https://jobs.example", 403),
        ("https", "https://jobs.example", 200),
        ("https", "http://jobs.example", 403),
        ("https", "https://jobs.example.evil.test", 403),
        ("https", "https://jobs.example:8443", 403),
        ("https", "null", 403),
    ],
)
def test_the_origin_is_scheme_host_and_port(client: Client, served: str, origin: str, status: int) -> None:
    client.queue("mail").push(1)
    who = lambda _: Identity(name="local", role=Role.ADMIN)  # noqa: E731
    browser = Browser(create_app(client, auth=who), base_url=f"{served}://jobs.example")
    page = browser.get("/queues/mail").text
    token = re.search(r'name="csrf" value="(\w+)"', page)
    assert token is not None

    answer = browser.post("/queues/mail/pause", data={"csrf": token[1]}, headers={**JSON, "origin": origin})

    assert answer.status_code == status


@pytest.mark.parametrize("secure", ["served by https", "a proxy says so"])
def test_cookies_over_https_are_of_this_host_alone(client: Client, secure: str) -> None:
    scheme = "https" if secure == "served by https" else "http"
    headers = {} if scheme == "https" else {"x-forwarded-proto": "https"}
    browser = Browser(create_app(client, auth=TOKEN), name="", base_url=f"{scheme}://jobs.example", headers=headers)
    page = browser.get("/login")
    token = re.search(r'name="csrf" value="(\w+)"', page.text)
    given = dict(one.split(";")[0].partition("=")[::2] for one in page.headers.get_list("set-cookie"))
    assert token is not None
    assert list(given) == [f"__Host-{BROWSER_COOKIE}"]
    cookies = "; ".join(f"{name}={value}" for name, value in given.items())

    entered = browser.post("/login", data={"csrf": token[1], "token": "long enough"},
                           headers={"sec-fetch-site": "same-origin", "cookie": cookies})  # fmt: skip

    assert entered.status_code == 303
    for cookie in entered.headers.get_list("set-cookie"):
        assert re.match(r"__Host-jobrunner_\w+=[^;]+;.*HttpOnly;.*Path=/; SameSite=lax; Secure$", cookie), cookie
    # A cookie of the same name without the prefix, which a neighbouring subdomain can set, is ignored.
    session = next(one for one in entered.headers.get_list("set-cookie") if "session" in one).split(";")[0]
    assert browser.get("/", headers={**JSON, "cookie": session}).status_code == 200
    browser.cookies.clear()
    planted = session.removeprefix("__Host-")
    assert browser.get("/", headers={**JSON, "cookie": planted}).status_code == 401


def noted(raw: redis.Redis, keys: Keys) -> list[tuple[str, str]]:
    return [(fields[b"action"].decode(), fields[b"outcome"].decode()) for _, fields in raw.xrange(keys.audit)]


def test_refusals_and_failed_logins_cannot_flood_the_audit_log(
    browse: Browse, raw: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "jobrunner.audit")
    vic = browse(auth=lambda _: Identity(name="vic", role=Role.VIEWER), name="vic")
    vic.get("/")

    for _ in range(60):
        assert vic.post_form("/queues/mail/pause", headers=JSON).status_code == 403

    actions = noted(raw, keys)
    assert [action for action, _ in actions] == ["login"] + ["refused"] * 5
    assert actions[-1][1].endswith("(more of them are counted for 15 minutes)")
    told = [one.message for one in caplog.records if one.name == "jobrunner.audit"]
    assert len(told) == 6
    assert told[0] == "login by vic (viewer) from 127.0.0.1: let in without a session"
    now = notes_module.monotonic()
    monkeypatch.setattr(notes_module, "monotonic", lambda: now + 1000)
    vic.post_form("/queues/mail/pause", headers=JSON)
    assert "(55 more since the last entry)" in noted(raw, keys)[-1][1]


def test_strangers_from_everywhere_do_not_push_out_what_people_did(
    client: Client, raw: redis.Redis, keys: Keys
) -> None:
    app = create_app(client, auth=Basic({"ann": ("correct horse", Role.ADMIN)}))

    for n in range(60):
        browser = Browser(app, client=(f"10.0.{n}.1", 50000))
        for _ in range(3):
            browser.get("/", headers={**JSON, "authorization": "Basic YW5uOndyb25n"})

    assert len(noted(raw, keys)) <= 25


def test_a_first_visit_is_no_news(browse: Browse, raw: redis.Redis, keys: Keys) -> None:
    browser = browse(auth=TOKEN)
    for path in ("/", "/tasks", "/live", "/login"):
        browser.get(path)

    assert noted(raw, keys) == []
