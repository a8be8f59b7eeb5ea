"""Addresses in requests: the client, also behind trusted proxies, its site, and the requested host."""

import ipaddress
from collections.abc import Collection, Iterable

from starlette.requests import HTTPConnection

from jobrunner.errors import InvalidOption
from jobrunner.formatting import describe

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_ONE_CUSTOMER = 64
"""Bits of an IPv6 address that identify a site; a machine chooses the other bits itself."""


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
    forwarded = [part for line in request.headers.getlist("x-forwarded-for") for part in line.split(",")]
    for part in reversed(forwarded):
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
    """The unit for which limits count: the /64 of an IPv6 address, and a single site for all loopback addresses,
    because a client that has one of them has all."""
    address = _address(host)
    if address is not None and address.is_loopback:
        return "loopback"
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, _ONE_CUSTOMER), strict=False))
    return host if address is None else str(address)


def host_name(request: HTTPConnection) -> str:
    """The name or address in the Host header, without the port."""
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
