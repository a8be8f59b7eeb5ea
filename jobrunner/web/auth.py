"""Who asks. An `auth` is anything that turns a request into an `Identity`, or into None when it cannot tell.

`Token` (one secret, for a person through the login page or for a program as a bearer), `Basic` (users with passwords),
`TrustedProxy` (a proxy in front says who it is), or a function of the application this is mounted in. Without any,
everybody on this machine is an admin and nobody else is let in: see `Loopback`. Secrets are compared in constant time.
"""

import base64
import binascii
import hashlib
import ipaddress
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import HTTPConnection

from jobrunner.errors import InvalidOption
from jobrunner.web.addresses import is_among, networks
from jobrunner.web.roles import Role

_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who asks, and as what. `by_browser` is false for a proof that no browser sends by itself (a bearer token)."""

    name: str
    role: Role
    by_browser: bool = True


class Auth(Protocol):
    """What the dashboard asks of a way to identify."""

    def identify(self, request: HTTPConnection) -> Identity | None:
        """Who asks; None when that cannot be told. Raises NotAllowed for somebody who is known and has no way in."""

    def signing_key(self) -> bytes:
        """A secret that processes with the same configuration share, for session and form tokens; may be empty."""

    @property
    def challenge(self) -> str:
        """The WWW-Authenticate header for those who are not known; empty for none."""


class Loopback:
    """Everybody on this machine is an admin.

    A page that somebody else's site has open in a browser here is on this machine too, so the Host header must name
    loopback (DNS rebinding), and a request that a proxy passed on does not count as local.
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


class Token:
    """One secret: as `Authorization: Bearer …`, or typed once into the login page."""

    challenge = 'Bearer realm="jobrunner"'

    def __init__(self, token: str, *, role: Role = Role.ADMIN, name: str = "token") -> None:
        if len(token) < 8:
            raise InvalidOption("the token is shorter than 8 characters; make one: openssl rand -hex 16")
        self._token = token
        self._key = _derived(token)
        self._who = Identity(name=name, role=role)

    def __repr__(self) -> str:
        return f"Token(…, role={self._who.role.name.lower()})"

    def identify(self, request: HTTPConnection) -> Identity | None:
        """Who has the token in a header. (The session of the login page is looked at before, see sessions.py.)"""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or self.accept(given.strip()) is None:
            return None
        return Identity(name=self._who.name, role=self._who.role, by_browser=False)

    def offered(self, request: HTTPConnection) -> str | None:
        """As whom a secret in a header would let in; None without one."""
        return "bearer" if request.headers.get("authorization", "").lower().startswith("bearer ") else None

    def knows(self, name: str) -> bool:
        """Whether there is such a name."""
        return name == "bearer"

    def accept(self, given: str) -> Identity | None:
        """Who has that token."""
        return self._who if _same(given, self._token) else None

    def session_of(self, name: str) -> Identity | None:
        """Who a session that was signed for `name` is now."""
        return self._who if name == self._who.name else None

    def signing_key(self) -> bytes:
        """Made from the token: another token ends all sessions."""
        return self._key


class Basic:
    """Users with passwords, asked for by the browser itself: {"ann": ("her password", Role.OPERATOR)}."""

    challenge = 'Basic realm="jobrunner", charset="UTF-8"'

    def __init__(self, users: Mapping[str, tuple[str, Role]]) -> None:
        for name, (password, _) in users.items():
            if not name or ":" in name or not password:
                raise InvalidOption(f"user {name!r}: give a name without a colon, and a password that is not empty")
        if not users:
            raise InvalidOption("no user is given: give at least one, as name and password")
        self._users = dict(users)
        self._key = _derived("\0".join(f"{name}\0{password}" for name, (password, _) in sorted(users.items())))

    def __repr__(self) -> str:
        return f"Basic({', '.join(sorted(self._users))})"

    def identify(self, request: HTTPConnection) -> Identity | None:
        """Who has name and password in the header."""
        name, given = _credentials(request) or ("", "")
        # An unknown name takes as long as a wrong password, so names cannot be guessed by the time it takes.
        password, role = self._users.get(name, (secrets.token_urlsafe(), Role.VIEWER))
        return Identity(name=name, role=role) if _same(given, password) else None

    def offered(self, request: HTTPConnection) -> str | None:
        """As whom a secret in a header would let in; None without one."""
        found = _credentials(request)
        return None if found is None else found[0]

    def knows(self, name: str) -> bool:
        """Whether there is such a name."""
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
            raise InvalidOption("no trusted proxy is given: anybody could send the header; give its address")
        self.trusted = networks(trusted)
        self._header, self._roles, self._default = header, dict(roles or {}), default

    def identify(self, request: HTTPConnection) -> Identity | None:
        """Who the proxy says it is. A header that is there twice says nothing: a client may have sent one of them."""
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
        """What the function says."""
        return self._function(request)

    def signing_key(self) -> bytes:
        """Empty."""
        return b""


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine and nobody else's way to it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


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


def _same(given: str, known: str) -> bool:
    return secrets.compare_digest(given.encode(), known.encode())


def _derived(secret: str) -> bytes:
    # Slow on purpose: a cookie signed with it must not be a quick way to try passwords.
    return hashlib.scrypt(secret.encode(), salt=b"jobrunner dashboard", n=2**14, r=8, p=1, dklen=32)
