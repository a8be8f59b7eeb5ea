"""The dashboard without configuration: its link lets in one browser, and is the only way in."""

import pwd
import re
from collections.abc import Callable
from typing import Any

import pytest

from jobrunner.client.client import Client
from jobrunner.errors import InvalidOption
from jobrunner.web.app import create_app
from jobrunner.web.auth import Identity, Role
from jobrunner.web.login import LoginLinks, left_for_owner, running_on
from jobrunner.web.sessions_and_login_throttle import MOST
from tests.unit.web.conftest import Browser

JSON = {"accept": "application/json"}
Browse = Callable[..., Any]


@pytest.fixture
def links() -> LoginLinks:
    return LoginLinks()


def link(links: LoginLinks) -> str:
    return f"/login?token={links.new_token()}"


def test_a_dashboard_of_a_user_without_a_home_leaves_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container with a user that its image does not know; it did not start."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with left_for_owner(8787, "http://127.0.0.1:8787", "owner", "link") as left:
        assert left is None
    with pytest.raises(InvalidOption, match="runs no dashboard with login links on port 8787"):
        running_on(8787)


@pytest.mark.parametrize(
    ("options", "headers"),
    [
        ({}, {}),
        ({"host": "127.0.0.1:8787"}, {}),
        ({"host": "jobs.bank.example"}, {}),
        ({}, {"x-forwarded-for": "127.0.0.1", "x-forwarded-user": "local", "authorization": "Bearer x"}),
        ({}, {"authorization": "Basic bG9jYWw6"}),
        ({}, {"connection": "close"}),
    ],
)
def test_being_on_this_machine_is_no_login(
    browse: Browse, client: Client, links: LoginLinks, options: Any, headers: Any
) -> None:
    client.queue("mail").push({})
    browser = browse(auth=links, **options)

    for path in ("/", "/tasks", "/metrics", "/live", "/audit", "/sessions", "/tasks/x?queue=mail"):
        answer = browser.get(path, headers={**JSON, **headers})
        assert (answer.status_code, "mail" in answer.text) == (401, False), path
    paused = browser.post_form("/queues/mail/pause", headers={**JSON, **headers})
    assert paused.status_code in (401, 403)
    assert not client.queue("mail").is_paused()


def test_a_link_lets_in_one_browser_as_an_admin(browse: Browse, client: Client, links: LoginLinks) -> None:
    client.queue("mail").push({})
    ann, eve = browse(auth=links), browse(auth=links)
    given = link(links)

    sent_away = ann.get("/tasks?queue=mail")
    assert sent_away.headers["location"].startswith("/login?next=")
    entered = ann.get(given)
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    assert ann.get("/", headers=JSON).status_code == 200
    assert ann.post_form("/queues/mail/pause", headers=JSON).status_code == 200
    assert client.queue("mail").is_paused()

    assert eve.get(given).status_code == 403, "a link that was used"
    assert eve.get("/", headers=JSON).status_code == 401
    assert ann.get(given).status_code == 303, "a browser with a session is redirected to the pages"


def test_what_looks_at_a_link_without_a_click_does_not_use_it_up(browse: Browse, links: LoginLinks) -> None:
    browser, given = browse(auth=links), link(links)

    assert browser.head(given).status_code == 200
    assert browser.get(given, headers={"sec-purpose": "prefetch;prerender"}).status_code == 200
    assert browser.get("/", headers=JSON).status_code == 401
    assert browser.get(given).status_code == 303


def test_the_token_of_a_link_may_be_typed_too(browse: Browse, links: LoginLinks) -> None:
    browser = browse(auth=links, name="")

    assert browser.post_form("/login", {"token": "x" * 43}).status_code == 403
    assert browser.post_form("/login", {"token": links.new_token()}).status_code == 303
    assert browser.get("/", headers=JSON).status_code == 200


def test_a_token_never_goes_on_to_other_pages(
    browse: Browse, links: LoginLinks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    browser, given = browse(auth=links), link(links)
    secret = given.partition("token=")[2]

    for answer in (browser.head(given), browser.get(given), browse(auth=links).get(given)):
        assert answer.headers["referrer-policy"] == "strict-origin"
        assert answer.headers["cache-control"] == "no-store"
        assert secret not in answer.text
        assert secret not in str(answer.headers)
    audit = browser.get("/audit", headers=JSON).text
    assert "login" in audit
    assert secret not in audit
    # The client of the tests logs which addresses it asks for; the dashboard does not.
    assert not [one for one in caplog.records if one.name.startswith("jobrunner") and secret in one.getMessage()]


def test_guesses_of_links_are_limited(browse: Browse, links: LoginLinks) -> None:
    eve = browse(auth=links)

    found = [eve.get(f"/login?token=guess-{n}").status_code for n in range(MOST)]

    assert found == [403] * (MOST - 1) + [429]


def test_a_link_of_one_process_is_of_no_use_at_another(browse: Browse, links: LoginLinks) -> None:
    ann, other = browse(auth=links), browse(auth=LoginLinks())
    ann.get(link(links))
    other.cookies.update(ann.cookies)

    assert other.get(link(links)).status_code == 403
    assert other.get("/", headers=JSON).status_code == 401


def test_of_many_unused_links_the_oldest_end(links: LoginLinks) -> None:
    tokens = [links.new_token() for _ in range(25)]

    assert [bool(links.accept(token)) for token in tokens] == [False] * 5 + [True] * 20


def test_only_the_owner_gets_more_links(browse: Browse, links: LoginLinks) -> None:
    browser = browse(auth=links)

    for headers in ({}, {"authorization": "Bearer "}, {"authorization": f"bearer x{links.owner}"}):
        assert browser.post("/login/links", headers={**JSON, **headers}).status_code == 403
    given = browser.post("/login/links", headers={**JSON, "authorization": f"Bearer {links.owner}"})
    assert browser.get(f"/login?token={given.json()['token']}").status_code == 303


def test_a_token_that_lasts_is_not_taken_from_a_link(browse: Browse) -> None:
    from jobrunner.web.credentials import Token

    browser = browse(auth=Token("long enough"))

    assert browser.get("/login?token=long+enough").status_code == 200
    assert browser.get("/", headers=JSON).status_code == 401


def test_an_application_that_names_no_login_is_told_to(client: Client) -> None:
    with pytest.raises(InvalidOption, match="auth is not given"):
        create_app(client)


class AsksLater:
    """A callable whose call is a coroutine."""

    async def __call__(self, _: Any) -> Identity | None:
        return None


async def asks_later(_: Any) -> Identity | None:
    return None


@pytest.mark.parametrize(("auth", "name"), [(asks_later, "asks_later"), (AsksLater(), "AsksLater")])
def test_an_auth_that_would_have_to_be_awaited_is_refused(client: Client, auth: Any, name: str) -> None:
    with pytest.raises(InvalidOption, match=f"auth={name} is a coroutine function: give a plain one"):
        create_app(client, auth=auth)


@pytest.mark.parametrize(
    ("auth", "reason"),
    [
        (lambda _: "ann", "the function auth returned a str: return an Identity"),
        (lambda _: Identity(name="ann", role="admin"), r"Identity\(name=str, role=str\): give a name"),  # type: ignore[arg-type]
        (lambda _: Identity(name=None, role=Role.ADMIN), r"Identity\(name=NoneType, role=Role\)"),  # type: ignore[arg-type]
    ],
)
def test_who_is_no_identity_does_not_come_in_and_the_log_says_why(
    client: Client, auth: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert Browser(create_app(client, auth=auth)).get("/", headers=JSON).status_code == 500
    assert re.search(reason, caplog.text)


def test_below_a_path_links_cookies_and_the_way_on_have_the_path(client: Client, links: LoginLinks) -> None:
    browser = Browser(create_app(client, auth=links, prefix_path="/jobs"), base_url="https://jobs.example")

    assert browser.get("/jobs/").headers["location"].startswith("/jobs/login?")
    entered = browser.get("/jobs" + link(links))

    assert entered.headers["location"] == "/jobs/"
    cookies = entered.headers.get_list("set-cookie")
    assert all(re.match(r"__Secure-jobrunner_\w+=.*; Path=/jobs;.* Secure", one) for one in cookies), cookies
    assert browser.get("/jobs/", headers=JSON).status_code == 200
