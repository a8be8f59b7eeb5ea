"""Client addresses of requests. Any client can write headers, so only those of a trusted proxy count."""

import ipaddress
from collections.abc import Collection, Iterable

from starlette.requests import HTTPConnection

from jobrunner.errors import InvalidOption

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_ONE_CUSTOMER = 64
"""Bits of an IPv6 address that differ between sites; the others are one machine's to choose."""


def networks(given: Iterable[str]) -> tuple[Network, ...]:
    """Addresses and networks (10.0.0.0/8) of trusted proxies. Raises InvalidOption."""
    try:
        return tuple(ipaddress.ip_network(address, strict=False) for address in given)
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
        host = part.strip()
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


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
