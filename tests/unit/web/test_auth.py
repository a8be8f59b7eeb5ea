"""Authentication, and the role of each identity."""

import base64
from collections.abc import Callable
from typing import Any

import pytest

from jobrunner.errors import InvalidOption
from jobrunner.web.auth import Identity, Role, TrustedProxy
from jobrunner.web.credentials import Basic, Token

ANN = {"ann": ("correct horse", Role.OPERATOR)}


JSON = {"accept": "application/json"}


def seen(browser: Any, headers: Any = ()) -> int:
    """The status of a page's values, as a program asks for them."""
    return int(browser.get("/", headers=[*JSON.items(), *dict(headers).items()]).status_code)


def basic(name: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def test_without_auth_a_browser_on_this_machine_is_let_in(browse: Callable[..., Any]) -> None:
    assert seen(browse()) == 200


@pytest.mark.parametrize(
    ("options", "headers"),
    [
        ({"peer": "10.0.0.9"}, {}),
        ({"host": "evil.example"}, {}),
        ({"host": "127.0.0.1.evil.example"}, {}),
        ({}, {"x-forwarded-for": "10.0.0.9"}),
        ({}, {"forwarded": "for=10.0.0.9"}),
    ],
    ids=["another machine", "DNS rebinding", "a name that begins like loopback", "a proxy", "another proxy"],
)
def test_without_auth_nobody_else_is_let_in(browse: Callable[..., Any], options: Any, headers: Any) -> None:
    answer = browse(headers=headers, **options).get("/")

    assert answer.status_code == 401
    assert "waiting" not in answer.text


def test_a_bearer_token_lets_a_program_in(browse: Callable[..., Any]) -> None:
    browser = browse(auth=Token("long enough"), peer="10.0.0.9", host="jobs.example")

    assert seen(browser, {"authorization": "Bearer long enough"}) == 200
    refused = browser.get("/", headers={"authorization": "Bearer wrong", "accept": "application/json"})
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Bearer realm="jobrunner"')


def test_a_person_types_the_token_once_and_goes_on_to_where_they_wanted(browse: Callable[..., Any]) -> None:
    browser = browse(auth=Token("long enough"), name="", host="jobs.example")

    sent_away = browser.get("/?limit=5")
    entered = browser.post_form("/login", {"token": "long enough", "next": "/?limit=5"})

    assert sent_away.headers["location"] == "/login?next=%2F%3Flimit%3D5"
    assert (entered.status_code, entered.headers["location"]) == (303, "/?limit=5")
    assert seen(browser) == 200


@pytest.mark.parametrize(
    "onward", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"]
)
def test_a_login_never_leads_to_another_site(browse: Callable[..., Any], onward: str) -> None:
    browser = browse(auth=Token("long enough"), name="")

    entered = browser.post_form("/login", {"token": "long enough", "next": onward})

    assert entered.headers["location"] == "/"


def test_a_wrong_token_gets_no_session(browse: Callable[..., Any]) -> None:
    browser = browse(auth=Token("long enough"), name="")

    assert browser.post_form("/login", {"token": "wrong one"}).status_code == 403
    assert browser.get("/").status_code == 303


def test_a_session_ends_with_its_token_and_with_logging_out(browse: Callable[..., Any]) -> None:
    browser, other = browse(auth=Token("long enough"), name=""), browse(auth=Token("another one"))
    browser.post_form("/login", {"token": "long enough"})
    other.cookies.update(browser.cookies)
    assert other.get("/").status_code == 303

    browser._name = "token"
    assert browser.post_form("/logout").status_code == 303
    assert browser.get("/").status_code == 303


def test_a_session_cookie_that_was_changed_is_none(browse: Callable[..., Any]) -> None:
    browser = browse(auth=Token("long enough"), name="")
    browser.post_form("/login", {"token": "long enough"})
    cookie = browser.dashboard.access.sessions.cookie
    value = browser.cookies[cookie].strip('"')
    browser.cookies.clear()
    browser.cookies.set(cookie, ("A" if value[3] != "A" else "B").join((value[:3], value[4:])))

    assert browser.get("/").status_code == 303


def test_users_have_passwords(browse: Callable[..., Any]) -> None:
    browser = browse(auth=Basic(ANN))

    assert seen(browser, basic("ann", "correct horse")) == 200
    for wrong in (basic("ann", "wrong"), basic("bob", "correct horse"), {"authorization": "Basic ?"}, {}):
        refused = browser.get("/", headers=wrong)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Basic")


def test_only_a_trusted_proxy_says_who_asks(browse: Callable[..., Any]) -> None:
    auth = TrustedProxy("X-Forwarded-User", ["10.0.0.0/8"], roles={"ann": Role.ADMIN})
    ann = {"x-forwarded-user": "ann", "x-forwarded-for": "1.2.3.4"}

    assert seen(browse(auth=auth, peer="10.1.2.3"), ann) == 200
    assert seen(browse(auth=auth, peer="11.1.2.3"), ann) == 401
    twice = [("x-forwarded-user", "bob"), ("x-forwarded-user", "ann")]
    assert browse(auth=auth, peer="10.1.2.3").get("/", headers=twice).status_code == 401
    assert browse(auth=auth, peer="10.1.2.3").get("/").status_code == 401


def test_whom_the_proxy_names_without_a_role_has_the_default() -> None:
    class Request:
        client = type("Peer", (), {"host": "::ffff:10.0.0.1"})
        headers = type("Headers", (), {"getlist": staticmethod(lambda _: ["bob"])})

    auth = TrustedProxy("X-Forwarded-User", ["10.0.0.1"])
    assert auth.identify(Request()) == Identity(name="bob", role=Role.VIEWER)  # type: ignore[arg-type]
    strict = TrustedProxy("X-Forwarded-User", ["10.0.0.1"], default=None)
    assert strict.identify(Request()) is None  # type: ignore[arg-type]


def test_a_function_of_the_application_says_who_asks(browse: Callable[..., Any]) -> None:
    def who(request: Any) -> Identity | None:
        return Identity(name="ann", role=Role.VIEWER) if "x-session" in request.headers else None

    browser = browse(auth=who)

    assert seen(browser, {"x-session": "1"}) == 200
    assert seen(browser) == 401


def test_auth_that_lets_everybody_in_is_refused() -> None:
    for make in (lambda: Token("short"), lambda: Basic({}), lambda: TrustedProxy("X-User", [])):
        with pytest.raises(InvalidOption):
            make()


def test_no_secret_is_in_a_repr() -> None:
    assert "long enough" not in repr(Token("long enough"))
    assert "horse" not in repr(Basic(ANN))


def test_metrics_are_for_those_who_are_known_and_health_is_for_all(browse: Callable[..., Any]) -> None:
    browser = browse(auth=Token("long enough"), peer="10.0.0.9")

    assert browser.get("/metrics", headers=JSON).status_code == 401
    scraped = browser.get("/metrics", headers={"authorization": "Bearer long enough"})
    assert (scraped.status_code, "jobrunner_workers" in scraped.text) == (200, True)
    assert (browser.get("/health").status_code, browser.get("/health").text) == (200, "ok\n")
