"""The polling of the live view, and the error that it displays when a poll fails."""

from collections.abc import Callable, Iterator

import pytest

from jobrunner import Client
from jobrunner.cli.top import poller as module
from jobrunner.cli.top.poller import ServerPoller
from jobrunner.cli.top.state import Screen
from jobrunner.errors import ServerUnavailable


@pytest.fixture
def changed(client: Client) -> Iterator[Callable[[], Screen]]:
    """The screen after one more poll."""
    server = ServerPoller(client)
    server.start()

    def look() -> Screen:
        server.read(Screen())
        return server.answers.get(timeout=10)(Screen())

    yield look
    server.stop()


@pytest.mark.parametrize("error", [ServerUnavailable("no server"), ValueError("an unexpected error")])
def test_a_look_that_fails_says_so_and_the_next_one_is_taken(
    changed: Callable[[], Screen], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(module, "look", fail)
        assert str(error) in changed().trouble

    assert changed().look is not None
