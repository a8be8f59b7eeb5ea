"""Guesses of passwords are throttled, and guesses of one client do not lock out others."""

import base64
from collections.abc import Callable
from typing import Any

import pytest
import redis

from jobrunner.broker.keys import Keys
from jobrunner.client.client import Client
from jobrunner.errors import InvalidOption
from jobrunner.web.addresses import address_of, networks, site_of
from jobrunner.web.auth import Role
from jobrunner.web.credentials import Basic, Token
from jobrunner.web.sessions_and_login_throttle import MOST, MOST_OF_ADDRESS, WAIT_S
from jobrunner.web.settings import settle
from tests.support.waiting import wait_for

JSON = {"accept": "application/json"}
USERS = Basic({"ann": ("correct horse", Role.OPERATOR), "bob": ("battery staple", Role.VIEWER)})
TOKEN = Token("long enough")
Browse = Callable[..., Any]


def basic(name: str, password: str) -> dict[str, str]:
    return {**JSON, "authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def bearer(token: str) -> dict[str, str]:
    return {**JSON, "authorization": f"Bearer {token}"}


def log_in(browser: Any, token: str) -> Any:
    browser._name = ""
    return browser.post_form("/login", {"token": token})


def statuses(browser: Any, headers: Any, times: int) -> list[int]:
    return [browser.get("/", headers=headers).status_code for _ in range(times)]


def pass_the_wait(raw: redis.Redis, keys: Keys) -> None:
    """Has the server count as if the wait was over."""
    counts = raw.keys(f"{keys.prefix}/{{login_attempts}}:*")
    assert counts
    assert all(0 < raw.ttl(key) <= max(WAIT_S, 3600) for key in counts), "each ends by itself"
    for key in counts:
        raw.pexpire(key, 1)
    wait_for(lambda: not raw.exists(*counts))


@pytest.mark.parametrize("offer", [lambda secret: basic("ann", secret), bearer], ids=["password", "bearer token"])
def test_after_too_many_wrong_secrets_the_right_one_has_to_wait_too(
    browse: Browse, raw: redis.Redis, keys: Keys, offer: Any
) -> None:
    auth, right = (USERS, "correct horse") if offer is not bearer else (TOKEN, "long enough")
    browser = browse(auth=auth)

    assert statuses(browser, offer("wrong"), MOST) == [401] * (MOST - 1) + [429]
    refused = browser.get("/", headers=offer(right))
    assert refused.status_code == 429
    assert WAIT_S - 60 < int(refused.headers["retry-after"]) <= WAIT_S
    assert "www-authenticate" not in refused.headers
    assert refused.json()["error"] == "too many wrong passwords or tokens: wait 15 minutes, then try again"

    pass_the_wait(raw, keys)
    assert statuses(browser, offer(right), 1) == [200]


def test_a_person_at_the_login_page_is_told_how_long_to_wait(browse: Browse, raw: redis.Redis, keys: Keys) -> None:
    browser = browse(auth=TOKEN)

    assert [log_in(browser, f"wrong {n}").status_code for n in range(MOST)] == [403] * (MOST - 1) + [429]
    refused = log_in(browser, "long enough")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, str(WAIT_S))
    assert "wait 15 minutes, then try again" in refused.text
    assert 'name="token"' in refused.text

    pass_the_wait(raw, keys)
    assert log_in(browser, "long enough").status_code == 303


def test_what_a_page_says_to_a_browser_is_readable(browse: Browse) -> None:
    browser = browse(auth=USERS)
    statuses(browser, basic("ann", "wrong"), MOST)

    refused = browser.get("/", headers={**basic("ann", "wrong"), "accept": "text/html"})

    assert refused.status_code == 429
    assert "Too many tries" in refused.text
    assert "content-security-policy" in refused.headers


def test_dashboards_of_one_prefix_count_together(browse: Browse) -> None:
    one, other = browse(auth=USERS), browse(auth=USERS)

    statuses(one, basic("ann", "wrong"), MOST - 1)

    assert statuses(other, basic("ann", "wrong"), 2) == [429, 429]


def test_a_right_secret_costs_no_count_and_wrong_ones_are_not_forgiven_for_it(
    browse: Browse, raw: redis.Redis, keys: Keys
) -> None:
    browser = browse(auth=USERS)
    statuses(browser, basic("ann", "correct horse"), 3)
    assert raw.keys(f"{keys.prefix}/{{login_attempts}}:*") == []
    browser.cookies.clear()

    statuses(browser, basic("ann", "wrong"), MOST - 1)
    stranger = browse(auth=USERS)
    assert statuses(stranger, basic("ann", "correct horse"), 1) == [200]
    stranger.cookies.clear()
    assert statuses(stranger, basic("ann", "wrong"), 1) == [429]


def test_a_stranger_locks_out_only_the_address_of_the_stranger(browse: Browse) -> None:
    stranger, ann = browse(auth=USERS, peer="10.0.0.9"), browse(auth=USERS, peer="10.0.0.7")

    statuses(stranger, basic("ann", "wrong"), 3 * MOST)

    assert statuses(ann, basic("ann", "correct horse"), 1) == [200]
    assert statuses(stranger, basic("bob", "battery staple"), 1) == [200], "another name at the same address"


def test_a_browser_that_logged_in_before_is_not_locked_out_at_an_address_it_shares(browse: Browse) -> None:
    ann, stranger = browse(auth=USERS), browse(auth=USERS)
    statuses(ann, basic("ann", "correct horse"), 1)

    statuses(stranger, basic("ann", "wrong"), 2 * MOST)

    assert statuses(stranger, basic("ann", "correct horse"), 1) == [429]
    assert statuses(ann, basic("ann", "correct horse"), 1) == [200]
    assert statuses(ann, basic("ann", "wrong"), MOST)[-1] == 429, "it has a limit of its own"


def test_a_word_to_be_known_by_is_for_one_name_and_cannot_be_made(browse: Browse) -> None:
    bob, forger = browse(auth=USERS), browse(auth=USERS)
    statuses(bob, basic("bob", "battery staple"), 1)
    (cookie,) = [name for name in bob.cookies if name.startswith("jobrunner_known")]
    forger.cookies.set(cookie, bob.cookies[cookie].strip('"')[:-1] + "0")
    statuses(forger, basic("ann", "wrong"), MOST)

    assert statuses(bob, basic("ann", "correct horse"), 1) == [429]
    assert statuses(forger, basic("ann", "correct horse"), 1) == [429]


def test_who_is_logged_in_by_token_stays_so(browse: Browse) -> None:
    ann, stranger = browse(auth=TOKEN), browse(auth=TOKEN)
    log_in(ann, "long enough")

    for _ in range(MOST):
        log_in(stranger, "wrong one")

    assert log_in(stranger, "long enough").status_code == 429
    assert ann.get("/", headers=JSON).status_code == 200
    ann.cookies.delete(ann.dashboard.access.sessions.cookie)
    assert log_in(ann, "long enough").status_code == 303


def test_many_names_from_one_address_are_limited_together(browse: Browse) -> None:
    browser = browse(auth=USERS)

    found = [browser.get("/", headers=basic(f"user{n}", "12345678")).status_code for n in range(MOST_OF_ADDRESS + 1)]

    assert found == [401] * (MOST_OF_ADDRESS - 1) + [429] * 2
    assert statuses(browser, basic("ann", "correct horse"), 1) == [429]


def test_an_address_that_a_proxy_names_counts_only_if_the_proxy_is_trusted(browse: Browse) -> None:
    def at(address: str, secret: str) -> dict[str, str]:
        return {**basic("ann", secret), "x-forwarded-for": f"6.6.6.6, {address}"}

    trusting = browse(auth=USERS, peer="10.0.0.1", trusted_proxies=["10.0.0.0/8"])
    statuses(trusting, at("1.2.3.4", "wrong"), MOST)
    assert statuses(trusting, at("1.2.3.4", "correct horse"), 1) == [429]
    assert statuses(trusting, at("1.2.3.5", "correct horse"), 1) == [200]

    direct = browse(auth=USERS, peer="11.0.0.1", trusted_proxies=["10.0.0.0/8"])
    found = [direct.get("/", headers=at(f"9.9.9.{n}", "wrong")).status_code for n in range(MOST)]
    assert found[-1] == 429, "a header that every client can write changes nothing"


@pytest.mark.parametrize(
    ("peer", "said", "address"),
    [
        ("1.1.1.1", "2.2.2.2", "1.1.1.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "2.2.2.2", "2.2.2.2"),
        ("10.0.0.1", "3.3.3.3, 2.2.2.2, 10.0.0.2", "2.2.2.2"),
        ("10.0.0.1", "2.2.2.2, <script>", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.1"),
        ("::ffff:10.0.0.1", "2001:db8::7", "2001:db8::7"),
        ("testclient", "2.2.2.2", "testclient"),
        ("10.0.0.1", "2.2.2.2:41234", "2.2.2.2"),
        ("10.0.0.1", "2.2.2.2, 10.0.0.2:80", "2.2.2.2"),
        ("10.0.0.1", "[2001:db8::7]:41234", "2001:db8::7"),
        ("10.0.0.1", "[2001:db8::7]", "2001:db8::7"),
        ("10.0.0.1", "[<script>]:80", "10.0.0.1"),
    ],
)
def test_the_address_is_the_last_one_that_can_be_believed(peer: str, said: str, address: str) -> None:
    class Request:
        client = type("Peer", (), {"host": peer})
        headers = type("Headers", (), {"getlist": staticmethod(lambda _: [said] if said else [])})

    assert address_of(Request(), networks(["10.0.0.0/8"])) == address  # type: ignore[arg-type]


def test_who_has_one_address_of_a_network_of_ipv6_has_them_all() -> None:
    assert site_of("2001:db8:1:2::1") == site_of("2001:db8:1:2:ffff::9") != site_of("2001:db8:1:3::1")
    assert site_of("::ffff:1.2.3.4") == site_of("1.2.3.4") == "1.2.3.4"


def test_a_lockout_is_in_the_audit_log_once_without_what_may_be_a_password(browse: Browse) -> None:
    browser = browse(auth=USERS)
    statuses(browser, basic("ann", "wrong"), MOST + 3)
    statuses(browser, basic("hunter2", "typed into the wrong field"), MOST + 3)

    audit = browse(auth=TOKEN, peer="10.0.0.7").get("/audit", headers=bearer("long enough"))

    found = [(one["action"], one["who"], one["address"]) for one in audit.json()["entries"]]
    locked = [one for one in found if one[0] == "login.locked"]
    assert locked == [("login.locked", "unknown", "127.0.0.1"), ("login.locked", "ann", "127.0.0.1")]
    assert sum("15 minutes" in one["outcome"] for one in audit.json()["entries"]) >= 2
    assert "hunter2" not in audit.text


def _locked(raw: redis.Redis, keys: Keys) -> int:
    return sum(fields[b"action"] == b"login.locked" for _, fields in raw.xrange(keys.audit))


def test_lockouts_from_everywhere_do_not_push_out_what_people_did(browse: Browse, raw: redis.Redis, keys: Keys) -> None:
    statuses(browse(auth=USERS, peer="1.1.1.1"), basic("ann", "wrong"), MOST)
    assert _locked(raw, keys) == 1
    raw.incrby(keys.login_attempts("noted"), 19)

    statuses(browse(auth=USERS, peer="1.1.1.2"), basic("ann", "wrong"), MOST)

    assert _locked(raw, keys) == 1


def test_no_secret_is_tried_while_the_server_that_counts_is_away() -> None:
    from jobrunner.web.app import create_app
    from tests.unit.web.conftest import Browser

    with Client("unix:///nowhere/at/all", retry_timeout=0) as client:
        browser = Browser(create_app(client, auth=USERS))
        assert statuses(browser, basic("ann", "correct horse"), 1) == [503]


def test_a_proxy_may_be_trusted_with_every_way_in() -> None:
    settings = settle({"token": "long enough", "trusted_proxy": ("10.0.0.7",)}, {})

    assert settings.trusted_proxy == ("10.0.0.7/32",)
    with pytest.raises(InvalidOption, match="trusted proxy"):
        settle({"token": "long enough", "trusted_proxy": ("nowhere",)}, {})
