"""Identities of requests: the address of the client, its cookies, and the user and role by authentication method.

An `auth` maps a request to an `Identity`, or to None when it does not recognise the user: `Token` and `Basic`
(credentials.py), `LoginLinks` (links that work once, the default of `jobrunner dashboard`; login.py), and those of this
module, which need no secret. `TrustedProxy`: a proxy in front says who it is; `Loopback` (`--no-login`) lets everybody
on this machine in as an admin; `AskedOf` is a function of the application that mounts the dashboard.

Any client can write headers, so only those of a trusted proxy count.
"""

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from inspect import iscoroutinefunction, signature
from typing import Any, Protocol

from starlette.requests import HTTPConnection
from starlette.responses import Response

from jobrunner.errors import InvalidOption
from jobrunner.formatting import describe

LONGEST_NAME = 200
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""The name of a header (RFC 9110, section 5.6.2)."""
_ONE_CUSTOMER = 64
"""Bits of an IPv6 address that differ between sites; the others are one machine's to choose."""


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
    """Raises InvalidOption for what is no Role, also for its name: `role_named` reads names."""
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
        return Identity(name="local", role=Role.ADMIN) if is_loopback(_host_name(request)) else None

    def signing_key(self) -> bytes:
        """Empty."""
        return b""


class TrustedProxy:
    """A proxy in front identifies people and puts their name into a header.

    Only connections from `trusted` addresses (or networks, 10.0.0.0/8) are believed; `roles` gives the role by name,
    `default` that of all others (None: they have no way in).
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
    """A function of the application that this is mounted in: request → Identity or None."""

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
    except ValueError:  # one in C that does not tell
        return True
    return True


def networks(given: Iterable[str]) -> tuple[Network, ...]:
    """Addresses and networks (10.0.0.0/8) of trusted proxies. Raises InvalidOption."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidOption(f"trusted proxies {describe(given)}: give a list of IP addresses or networks")
    try:
        return tuple(ipaddress.ip_network(str(address), strict=False) for address in given)
    except ValueError as error:
        raise InvalidOption(f"trusted proxy: {error}; give IP addresses or networks") from error


def is_among(host: str, trusted: Collection[Network]) -> bool:
    """Whether the address is in one of the networks."""
    address = _address(host)
    return address is not None and any(address in network for network in trusted)


def address_of(request: HTTPConnection, trusted: Collection[Network]) -> str:
    """The peer's address, or, if the peer is a trusted proxy, the last untrusted address in X-Forwarded-For."""
    peer = request.client.host if request.client else ""
    if not is_among(peer, trusted):
        return peer
    said = [part for line in request.headers.getlist("x-forwarded-for") for part in line.split(",")]
    for part in reversed(said):
        host = _without_port(part.strip())
        if _address(host) is None:
            return peer
        if not is_among(host, trusted):
            return host
    return peer


def is_loopback(host: str) -> bool:
    """Whether a host name or address is a loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def site_of(host: str) -> str:
    """The unit that limits count by: the /64 of an IPv6 address, and one for all loopback addresses, because a client
    that has one of them has all."""
    address = _address(host)
    if address is not None and address.is_loopback:
        return "loopback"
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, _ONE_CUSTOMER), strict=False))
    return host if address is None else str(address)


def is_secure(request: HTTPConnection) -> bool:
    """Whether the browser uses https, with this server or with a proxy that says so."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"


def read_cookie(request: HTTPConnection, name: str) -> str:
    """The value that the browser sent; empty without one."""
    return request.cookies.get(_full_name(request, name), "")


def set_cookie(
    request: HTTPConnection, response: Response, name: str, value: str, lasts_s: int | None, *, strict: bool = False
) -> None:
    """Sets a cookie that scripts cannot read."""
    response.set_cookie(
        _full_name(request, name),
        value,
        max_age=lasts_s,
        path=_path(request),
        httponly=True,
        samesite="strict" if strict else "lax",
        secure=is_secure(request),
    )


def delete_cookie(request: HTTPConnection, response: Response, name: str) -> None:
    """Deletes a cookie in the browser."""
    response.delete_cookie(
        _full_name(request, name), path=_path(request), secure=is_secure(request), httponly=True, samesite="lax"
    )


def _full_name(request: HTTPConnection, name: str) -> str:
    # Over https a name begins with __Host- (or __Secure- below a path). A browser takes such a cookie only over https,
    # and __Host- only from this very host, so a neighbouring subdomain or a plain http page cannot plant one. (RFC
    # 6265bis, section 4.1.3.)
    if not is_secure(request):
        return name
    return f"__Host-{name}" if _path(request) == "/" else f"__Secure-{name}"


def _path(request: HTTPConnection) -> str:
    return request.scope.get("root_path", "") or "/"


def _host_name(request: HTTPConnection) -> str:
    host = request.headers.get("host", "")
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _without_port(said: str) -> str:
    """1.2.3.4 of `1.2.3.4:5678`, as load balancers of Azure write it, and ::1 of `[::1]:5678` or `[::1]`."""
    if said.startswith("["):
        return said[1:].partition("]")[0]
    return said.partition(":")[0] if said.count(":") == 1 else said


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
