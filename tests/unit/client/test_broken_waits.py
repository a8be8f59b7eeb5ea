"""Waits for work, room or a result over a network that breaks or says nothing any more."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from jobrunner.broker.broker import Broker
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.listeners import ChannelListener
from jobrunner.client.client import Client, broker_of
from jobrunner.errors import ClientClosed, ServerUnavailable, TaskTimeout
from tests.support.server import topology_name

_GREETED = b"+OK\r\n" * 2
_SUBSCRIBED = b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"


@pytest.fixture
def mute() -> Iterator[Callable[[bytes], Endpoint]]:
    """mute(words): the way to a server that accepts, says these words and nothing else."""
    ends: list[socket.socket] = []

    def listen(words: bytes) -> Endpoint:
        listening = socket.create_server(("127.0.0.1", 0))
        ends.append(listening)

        def say() -> None:
            with suppress(OSError):
                while True:
                    near, _ = listening.accept()
                    ends.append(near)
                    near.sendall(words)

        threading.Thread(target=say, daemon=True).start()
        return Endpoint(f"redis://127.0.0.1:{listening.getsockname()[1]}/0", timeout_s=0.2)

    yield listen
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


@pytest.mark.parametrize(
    "words", [b"", _GREETED, _GREETED + _SUBSCRIBED[:-3], _GREETED + _SUBSCRIBED + b"*3\r\n$7\r\nmess"],
    ids=["before the greeting", "after it", "within the answer", "within a message"],
)  # fmt: skip
def test_a_wait_for_a_result_ends_though_the_server_falls_silent(
    mute: Callable[[bytes], Endpoint], words: bytes
) -> None:
    listener = ChannelListener(Broker(mute(words)), b"c")
    waiting = threading.Thread(target=lambda: [listener.wait(0.05), listener.wait(0.05)], daemon=True)
    waiting.start()
    waiting.join(10)

    assert not waiting.is_alive()
    listener.close()


@pytest.mark.parametrize("rule", ["-subscribe", "resetchannels"])
def test_a_user_who_may_not_subscribe_looks_for_the_result_again(
    server: Any, client: Client, keys: Any, raw: Any, rule: str
) -> None:
    if topology_name():
        pytest.skip("the user is one of the server with the tasks")
    task_id = client.queue("mail").push("x")
    raw.execute_command("ACL", "SETUSER", "deaf", "on", "nopass", "~*", "&*", "+@all", rule)
    try:
        with Client(server.url.replace("://", "://deaf:any@"), keys.prefix) as deaf:
            with pytest.raises(TaskTimeout):
                deaf.task(task_id).result(timeout=0.3)
            (lease,) = client.queue("mail").reserve()
            later = threading.Timer(0.3, lease.commit, ["done"])
            later.start()

            assert deaf.task(task_id).result(timeout=20) == "done"
            later.join()
    finally:
        raw.acl_deluser("deaf")


def cut_when(blocked: int, raw: Any, wait_until: Callable[..., Any], then: Callable[[], object]) -> threading.Thread:
    """Cuts all connections when so many wait in the server, and does something when they wait again."""

    def cut() -> None:
        wait_until(lambda: raw.info("clients")["blocked_clients"] == blocked)
        raw.client_kill_filter(_type="normal", skipme=True)
        then()

    thread = threading.Thread(target=cut)
    thread.start()
    return thread


def test_a_reserve_that_waits_outlasts_a_broken_connection(
    way: Any, client: Client, raw: Any, wait_until: Callable[..., Any]
) -> None:
    cutting = cut_when(1, raw, wait_until, lambda: client.queue("mail").push("later"))
    (lease,) = way.queue("mail").reserve(wait=20)
    cutting.join()

    assert lease.payload == "later"


def test_a_push_that_waits_for_room_outlasts_a_broken_connection(
    way: Any, client: Client, raw: Any, wait_until: Callable[..., Any]
) -> None:
    client.queue("mail").configure(max_size=1)
    client.queue("mail").push("first")
    cutting = cut_when(1, raw, wait_until, lambda: client.queue("mail").pop())
    way.queue("mail").push("second", wait=20)
    cutting.join()

    assert [one.payload for one in client.queue("mail").pop()] == ["second"]


def test_events_are_followed_over_a_broken_connection(
    way: Any, client: Client, on_loop: Any, raw: Any, wait_until: Callable[..., Any]
) -> None:
    def change() -> None:
        client.queue("mail").pause()

    cutting = cut_when(1, raw, wait_until, change)
    event = next(client.events(follow=True)) if way is client else on_loop(anext(way.real.events(follow=True)))
    cutting.join()

    assert event.kind == "queue_paused"


def test_who_follows_events_has_all_of_retry_timeout_though_the_wait_had_lasted(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, away = broker_of(client), ["XREAD"]
    run = broker.run

    def run_while_away(call: Any) -> Any:
        if call.words[0] not in away:
            return run(call)
        if away == ["XREAD"]:
            away.clear()
            client.queue("mail").pause()
        raise ServerUnavailable("it went away when the wait had lasted for retry_timeout")

    monkeypatch.setattr(broker, "run", run_while_away)
    events = client.events(follow=True)
    assert next(events).kind == "queue_paused"

    away += ["XREAD", "XRANGE"]
    with pytest.raises(ServerUnavailable):
        next(events)


def test_a_wait_of_a_closed_client_ends(server: Any, keys: Any, raw: Any, wait_until: Callable[..., Any]) -> None:
    client = Client(server.url, keys.prefix)
    queue = client.queue("mail")
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            queue.reserve(wait=20)
        except ClientClosed as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_until(lambda: raw.info("clients")["blocked_clients"] == 1)
    client.close()
    raw.client_kill_filter(_type="normal", skipme=True)
    waiting.join(10)

    assert len(ended) == 1
