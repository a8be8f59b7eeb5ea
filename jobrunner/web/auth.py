"""Authentication. An `auth` maps a request to an `Identity`, or to None when it does not recognise the user.

`LoginLinks` (links that work once, the default of `jobrunner dashboard`; see login_links.py), `Token` (secrets, for a
person through the login page or for a program as a bearer), `Basic` (users with passwords), `TrustedProxy` (a proxy in
front says who it is), or a function of the application that mounts the dashboard. `Loopback` (`--no-login`) lets
everybody on this machine in as an admin. Secrets are compared in constant time, and may be configured as hashes (see
password_hash.py).
"""

import base64
import binascii
import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from starlette.requests import HTTPConnection

from jobrunner.errors import InvalidOption
from jobrunner.web.addresses import is_among, is_loopback, networks
from jobrunner.web.password_hash import Secret, hashed
from jobrunner.web.roles import Role

_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A user and a role. `by_browser` is False for a credential that no browser sends by itself (a bearer token)."""

    name: str
    role: Role
    by_browser: bool = True


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
        return Identity(name="local", role=Role.ADMIN) if is_loopback(_host_name(request)) else None

    def signing_key(self) -> bytes:
        """Empty."""
        return b""


class LoginAuth:
    """Methods with the login page: a secret is entered there once, and exchanged for a session (access.py)."""

    challenge = ""
    by_link = False
    """Whether a link may carry the secret. A lasting secret must not be in a URL: histories and logs keep URLs."""

    def accept(self, given: str) -> Identity | None:
        """The identity with that secret, or None."""
        raise NotImplementedError

    def session_of(self, name: str) -> Identity | None:
        """The present identity of a user who logged in as `name`; None if there is no such user any more."""
        raise NotImplementedError

    def offered(self, _: HTTPConnection) -> str | None:
        """The user name that a header claims; None without such a header."""
        return None

    def knows(self, _: str) -> bool:
        """Whether a user with that name exists."""
        return False

    def identify(self, _: HTTPConnection) -> Identity | None:
        """None: the dashboard checks sessions before."""
        return None

    def signing_key(self) -> bytes:
        """A secret that processes with the same configuration share."""
        raise NotImplementedError


class Token(LoginAuth):
    """Secrets: as `Authorization: Bearer …`, or typed once into the login page.

    `Token("one for all")`, or a name and role for each, which the audit log then has:
    `Token(named={"ann": ("a long secret", Role.OPERATOR)})`.
    """

    challenge = 'Bearer realm="jobrunner"'

    def __init__(
        self,
        token: str = "",
        *,
        role: Role = Role.ADMIN,
        name: str = "token",
        named: Mapping[str, tuple[str, Role]] | None = None,
    ) -> None:
        tokens = {**({name: (token, role)} if token or not named else {}), **(named or {})}
        for one, (given, _) in tokens.items():
            _check_user(one)
            if len(given) < 8:
                whose = "the token" if one == "token" else f"the token of {one}"
                raise InvalidOption(f"{whose} is shorter than 8 characters; make one: openssl rand -hex 16")
        self._secrets = {one: Secret(given) for one, (given, _) in tokens.items()}
        self._who = {one: Identity(name=one, role=role) for one, (_, role) in tokens.items()}
        self._key = _derived("\0".join(given for given, _ in tokens.values()))

    def __repr__(self) -> str:
        return f"Token({', '.join(f'{one.name}: {one.role.name.lower()}' for one in self._who.values())})"

    def identify(self, request: HTTPConnection) -> Identity | None:
        """The identity of the token in the header, or None."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        who = self.accept(given.strip()) if scheme.lower() == "bearer" else None
        return replace(who, by_browser=False) if who else None

    def offered(self, request: HTTPConnection) -> str | None:
        """The user name that a header claims; None without such a header."""
        return "bearer" if request.headers.get("authorization", "").lower().startswith("bearer ") else None

    def knows(self, name: str) -> bool:
        """Whether a user with that name exists."""
        return name == "bearer"

    def accept(self, given: str) -> Identity | None:
        """The identity of that token, or None."""
        fitting = [name for name, secret in self._secrets.items() if secret.fits(given)]
        return self._who[fitting[0]] if fitting else None

    def session_of(self, name: str) -> Identity | None:
        """The present identity of a user who logged in as `name`; None if there is no such user any more."""
        return self._who.get(name)

    def signing_key(self) -> bytes:
        """Made from the tokens: other tokens end all sessions."""
        return self._key


class Basic:
    """Users with passwords, asked for by the browser itself: {"ann": ("her password", Role.OPERATOR)}."""

    challenge = 'Basic realm="jobrunner", charset="UTF-8"'

    def __init__(self, users: Mapping[str, tuple[str, Role]]) -> None:
        for name, (password, _) in users.items():
            _check_user(name)
            if not password:
                raise InvalidOption(f"user {name!r}: give a password that is not empty")
        if not users:
            raise InvalidOption("no user is given: give at least one, as name and password")
        self._users = {name: (Secret(password), role) for name, (password, role) in users.items()}
        # For unknown names: that takes as long as a wrong password, so the time says nothing of which names there are.
        is_hashed = any(secret.is_hashed for secret, _ in self._users.values())
        nobody = secrets.token_urlsafe()
        self._nobody = Secret(hashed(nobody) if is_hashed else nobody), Role.VIEWER
        self._key = _derived("\0".join(f"{name}\0{password}" for name, (password, _) in sorted(users.items())))

    def __repr__(self) -> str:
        return f"Basic({', '.join(sorted(self._users))})"

    def identify(self, request: HTTPConnection) -> Identity | None:
        """The identity of name and password in the header, or None."""
        name, given = _credentials(request) or ("", "")
        secret, role = self._users.get(name, self._nobody)
        return Identity(name=name, role=role) if secret.fits(given) else None

    def offered(self, request: HTTPConnection) -> str | None:
        """The user name that a header claims; None without such a header."""
        found = _credentials(request)
        return None if found is None else found[0]

    def knows(self, name: str) -> bool:
        """Whether a user with that name exists."""
        return name in self._users

    def signing_key(self) -> bytes:
        """Made from all names and passwords."""
        return self._key


class TrustedProxy:
    """A proxy in front identifies people and puts their name into a header.

    Only connections from `trusted` addresses (or networks, 10.0.0.0/8) are believed; `roles` gives the role by name,
    `default` that of all others (None: they have no way in).
    """

    challenge = ""

    def __init__(
        self,
        header: str,
        trusted: Sequence[str],
        *,
        roles: Mapping[str, Role] | None = None,
        default: Role | None = Role.VIEWER,
    ) -> None:
        if not trusted:
            raise InvalidOption("no trusted proxy is given, so any client could send the header; give its address")
        self.trusted = networks(trusted)
        self._header, self._roles, self._default = header, dict(roles or {}), default

    def identify(self, request: HTTPConnection) -> Identity | None:
        """The user that the proxy names. A header that occurs twice is ignored: the client may have sent one."""
        given = request.headers.getlist(self._header)
        if request.client is None or len(given) != 1 or not is_among(request.client.host, self.trusted):
            return None
        name = given[0].strip()
        role = self._roles.get(name, self._default)
        if role is None or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            return None
        return Identity(name=name, role=role)

    def signing_key(self) -> bytes:
        """Empty."""
        return b""


class AskedOf:
    """A function of the application that this is mounted in: request → Identity or None."""

    challenge = ""

    def __init__(self, function: Callable[[HTTPConnection], Identity | None]) -> None:
        self._function = function

    def identify(self, request: HTTPConnection) -> Identity | None:
        """The result of the function."""
        return self._function(request)

    def signing_key(self) -> bytes:
        """Empty."""
        return b""


def _host_name(request: HTTPConnection) -> str:
    host = request.headers.get("host", "")
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _credentials(request: HTTPConnection) -> tuple[str, str] | None:
    """Name and password of a Basic header (RFC 7617); None without a readable one."""
    scheme, _, packed = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(packed, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None


def _check_user(name: str) -> None:
    if not name or ":" in name or not name.isprintable() or len(name) > _LONGEST_NAME:
        raise InvalidOption(f"user {name[:60]!r}: give a name without a colon or control characters")


def _derived(secret: str) -> bytes:
    # Slow on purpose: a cookie signed with it must not be a quick way to try passwords.
    return hashlib.scrypt(secret.encode(), salt=b"jobrunner dashboard", n=2**14, r=8, p=1, dklen=32)
