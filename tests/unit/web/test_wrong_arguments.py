"""`create_app` and the logins refuse wrong arguments when they are called, not at the first request."""

from collections.abc import Callable
from typing import Any

import pytest

from jobrunner import AsyncClient
from jobrunner.client.client import Client
from jobrunner.errors import InvalidOption, UnknownOption
from jobrunner.web.app import asgi_under, create_app
from jobrunner.web.auth import Loopback, Role, TrustedProxy
from jobrunner.web.credentials import Basic, Token
from jobrunner.web.login import LoginLinks

LONG = "long enough to be one"


def nobody() -> None:
    """A function that cannot be asked about a request."""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"auth": "text"}, "auth is of type str: give a function of your application"),
        ({"auth": {"ann": (LONG, Role.ADMIN)}}, "auth is of type dict"),
        ({"auth": Token}, "auth=Token cannot be called with the request alone: give an object such as Token"),
        ({"auth": LoginLinks}, "auth=LoginLinks cannot be called with the request alone"),
        ({"auth": nobody}, "auth=nobody cannot be called with the request alone"),
        ({"prefix_path": 5}, "prefix path 5: give a text such as /jobs"),
        ({"prefix_path": None}, "prefix path None"),
        ({"redact": "iban"}, "redact='iban': give a list of names"),
        ({"redact": [5]}, r"redact=\[5\]: give a list of names"),
        ({"redact": None}, "redact=None"),
        ({"redact": ["("]}, "give names or regular expressions"),
        ({"actions": "no"}, "actions='no': give True, or False for a dashboard that is read-only"),
        ({"secret": LONG.encode()}, "secret is of type bytes: give a str"),
        ({"secret": "\udcff" * 20}, "secret is not valid UTF-8"),
        ({"secret": "short"}, "secret is shorter than 16 characters"),
        ({"trusted_proxies": "10.0.0.7"}, "trusted proxies '10.0.0.7': give a list of IP addresses or networks"),
        ({"trusted_proxies": [5]}, "trusted proxy: '5' does not appear to be an IPv4 or IPv6 network"),
        ({"trusted_proxies": None}, "trusted proxies None"),
        ({"alerts": [600]}, r"alerts=\[600\]: give a table"),
        ({"alerts": {600: "waiting_s"}}, "alerts={600: 'waiting_s'}: give a table"),
        ({"alerts": False}, "alerts=False: give a table"),
    ],
)
def test_a_wrong_argument_is_refused_with_its_remedy_and_leaves_the_client_as_it_was(
    client: Client, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        create_app(client, **{"auth": Loopback(), **given})

    assert client.redaction().names == ()
    create_app(client, auth=Loopback())


@pytest.mark.parametrize("make", [AsyncClient, lambda _: Client, lambda _: None, str])
def test_what_is_no_client_is_refused_and_not_shown_as_a_url_may_have_a_password(make: Callable[[str], Any]) -> None:
    with pytest.raises(InvalidOption, match=r"client is of type \w+: give a jobrunner.Client") as refused:
        create_app(make("redis://:hunter2@nowhere"), auth=Loopback())

    assert "hunter2" not in str(refused.value)


def test_an_unknown_option_is_named_with_the_nearest_one(client: Client) -> None:
    with pytest.raises(UnknownOption, match=r"'prefix' of create_app\(\); did you mean 'prefix_path'"):
        create_app(client, auth=Loopback(), prefix="/jobs")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Token(12345678), "the secret of user 'token' is of type int: give a str"),
        (lambda: Token(LONG, role="admin"), "the role of token is 'admin': give Role.VIEWER"),
        (lambda: Token(LONG, name=5), "user 5: give a name"),
        (lambda: Token(named=["ann"]), "users are of type list: give a dict"),
        (lambda: Token(named={"ann": LONG}), "user 'ann': give a pair of secret and role"),
        (lambda: Token("\udcff" * 20), "the secret of user 'token' is not valid UTF-8"),
        (lambda: Basic("ann"), "users are of type str: give a dict"),
        (lambda: Basic({"ann": "pw"}), "user 'ann': give a pair of secret and role"),
        (lambda: Basic({"ann": (LONG, "admin")}), "the role of ann is 'admin'"),
        (lambda: Basic({"ann": (LONG.encode(), Role.ADMIN)}), "the secret of user 'ann' is of type bytes"),
        (lambda: TrustedProxy("X-User", "10.0.0.7"), "trusted proxies '10.0.0.7': give a list"),
        (lambda: TrustedProxy("X-User", []), "no trusted proxy is given"),
        (lambda: TrustedProxy("X User:", ["10.0.0.7"]), "header 'X User:': give the name of a header"),
        (lambda: TrustedProxy(5, ["10.0.0.7"]), "header 5: give the name of a header"),
        (lambda: TrustedProxy("X-User", ["10.0.0.7"], roles={"ann": "admin"}), "the role of ann is 'admin'"),
        (lambda: TrustedProxy("X-User", ["10.0.0.7"], roles=["ann"]), r"roles=\['ann'\]: give a dict"),
        (lambda: TrustedProxy("X-User", ["10.0.0.7"], default="viewer"), "the role of all others is 'viewer'"),
        (lambda: asgi_under("/", Loopback, Loopback), "path '/' leaves nothing to the other application"),
        (lambda: asgi_under(5, Loopback, Loopback), "prefix path 5"),
    ],
)
def test_a_login_that_no_request_could_pass_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message) as refused:
        make()

    assert LONG not in str(refused.value)


def test_addresses_may_come_from_a_generator_and_a_role_from_none() -> None:
    TrustedProxy("X-User", (address for address in ["10.0.0.7"]), default=None, roles={"ann": Role.ADMIN})
