"""What is recorded of a client on a real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner import Client
from jobrunner.broker.keys import Keys
from jobrunner.soak.history import recorder
from tests.support.server import Server


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of the history of this process, which is recorded during the test."""
    (tmp_path / "history").mkdir()
    end = recorder.install(tmp_path / "history")
    yield tmp_path / "history"
    end()


@pytest.fixture
def client(server: Server, keys: Keys) -> Iterator[Client]:
    """A client on the server's clock: the checker compares its times with those of the recorder."""
    with Client(server.url, keys.prefix) as made:
        yield made
