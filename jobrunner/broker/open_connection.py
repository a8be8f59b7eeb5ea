"""From the URL of one server to a blocking connection.

A plain connection is of this package. redis-py makes those with TLS or with options in their URL, other than those of
credentials.py, and is imported then: that takes longer, and more memory, than all that a program needs which enqueues
(decision 50).

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
    url, credentials = without_credentials(url)
    address = address_of(url)
    if address is not None:
        return Connection(address, options, check, credentials)
    from jobrunner.broker import redis_py

    return redis_py.open_connection(url, options, check, credentials)


def without_credentials(url: str) -> tuple[str, Credentials | None]:
    """A URL without user and the options of credentials, and what these say; the URL as it is, and None, when it has no
    such options. Raises InvalidOption, and ValueError for a URL that cannot be understood."""
    if not any(f"{name}=" in url for name in CREDENTIAL_OPTIONS):
        return url, None
    from jobrunner.broker.credentials import split_credentials

    return split_credentials(url)


def is_understood(url: str) -> bool:
    """Whether a URL can be used. The error is not raised on: its text may name a part of the URL that is a secret.
    Raises InvalidOption for credentials that cannot be asked for."""
    try:
        url, _ = without_credentials(url)
        if address_of(url) is not None:
            return True
    except InvalidOption:  # of the credentials, without a secret
        raise
    except ValueError:
        return False
    from jobrunner.broker import redis_py

    return redis_py.is_understood(url)
