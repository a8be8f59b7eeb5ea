"""From the URL of one server to a blocking connection.

A plain connection is of this package. redis-py makes those with TLS or with options in their URL, and is imported then:
that takes longer, and more memory, than all that a program needs which enqueues (decision 50).

No connection repeats anything: only a call knows whether it may be sent twice.
"""

from socket import socket
from typing import Any, Protocol

from jobrunner.broker.connection import Check, Connection, ConnectionOptions, address_of


class BlockingConnection(Protocol):
    """What the driver for threads needs of a connection. Methods raise RedisConnectionError and RedisTimeoutError."""

    @property
    def socket(self) -> socket: ...
    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def send(self, packed: bytes, /) -> None: ...
    def ask(self, *words: bytes | str | float) -> Any: ...
    def can_read(self, timeout: float = 0) -> bool: ...
    def read_response(self) -> Any: ...


def open_connection(url: str, options: ConnectionOptions, check: Check | None = None) -> BlockingConnection:
    """An unconnected connection. Raises ValueError for a URL that cannot be understood."""
    address = address_of(url)
    if address is not None:
        return Connection(address, options, check)
    from jobrunner.broker import redis_py

    return redis_py.open_connection(url, options, check)


def is_understood(url: str) -> bool:
    """Whether a URL can be used. The error is not raised on: its text may name a part of the URL that is a secret."""
    try:
        if address_of(url) is not None:
            return True
    except ValueError:
        return False
    from jobrunner.broker import redis_py

    return redis_py.is_understood(url)
