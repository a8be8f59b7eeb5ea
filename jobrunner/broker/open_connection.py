"""Opens blocking connections to the server of a URL.

This package implements plain connections. Connections with TLS, or with URL options other than those of credentials.py,
are made by redis-py, which is imported only then: its import takes more time and memory than all that an enqueuing
program needs (decision 50).

No connection repeats anything: only a call knows whether it may be sent twice.
"""

from socket import socket
from typing import Any, Protocol

from jobrunner.broker.connection import (
    CREDENTIAL_OPTIONS,
    Check,
    Connection,
    ConnectionOptions,
    Credentials,
    address_of,
)
from jobrunner.errors import InvalidOption


class BlockingConnection(Protocol):
    """A connection of the driver for threads. Methods raise RedisConnectionError and RedisTimeoutError."""

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
    url, credentials = without_credentials(url)
    address = address_of(url)
    if address is not None:
        return Connection(address, options, check, credentials)
    from jobrunner.broker import redis_py

    return redis_py.open_connection(url, options, check, credentials)


def without_credentials(url: str) -> tuple[str, Credentials | None]:
    """A URL without its user and credential options, and the credentials from these; the URL unchanged, and None, when
    it has no such options. Raises InvalidOption, and ValueError for a URL that cannot be understood."""
    if not any(f"{name}=" in url for name in CREDENTIAL_OPTIONS):
        return url, None
    from jobrunner.broker.credentials import split_credentials

    return split_credentials(url)


def is_understood(url: str) -> bool:
    """Whether a URL can be used. The parser's error is dropped: its text may have a part of the URL that is a secret.
    Raises InvalidOption for invalid credential options."""
    try:
        url, _ = without_credentials(url)
        if address_of(url) is not None:
            return True
    except InvalidOption:  # about credential options: its text has no secret
        raise
    except ValueError:
        return False
    from jobrunner.broker import redis_py

    return redis_py.is_understood(url)
