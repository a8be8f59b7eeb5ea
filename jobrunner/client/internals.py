"""Access to the driver, keys, encryption and address of a client, for the package's own modules and its tests.

They are private attributes, so that no application depends on how a client reaches its server.
"""

from typing import Protocol, TypeVar

from jobrunner.broker.connect import Endpoint
from jobrunner.encryption.cipher import PayloadEncryption
from jobrunner.middleware import MiddlewareStack

B_co = TypeVar("B_co", covariant=True)
K_co = TypeVar("K_co", covariant=True)


class _HasBroker(Protocol[B_co]):
    @property
    def _broker(self) -> B_co: ...


class _HasKeys(Protocol[K_co]):
    @property
    def _keys(self) -> K_co: ...


class _HasEncryption(Protocol):
    @property
    def _encryption(self) -> PayloadEncryption | None: ...


class _HasEndpoint(Protocol):
    @property
    def _endpoint(self) -> Endpoint: ...


class _HasMiddleware(Protocol):
    @property
    def _middleware(self) -> MiddlewareStack | None: ...


def broker_of(owner: _HasBroker[B_co]) -> B_co:
    """The driver: a Broker of a Client or a Queue, an AsyncBroker of their twins."""
    return owner._broker  # noqa: SLF001 - the only module that may


def keys_of(owner: _HasKeys[K_co]) -> K_co:
    """The key names: Keys of a client, QueueKeys of a queue."""
    return owner._keys  # noqa: SLF001


def encryption_of(client: _HasEncryption) -> PayloadEncryption | None:
    """The encryption of a client; None without keys."""
    return client._encryption  # noqa: SLF001


def endpoint_of(client: _HasEndpoint) -> Endpoint:
    """The address that a client connects to."""
    return client._endpoint  # noqa: SLF001


def middleware_of(client: _HasMiddleware) -> MiddlewareStack | None:
    """The middleware of a client; None when it has none."""
    return client._middleware  # noqa: SLF001
