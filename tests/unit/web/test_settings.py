"""How the dashboard is served, from the command line and from pyproject.toml."""

from typing import Any

import pytest
from click.testing import CliRunner

from jobrunner.cli.main import jobrunner
from jobrunner.client.client import Client
from jobrunner.errors import InvalidOption, UnknownOption
from jobrunner.inspector.stats_types import OutcomeCounts
from jobrunner.web.auth import Loopback, TrustedProxy
from jobrunner.web.credentials import Basic, Token
from jobrunner.web.login import LoginLinks
from jobrunner.web.settings import settle, thresholds


def test_nothing_given_is_loopback_with_links_that_let_in() -> None:
    settings = settle({}, {})

    assert (settings.host, settings.port) == ("127.0.0.1", 8787)
    assert isinstance(settings.auth, LoginLinks)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "jobs.example"])
@pytest.mark.parametrize("given", [{}, {"no_login": True}])
def test_an_address_that_others_reach_needs_a_login_of_its_own(host: str, given: dict[str, object]) -> None:
    with pytest.raises(InvalidOption, match="say who may come in"):
        settle({"host": host, **given}, {})


def test_the_command_line_goes_before_the_file() -> None:
    settings = settle({"port": 0, "host": None, "read_only": False}, {"port": 9000, "host": "::1", "read_only": True})

    assert (settings.host, settings.port, settings.read_only) == ("::1", 0, True)


def test_pages_wait_for_a_server_that_is_away_no_longer_than_a_command_does(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page asks several times: two seconds each made one of eleven with a node of a cluster away."""
    waits = list[float]()

    def serve(served: Client, *_: Any, **__: Any) -> None:
        waits.append(served.settings.retry_timeout)

    monkeypatch.setattr("jobrunner.web.serving.serve", serve)
    CliRunner().invoke(jobrunner, ["dashboard", "--port", "0", "--url", client.settings.url], catch_exceptions=False)
    assert waits == [0.5]


def test_each_way_in() -> None:
    assert isinstance(settle({"token": "long enough"}, {}).auth, Token)
    assert isinstance(settle({"user_token": ("ann:long enough:operator",)}, {}).auth, Token)
    assert isinstance(settle({"no_login": True}, {}).auth, Loopback)
    assert isinstance(settle({"token": "long enough"}, {"no_login": True}).auth, Token), "the command goes before"
    assert isinstance(settle({"basic": ("ann:a:b:operator", "bob:pass")}, {}).auth, Basic)
    proxy = {"proxy_header": "X-User", "trusted_proxy": ["10.0.0.1"], "role_of": ["ann=admin"]}
    assert isinstance(settle({}, proxy).auth, TrustedProxy)


@pytest.mark.parametrize(
    "given",
    [
        {"token": "long enough", "basic": ("ann:b",)},
        {"token": "long enough", "no_login": True},
        {"user_token": ("ann:short",)},
        {"basic": ("ann:scrypt$1$2$3",)},
        {"secret": "short"},
        {"basic": ("ann",)},
        {"proxy_header": "X-User"},
        {"proxy_header": "X-User", "trusted_proxy": ("nowhere",)},
        {"proxy_header": "X-User", "trusted_proxy": ("10.0.0.1",), "role_of": ("ann=king",)},
        {"prefix_path": "/a b"},
        {"redact": "password"},
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(InvalidOption):
        settle({}, given)


def test_an_unknown_option_of_the_file_is_named() -> None:
    with pytest.raises(UnknownOption, match="did you mean 'port'"):
        settle({}, {"prot": 1})


def test_no_password_is_in_an_error() -> None:
    with pytest.raises(InvalidOption) as refused:
        settle({"basic": ("a-secret-without-a-name",)}, {})

    assert "secret" not in str(refused.value)


def test_thresholds_of_alerts_are_checked_and_what_is_not_given_is_the_default() -> None:
    chosen = thresholds(settle({}, {"alerts": {"waiting_s": 60, "dead_per_hour": 0}}).alerts)

    assert (chosen.waiting_s, chosen.failed_share, chosen.dead_per_hour) == (60, 0.2, 0)
    assert (chosen.waits_long(61), chosen.waits_long(60), chosen.waits_long(None)) == (True, False, False)
    assert chosen.fails_often(OutcomeCounts(counts={"failed": 3, "succeeded": 7}))
    assert not chosen.fails_often(OutcomeCounts(counts={"failed": 2, "succeeded": 8}))
    assert not chosen.fails_often(OutcomeCounts())
    assert not chosen.dies_often(OutcomeCounts(counts={"dead": 99}), 1.0)
    assert thresholds({"dead_per_hour": 2}).dies_often(OutcomeCounts(counts={"dead": 13}), 6.0)


@pytest.mark.parametrize("alerts", [
    {"waiting_s": -1}, {"failed_share": 20}, {"failed_share": "5%"}, {"dead_per_hour": True},
    {"waiting_s": float("nan")}, {"waiting_s": float("inf")}, 5,
])  # fmt: skip
def test_a_threshold_that_cannot_be_is_refused(alerts: object) -> None:
    with pytest.raises(InvalidOption, match=r"^alerts"):
        settle({}, {"alerts": alerts})


def test_an_unknown_threshold_is_named() -> None:
    with pytest.raises(UnknownOption, match="'failed_share'"):
        settle({}, {"alerts": {"failed_shares": 0.1}})
