"""Waiting in the server for a hint that there may be work."""

import asyncio
import socket
import threading
from contextlib import suppress

import pytest

from jobrunner.broker import async_listener, notifier
from jobrunner.broker.async_broker import AsyncBroker
from jobrunner.broker.async_listener import AsyncWakeListener
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import new_tasks, queues
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.notifier import WakeListener
from jobrunner.errors import JobrunnerError, ServerRefused, ServerUnavailable
from jobrunner.task import Task
from tests.support.server import topology_name


@pytest.fixture
def lines(keys):
    return [keys.queue("mail"), keys.queue("orders/raw")]


class Awaited:
    """A listener of asyncio's with the face of its twin."""

    def __init__(self, on_loop, broker, lines):
        self._on_loop = on_loop
        self._real = AsyncWakeListener(broker, lines)

    def wait(self, at_most_s):
        return self._on_loop(self._real.wait(at_most_s))

    def close(self):
        self._on_loop(self._real.close())


@pytest.fixture(params=["threads", "asyncio"])
def listen(request, lines, on_loop):
    """listen(url): a listener for the lines on that server, for threads and for asyncio."""
    made = []

    def open_one(url, timeout_s=10.0):
        if request.param == "threads":
            made.append(WakeListener(Broker(Endpoint(url, timeout_s=timeout_s)), lines))
        else:
            if topology_name() == "cluster":
                pytest.skip("for asyncio a listener serves queues of one slot")
            made.append(Awaited(on_loop, AsyncBroker(Endpoint(url, timeout_s=timeout_s)), lines))
        return made[-1]

    yield open_one
    for one in made:
        one.close()


@pytest.fixture
def listener(listen, server):
    return listen(server.url)


def enqueue(broker, line):
    broker.run(new_tasks.enqueue(line, [Task(id="a", queue=line.name, payload=b"")]))


def test_a_hint_that_is_there_is_taken_at_once_and_once(broker, lines, listener):
    enqueue(broker, lines[1])

    assert listener.wait(30) == "orders/raw"
    assert listener.wait(0.01) == ""


def test_a_queue_behind_one_that_always_has_hints_is_heard_of(broker, lines, listener):
    """With the keys in a fixed order it was not, for as long as the other one was busy: its tasks waited for a poll."""
    for line in lines:
        enqueue(broker, line)

    first = listener.wait(30)
    broker.run(queues.wake(next(line for line in lines if line.name == first)))
    assert {first, listener.wait(30)} == {"mail", "orders/raw"}
    assert listener.wait(30) == first


def test_a_hint_that_comes_later_ends_the_wait(broker, lines, listener, raw, wait_until):
    heard = []
    waiting = threading.Thread(target=lambda: heard.append(listener.wait(20)))
    waiting.start()
    wait_until(lambda: raw.info("clients")["blocked_clients"] == 1)
    enqueue(broker, lines[0])
    waiting.join(30)

    assert heard == ["mail"]


def test_one_hint_wakes_one_listener(broker, lines, listener, listen, server, raw, wait_until):
    other = listen(server.url)
    heard = []
    threads = [threading.Thread(target=lambda one=one: heard.append(one.wait(30))) for one in (listener, other)]
    for thread in threads:
        thread.start()
    wait_until(lambda: raw.info("clients")["blocked_clients"] == 2)
    broker.run(queues.wake(lines[0]))
    wait_until(lambda: heard and raw.info("clients")["blocked_clients"] == 1)
    broker.run(queues.wake(lines[0]))
    for thread in threads:
        thread.join(40)

    assert heard == ["mail", "mail"]
    assert not raw.exists(lines[0].wake), "each was taken by one of them"


def test_a_wait_that_is_closed_ends(listener, raw, wait_until):
    ended = []

    def wait():
        try:
            ended.append(listener.wait(30))
        except (JobrunnerError, AttributeError) as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_until(lambda: raw.info("clients")["blocked_clients"] == 1)
    raw.client_kill_filter(_type="normal", skipme=True)
    waiting.join(30)

    assert isinstance(ended[0], ServerUnavailable)


def test_a_server_that_is_not_there_is_unavailable(tmp_path, listen):
    with pytest.raises(ServerUnavailable):
        listen(f"unix://{tmp_path}/none").wait(1)


def test_a_way_that_is_cut_silently_is_noticed(listen, monkeypatch):
    for module in (async_listener, notifier):
        monkeypatch.setattr(module, "LATE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ServerUnavailable):
        listen(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", 0.5).wait(0.05)


def test_a_listener_that_rested_over_a_restart_connects_again(start_server, listen):
    server = start_server()
    listener = listen(server.url)
    assert listener.wait(0.01) == ""
    server.kill()
    server.start()
    with suppress(ServerUnavailable):
        listener.wait(0.01)

    assert listener.wait(0.01) == ""


def test_a_wait_that_is_cancelled_ends_its_connection(server, lines, raw):
    async def story():
        listener = AsyncWakeListener(AsyncBroker(Endpoint(server.url)), lines[:1])
        waiting = asyncio.create_task(listener.wait(30))
        while raw.info("clients")["blocked_clients"] < 1:
            await asyncio.sleep(0.002)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        while raw.info("clients")["blocked_clients"]:
            await asyncio.sleep(0.002)

    asyncio.run(asyncio.wait_for(story(), 20))


def test_a_refusal_is_an_error_and_the_next_wait_works(broker, lines, listener, raw):
    raw.set(lines[0].wake, "damage")
    with pytest.raises(ServerRefused, match="WRONGTYPE"):
        listener.wait(1)

    raw.delete(lines[0].wake)
    enqueue(broker, lines[0])
    assert listener.wait(30) == "mail"
