"""Identities of requests: the user and role by authentication method.

An `auth` maps a request to an `Identity`, or to None when it does not recognise the user: `Token` and `Basic`
(credentials.py), `LoginLinks` (links that work once, the default of `jobrunner dashboard`; login.py), and those of this
module, which need no secret. `TrustedProxy`: a proxy in front names the user; `Loopback` (`--no-login`) admits every
user of this machine as an admin; `AskedOf` is a function of the application that mounts the dashboard.

Any client can set headers, so only headers of a trusted proxy count.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from inspect import iscoroutinefunction, signature
from typing import Any, Protocol

from starlette.requests import HTTPConnection

from jobrunner.errors import InvalidOption
from jobrunner.formatting import describe
from jobrunner.web.addresses import host_name, is_among, is_loopback, networks

LONGEST_NAME = 200
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""The name of a header (RFC 9110, section 5.6.2)."""


class Role(IntEnum):
    """A viewer reads; an operator also retries and pauses; an admin also changes limits, deletes and stops workers."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


def role_named(name: str) -> Role:
    """The role `viewer`, `operator` or `admin`. Raises InvalidOption."""
    try:
        return Role[name.upper()]
    except KeyError as error:
        raise InvalidOption(f"role {name!r}: choose viewer, operator or admin") from error


def check_role(role: object, whose: str) -> None:
    """Raises InvalidOption for a value that is no Role, even the name of a role: `role_named` parses names."""
    if not isinstance(role, Role):
        raise InvalidOption(f"the role of {whose} is {describe(role)}: give Role.VIEWER, Role.OPERATOR or Role.ADMIN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A user and a role. `by_browser` is False for a credential that no browser sends by itself (a bearer token)."""

    name: str
    role: Role
    by_browser: bool = True

    def __post_init__(self) -> None:
        name: object = self.name
        role: object = self.role
        if not (isinstance(name, str) and isinstance(role, Role)):
            given = f"name={type(name).__name__}, role={type(role).__name__}"
            raise TypeError(f"Identity({given}): give a name that is a str, and Role.VIEWER, OPERATOR or ADMIN")


class Auth(Protocol):
    """The interface of an authentication method."""

    def identify(self, request: HTTPConnection) -> Identity | None:
        """The identity; None for an unknown user. Raises NotAllowed for a known user without access."""

    def signing_key(self) -> bytes:
        """A secret that processes with the same configuration share, for session and form tokens; may be empty."""

    @property
    def challenge(self) -> str:
        """The WWW-Authenticate header of the answer to an unknown user; empty for none."""


class Loopback:
    """Every client on this machine is an admin: each local user, and each client of a proxy on it.

    A foreign page in a local browser can send requests from this machine, too, so the Host header must name a loopback
    address (DNS rebinding), and a request with a proxy's headers does not count as local.
    """

    challenge = ""

    def identify(self, request: HTTPConnection) -> Identity | None:
        """The admin "local", or None."""
        passed_on = any(name in request.headers for name in ("forwarded", "x-forwarded-for", "x-real-ip", "via"))
        if passed_on or request.client is None or not is_loopback(request.client.host):
            return None
        return Identity(name="local", role=Role.ADMIN) if is_loopback(host_name(request)) else None

    def signing_key(self) -> bytes:
        """Empty."""
        return b""


class TrustedProxy:
    """A proxy in front authenticates users and puts their name into a header.

    Only connections from `trusted` addresses (or networks, 10.0.0.0/8) are believed; `roles` gives the role by name,
    `default` the role of all other users (None: no access).
    """

    challenge = ""

    def __init__(
        self,
        header: str,
        trusted: Iterable[str],
        *,
        roles: Mapping[str, Role] | None = None,
        default: Role | None = Role.VIEWER,
    ) -> None:
        self.trusted = networks(trusted)
        if not self.trusted:
            raise InvalidOption("no trusted proxy is given, so any client could send the header; give its address")
        if not isinstance(header, str) or not _HEADER.fullmatch(header):
            raise InvalidOption(f"header {describe(header)}: give the name of a header, such as X-Forwarded-User")
        if roles is not None and not isinstance(roles, Mapping):
            raise InvalidOption(f"roles={describe(roles)}: give a dict such as {{'ann': Role.OPERATOR}}")
        for name, role in {**(roles or {}), **({} if default is None else {"all others": default})}.items():
            check_role(role, name)
        self._header, self._roles, self._default = header, dict(roles or {}), default

    def identify(self, request: HTTPConnection) -> Identity | None:
        """The user that the proxy names. A header that occurs twice is ignored: the client may have sent one."""
        given = request.headers.getlist(self._header)
        if request.client is None or len(given) != 1 or not is_among(request.client.host, self.trusted):
            return None
        name = given[0].strip()
        role = self._roles.get(name, self._default)
        if role is None or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            return None
        return Identity(name=name, role=role)

    def signing_key(self) -> bytes:
        """Empty."""
        return b""


class AskedOf:
    """A function of the application that mounts the dashboard: request → Identity or None."""

    challenge = ""

    def __init__(self, function: Callable[[HTTPConnection], Identity | None]) -> None:
        if iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
            raise InvalidOption(
                f"auth={_name_of(function)} is a coroutine function: give a plain one (def); it runs in a thread"
            )
        if isinstance(function, type) or not _takes_one(function):
            raise InvalidOption(
                f"auth={_name_of(function)} cannot be called with the request alone: give an object such as Token(…), "
                "or a function that takes the request and returns an Identity or None"
            )
        self._function = function

    def identify(self, request: HTTPConnection) -> Identity | None:
        """The result of the function. Raises TypeError for one that is neither an Identity nor None."""
        found: object = self._function(request)
        if found is None or isinstance(found, Identity):
            return found
        returned = type(found).__name__
        raise TypeError(f"the function auth returned a {returned}: return an Identity, or None for nobody")

    def signing_key(self) -> bytes:
        """Empty."""
        return b""


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _takes_one(function: Callable[..., object]) -> bool:
    try:
        signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # a function in C without a signature
        return True
    return True
