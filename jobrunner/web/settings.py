"""The options of `jobrunner dashboard`, from the command, the environment, [tool.jobrunner.dashboard], and the
defaults."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jobrunner.errors import InvalidOption
from jobrunner.formatting import describe
from jobrunner.option_names import check_options
from jobrunner.settings import check_whole, file_settings
from jobrunner.web.addresses import networks
from jobrunner.web.auth import Auth, Loopback, Role, TrustedProxy, role_named
from jobrunner.web.credentials import Basic, Token, check_secret
from jobrunner.web.live import AlertThresholds
from jobrunner.web.login import LoginLinks

_LISTS = ("basic", "user_token", "trusted_proxy", "role_of", "redact")
_TEXTS = ("host", "token", "proxy_header", "prefix_path", "secret")
_FLAGS = ("read_only", "no_login")
_KNOWN = (*_LISTS, *_TEXTS, *_FLAGS, "port", "alerts")
_WAYS = {
    "token": "token",
    "user_token": "token",
    "basic": "basic",
    "proxy_header": "proxy_header",
    "no_login": "no_login",
}
"""Options that configure login; options of one method have the same value."""
_LOCAL = ("127.0.0.1", "::1", "localhost")
_LEAST_SECRET = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSettings:
    """Address, login methods and further settings of the dashboard."""

    host: str = "127.0.0.1"
    port: int = 8787
    auth: Auth = field(repr=False)
    secret: str = field(default="", repr=False)
    prefix_path: str = ""
    redact: tuple[str, ...] = ()
    read_only: bool = False
    trusted_proxy: tuple[str, ...] = ()
    alerts: Mapping[str, float] = field(default_factory=dict)
    """Thresholds of [tool.jobrunner.dashboard.alerts] that are not the defaults."""


def settle(given: Mapping[str, Any], table: Mapping[str, Any] | None = None) -> DashboardSettings:
    """Determines every option. Raises UnknownOption, InvalidOption."""
    file = file_settings()
    stored = file.dashboard if table is None else table
    check_options(stored, _KNOWN, "option in [tool.jobrunner.dashboard]")
    _check_types(stored)
    chosen = {
        **stored,
        **{name: value for name, value in given.items() if value or (value == 0 and value is not False)},
    }
    # A login method on the command line is the only one: methods from a file must not be added.
    named = [option for option in _WAYS if given.get(option)] or [option for option in _WAYS if stored.get(option)]
    ways = list(dict.fromkeys(_WAYS[option] for option in named))
    if len(ways) > 1:
        raise InvalidOption(f"{' and '.join(ways)} are given: choose one way to log in")
    host = chosen.get("host", "127.0.0.1")
    if host not in _LOCAL and (not ways or "no_login" in ways):
        raise InvalidOption(
            f"--host {host} is open to others: say who may come in, with --token, --user-token, --basic or "
            "--proxy-header"
        )
    return DashboardSettings(
        host=host,
        port=check_whole(chosen.get("port", 8787), "port", minimum=0, maximum=65535),
        auth=_auth(ways[0], {name: value for name, value in chosen.items() if name in named or name not in _WAYS})
        if ways
        else LoginLinks(),
        secret=checked_secret(chosen.get("secret", "")),
        prefix_path=checked_prefix(chosen.get("prefix_path", "")),
        redact=(*file.redact, *chosen.get("redact", ())),
        read_only=chosen.get("read_only", False),
        trusted_proxy=tuple(map(str, networks(chosen.get("trusted_proxy", ())))),
        alerts=checked_alerts(chosen.get("alerts", {})),
    )


def thresholds(alerts: Mapping[str, Any]) -> AlertThresholds:
    """The thresholds, the defaults where none is given. Raises UnknownOption, InvalidOption."""
    if not isinstance(alerts, Mapping) or not all(isinstance(name, str) for name in alerts):
        raise InvalidOption(f"alerts={describe(alerts)}: give a table, such as alerts = {{ waiting_s = 600 }}")
    check_options(alerts, AlertThresholds.__slots__, "option in alerts")
    return AlertThresholds(**alerts)


def checked_alerts(alerts: Mapping[str, Any]) -> Mapping[str, Any]:
    """The table, checked."""
    thresholds(alerts)
    return alerts


def checked_secret(secret: str) -> str:
    """A secret for form tokens, or empty. Raises InvalidOption, whose text does not contain it."""
    check_secret(secret, "secret")
    if secret and len(secret) < _LEAST_SECRET:
        raise InvalidOption(f"secret is shorter than {_LEAST_SECRET} characters; make one: openssl rand -hex 32")
    return secret


def checked_prefix(prefix: str) -> str:
    """A prefix in the form `/jobs`, or empty. Raises InvalidOption."""
    if not isinstance(prefix, str):
        raise InvalidOption(f"prefix path {describe(prefix)}: give a text such as /jobs")
    bare = prefix.strip("/")
    if bare and not all(part.replace("-", "").replace("_", "").replace(".", "").isalnum() for part in bare.split("/")):
        raise InvalidOption(f"prefix path {prefix!r}: give a path such as /jobs, of letters, digits, . _ -")
    return f"/{bare}" if bare else ""


def configured_port() -> int | None:
    """The port in [tool.jobrunner.dashboard]."""
    found = file_settings().dashboard.get("port")
    return None if found is None else check_whole(found, "port", minimum=0, maximum=65535)


def _auth(way: str, chosen: Mapping[str, Any]) -> Auth:
    if way == "no_login":
        return Loopback()
    if way == "token":
        return Token(chosen.get("token", ""), named=dict(map(_user, chosen.get("user_token", ()))))
    if way == "basic":
        return Basic(dict(map(_user, chosen["basic"])))
    roles = dict(map(_role_of, chosen.get("role_of", ())))
    return TrustedProxy(chosen["proxy_header"], chosen.get("trusted_proxy", ()), roles=roles)


def _user(text: str) -> tuple[str, tuple[str, Role]]:
    name, colon, rest = text.partition(":")
    password, _, role = rest.rpartition(":")
    if not colon:
        raise InvalidOption("basic, user-token: give a user as name:password or name:password:role")
    if password and role.upper() in Role.__members__:
        return name, (password, role_named(role))
    return name, (rest, Role.VIEWER)


def _role_of(text: str) -> tuple[str, Role]:
    name, sign, role = text.rpartition("=")
    if not sign:
        raise InvalidOption(f"role-of {text!r}: give name=role")
    return name, role_named(role)


def _check_types(stored: Mapping[str, Any]) -> None:
    for name, value in stored.items():
        fits = isinstance(value, str) if name in _TEXTS else _is_texts(value) if name in _LISTS else True
        if not fits or (name in _FLAGS and not isinstance(value, bool)):
            raise InvalidOption(f"{name} in [tool.jobrunner.dashboard] is of the wrong type; see docs/dashboard.md")


def _is_texts(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str) and all(isinstance(one, str) for one in value)
