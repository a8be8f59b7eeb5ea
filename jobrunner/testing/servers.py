"""The server that the tests of one session share, and how what one test left on it is removed."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import command
from jobrunner.broker.embedded.server import EmbeddedServer
from jobrunner.errors import InvalidOption
from jobrunner.testing.fake_server import FakeServer

_SLICE = 1000


@contextmanager
def open_server(kind: str = "embedded") -> Iterator[str]:
    """The URL of a private server that ends with the block.

    `embedded`: a real server, its files in a temporary folder. `fake`: fakeredis in this process. Raises InvalidOption
    for another kind, EmbeddedServerError, and UsageError when fakeredis is missing.
    """
    if kind == "embedded":
        with _embedded() as url:
            yield url
    elif kind == "fake":
        server = FakeServer()
        try:
            yield server.url
        finally:
            server.close()
    else:
        raise InvalidOption(f"jobrunner_server = {kind}: choose embedded (a real server) or fake (fakeredis)")


def remove_keys(broker: Broker, prefix: str) -> None:
    """Deletes every key below a prefix."""
    for node in broker.nodes():
        cursor = b"0"
        while True:
            cursor, found = node.run(
                command("SCAN", cursor, "MATCH", f"{prefix}:*", "COUNT", _SLICE, read=lambda reply: reply)
            )
            if found:
                broker.run_many([command("DEL", key, read=int) for key in found])
            if cursor == b"0":
                break


@contextmanager
def _embedded() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="jobrunner-"))
    server = EmbeddedServer(folder)
    try:
        yield f"unix://{server.acquire()}"
    finally:
        server.release()
        shutil.rmtree(folder, ignore_errors=True)
