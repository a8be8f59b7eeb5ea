"""Attacks: clients with keys, and a raw connection that writes whatever an attacker would."""

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobrunner import Client
from jobrunner.client.current import forget, use
from tests.support.server import Server

KEY, OTHER = (base64.b64encode(bytes([n]) * 32).decode() for n in (7, 8))
Connect = Callable[..., Client]


@pytest.fixture(params=["encrypt", "sign"])
def kind(request: pytest.FixtureRequest) -> str:
    """Encrypting, and only signing."""
    return str(request.param)


@pytest.fixture
def connect(server: Server, keys: Any, clock: Any) -> Iterator[Connect]:
    """connect(…): the client of this process from now on."""
    made: list[Client] = []

    def make(**options: Any) -> Client:
        forget()
        made.append(Client(server.url, keys.prefix, now_ms=clock, **options))
        return use(made[-1])

    yield make
    forget()
    for client in made:
        client.close()


@pytest.fixture
def encrypting(connect: Connect, kind: str) -> Client:
    """A client with keys that runs nothing plain."""
    return connect(payload_keys=[KEY], payload_encryption=kind, require_encryption=True)
