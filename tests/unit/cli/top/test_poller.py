"""The polling of the live view, and the error that it displays when a poll fails."""

from collections.abc import Callable, Iterator

import pytest

from jobrunner import Client
from jobrunner.cli.top import poller as module
from jobrunner.cli.top.poller import ServerPoller
from jobrunner.cli.top.state import Screen, ServerRequest
from jobrunner.errors import ServerUnavailable
from jobrunner.inspector.audit import entries


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


def test_what_is_done_is_in_the_audit_log(client: Client) -> None:
    mail = client.queue("mail")
    mail.push(1, id="dies", max_attempts=1)
    mail.reserve()[0].rollback(error="no")
    server = ServerPoller(client)
    server.start()

    for act, task in (("pause", ""), ("resume", ""), ("requeue all", ""), ("requeue", "dies"), ("cancel", "dies")):
        server.act(ServerRequest(act=act, queue="mail", id=task))
    messages = [server.answers.get(timeout=10)(Screen()).message for _ in range(5)]
    server.stop()

    found = [(one.action, one.what, one.outcome) for one in reversed(entries(client))]
    assert [outcome for _, _, outcome in found] == messages
    assert [(action, what) for action, what, _ in found] == [
        ("queue.pause", "mail"), ("queue.resume", "mail"), ("dead.requeue", "mail"), ("task.requeue", "mail dies"),
        ("task.cancel", "mail dies"),
    ]  # fmt: skip
    assert messages[2:4] == ["requeued 1 of queue mail", "task dies is not dead any more"]


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
