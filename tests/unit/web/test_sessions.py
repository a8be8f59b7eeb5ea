"""Sessions are kept on the server, so they end when they are ended."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis

from jobrunner.broker.keys import Keys
from jobrunner.client.client import Client
from jobrunner.errors import InvalidOption
from jobrunner.web import live as live_module
from jobrunner.web import sessions_and_login_throttle as module
from jobrunner.web.auth import Role
from jobrunner.web.credentials import Basic, Secret, Token, hashed
from jobrunner.web.errors import TooBusy
from jobrunner.web.live import LiveUpdates
from jobrunner.web.sessions_and_login_throttle import Sessions

JSON = {"accept": "application/json"}
NAMED = Token(named={"ann": ("secret of ann", Role.ADMIN), "bob": ("secret of bob", Role.OPERATOR),
                     "vic": ("secret of vic", Role.VIEWER)})  # fmt: skip
Browse = Callable[..., Any]


def logged_in(browse: Browse, name: str, **options: Any) -> Any:
    browser = browse(auth=options.pop("auth", NAMED), name="", **options)
    assert browser.post_form("/login", {"token": f"secret of {name}"}).status_code == 303
    browser._name = name
    return browser


def copied(browse: Browse, browser: Any) -> Any:
    """A client with a copy of the browser's cookies."""
    thief = browse(auth=NAMED, name=browser._name)
    thief.cookies.update(browser.cookies)
    return thief


def test_after_logging_out_a_copy_of_the_cookie_is_of_no_use(browse: Browse) -> None:
    ann = logged_in(browse, "ann")
    thief = copied(browse, ann)
    assert thief.get("/", headers=JSON).status_code == 200

    assert ann.post_form("/logout").status_code == 303

    assert thief.get("/", headers=JSON).status_code == 401
    assert thief.get("/live", headers=JSON).status_code == 401
    assert thief.post_form("/queues/mail/pause", headers=JSON).status_code == 401


def test_an_action_after_the_session_has_ended_leads_to_the_login_and_back_to_its_page(
    browse: Browse, client: Client
) -> None:
    client.queue("mail").push(1)
    ann = logged_in(browse, "ann")
    ann.post_form("/logout")

    answer = ann.post_form("/queues/mail/pause", headers={"referer": "http://127.0.0.1/queues/mail?span=day"})

    assert answer.status_code == 401
    assert "Nothing was changed. " in answer.text
    assert 'href="/login?next=%2Fqueues%2Fmail%3Fspan%3Dday"' in answer.text
    assert ann.post_form("/queues/mail/pause", headers={"referer": "http://["}).status_code == 401
    assert not client.queue("mail").is_paused()


@pytest.mark.parametrize(
    ("path", "accepts"),
    [("/metrics", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"),
     ("/live", "text/event-stream")],
)  # fmt: skip
def test_a_program_without_a_login_is_told_so_and_not_led_to_a_form(browse: Browse, path: str, accepts: str) -> None:
    """Prometheus followed to the form, answer 200, and reported a metric that it could not parse."""
    stranger = browse(auth=NAMED)

    answer = stranger.get(path, headers={"accept": accepts})

    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="jobrunner"')
    assert stranger.get(path).headers["location"].startswith("/login?next=")


def test_live_updates_end_with_the_session(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "EVERY_S", 0.01)
    sessions, live = Sessions(client, b"key"), LiveUpdates(client)
    mine, other = (sessions.find(sessions.begin(name, "")) for name in ("ann", "bob"))
    assert mine is not None and other is not None  # noqa: PT018

    async def listen() -> list[bytes]:
        tabs = [live.told(one.id, lambda one=one: sessions.with_id(one.id) is not None) for one in (mine, other)]
        for tab in tabs:
            await anext(tab)
            await anext(tab)
        sessions.end(mine.id)
        rest = [event async for event in tabs[0]]
        await anext(tabs[1])
        await tabs[1].aclose()
        return rest

    assert len(asyncio.run(listen())) <= 3


def test_one_session_is_ended_and_the_others_go_on(browse: Browse) -> None:
    first, second = logged_in(browse, "bob"), logged_in(browse, "bob")
    (mine,) = [one["id"] for one in first.get("/sessions", headers=JSON).json()["sessions"]
               if one["id"] == first.get("/sessions", headers=JSON).json()["mine"]]  # fmt: skip

    assert second.post_form("/sessions/end", {"session": mine}, headers=JSON).json() == {"ended": 1}

    assert first.get("/", headers=JSON).status_code == 401
    assert second.get("/", headers=JSON).status_code == 200


def test_a_person_ends_own_sessions_and_an_admin_those_of_everybody(browse: Browse) -> None:
    ann, bob, vic = (logged_in(browse, name) for name in ("ann", "bob", "vic"))
    seen = {one._name: one.get("/sessions", headers=JSON).json() for one in (ann, bob, vic)}
    assert [one["name"] for one in seen["vic"]["sessions"]] == ["vic"]
    assert len(seen["ann"]["sessions"]) == 3

    stolen = {"session": seen["bob"]["mine"]}
    assert vic.post_form("/sessions/end", stolen, headers=JSON).status_code == 404
    assert vic.post_form("/sessions/end", {"all": "1"}, headers=JSON).json() == {"ended": 1}
    assert [one.get("/", headers=JSON).status_code for one in (ann, bob, vic)] == [200, 200, 401]
    assert bob.post("/sessions/end", data={"all": "1"}, headers=JSON).status_code == 403, "no form's token"
    assert ann.post_form("/sessions/end", {"all": "1"}, headers=JSON).json() == {"ended": 2}
    assert [one.get("/", headers=JSON).status_code for one in (ann, bob, vic)] == [401] * 3


def test_several_dashboards_share_sessions_and_their_ends(browse: Browse) -> None:
    here = logged_in(browse, "ann")
    there = copied(browse, here)

    assert there.get("/", headers=JSON).status_code == 200
    there.post_form("/logout")
    assert here.get("/", headers=JSON).status_code == 401


def test_who_writes_to_the_server_makes_no_session(browse: Browse, raw: redis.Redis, keys: Keys) -> None:
    vic, ann = logged_in(browse, "vic"), logged_in(browse, "ann")
    ids = {one["name"]: one["id"] for one in ann.get("/sessions", headers=JSON).json()["sessions"]}
    record = raw.hget(keys.sessions, ids["ann"])

    raw.hset(keys.sessions, ids["vic"], record)

    assert vic.get("/", headers=JSON).status_code == 401, "a record fits one session"
    assert ann.get("/", headers=JSON).status_code == 200
    for forged in (b"", b"e30=.0", b"\xff" * 40, b"x" * 5000):
        raw.hset(keys.sessions, ids["ann"], forged)
        assert ann.get("/", headers=JSON).status_code == 401


def test_what_the_server_has_is_of_no_use_for_coming_in(browse: Browse, raw: redis.Redis, keys: Keys) -> None:
    ann = logged_in(browse, "ann")
    eve = browse(auth=NAMED)

    for field, record in raw.hgetall(keys.sessions).items():
        for stolen in (field.decode(), record.decode()):
            eve.cookies.set(ann.dashboard.access.sessions.cookie, stolen)
            assert eve.get("/", headers=JSON).status_code == 401


def test_sessions_are_bounded_and_expire(client: Client, raw: redis.Redis, keys: Keys, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "_MOST_SESSIONS", 10)
    sessions = Sessions(client, b"key")
    words = [sessions.begin("ann", "") for _ in range(25)]

    assert raw.hlen(keys.sessions) <= 10
    assert sessions.find(words[-1]) is not None
    assert sessions.find(words[0]) is None
    assert 0 < raw.ttl(keys.sessions) <= module.LASTS_S
    monkeypatch.setattr("jobrunner.web.sessions_and_login_throttle.unix_ms", lambda: 1e15)
    assert sessions.find(words[-1]) is None


def test_names_are_in_the_audit_log(browse: Browse, client: Client) -> None:
    client.queue("mail").push({})
    bob = logged_in(browse, "bob")
    bob.post_form("/queues/mail/pause")
    bob.post_form("/queues/mail/purge")
    bob.post_form("/logout")

    found = browse(auth=NAMED).get("/audit", headers={**JSON, "authorization": "Bearer secret of vic"}).json()
    told = [(one["who"], one["role"], one["action"]) for one in reversed(found["entries"])]

    assert told == [("bob", "operator", "login"), ("bob", "operator", "queue.pause"), ("bob", "operator", "refused"),
                    ("bob", "operator", "logout"), ("vic", "viewer", "login")]  # fmt: skip


def test_another_set_of_tokens_ends_all_sessions(browse: Browse) -> None:
    ann = logged_in(browse, "ann")
    other = browse(auth=Token(named={"ann": ("secret of ann", Role.ADMIN), "bob": ("another secret", Role.OPERATOR)}))
    other.cookies.update(ann.cookies)

    assert other.get("/", headers=JSON).status_code == 401


@pytest.mark.parametrize("make", [lambda secret: Token(secret), lambda secret: Basic({"ann": (secret, Role.ADMIN)})])
def test_passwords_and_tokens_may_be_configured_as_hashes(browse: Browse, make: Any) -> None:
    import base64

    known = hashed("correct horse")
    auth = make(known)
    browser = browse(auth=auth)

    def offered(secret: str) -> dict[str, str]:
        if isinstance(auth, Token):
            return {**JSON, "authorization": f"Bearer {secret}"}
        return {**JSON, "authorization": "Basic " + base64.b64encode(f"ann:{secret}".encode()).decode()}

    assert known not in repr(auth)
    for secret, status in (("wrong", 401), ("correct horse", 200), ("correct horse", 200), (known, 401)):
        assert browser.get("/", headers=offered(secret)).status_code == status


@pytest.mark.parametrize(
    "wrong", ["scrypt$", "scrypt$3$8$1$AAAA$AAAA", "scrypt$16384$8$1$AAAA$AA", "scrypt$1073741824$8$1$AAAA$" + "A" * 43,
              "scrypt$16384$8$0$AAAA$" + "A" * 43, "scrypt$-2$8$1$AAAA$" + "A" * 43, "scrypt$16384$8$1$?$?"]
)  # fmt: skip
def test_a_hash_that_cannot_be_checked_is_refused_and_not_shown(wrong: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        Secret(wrong)

    assert "--hash" in str(refused.value)
    assert "AAAA" not in str(refused.value)


def test_hashes_have_salts_and_two_of_one_password_differ() -> None:
    first, second = hashed("correct horse"), hashed("correct horse")

    assert first != second
    assert all(Secret(one).fits("correct horse") and not Secret(one).fits("correct horsE") for one in (first, second))


def test_one_viewer_cannot_take_all_streams(client: Client) -> None:
    live = LiveUpdates(client)

    async def open_many() -> None:
        for _ in range(50):
            live.answer("name vic")
        with pytest.raises(TooBusy):
            live.answer("name vic")
        live.answer("name ann")

    asyncio.run(open_many())
