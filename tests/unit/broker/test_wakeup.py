"""Waiting in the server for a hint that there may be work."""

import threading

import pytest

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import queues, tasks
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.wakeup import WakeListener
from jobrunner.errors import JobrunnerError, ServerRefused, ServerUnavailable
from jobrunner.task import Task


@pytest.fixture
def lines(keys):
    return [keys.queue("mail"), keys.queue("orders/raw")]


@pytest.fixture
def listener(broker, lines):
    made = WakeListener(broker, lines)
    yield made
    made.close()


def enqueue(broker, line):
    broker.run(tasks.enqueue(line, [Task(id="a", queue=line.name, payload=b"")]))


def test_a_hint_that_is_there_is_taken_at_once_and_once(broker, lines, listener):
    enqueue(broker, lines[1])

    assert listener.wait(5) == "orders/raw"
    assert listener.wait(0.01) == ""


def test_a_hint_that_comes_later_ends_the_wait(broker, lines, listener, raw, wait_until):
    heard = []
    waiting = threading.Thread(target=lambda: heard.append(listener.wait(20)))
    waiting.start()
    wait_until(lambda: raw.info("clients")["blocked_clients"] == 1)
    enqueue(broker, lines[0])
    waiting.join(20)

    assert heard == ["mail"]


def test_one_hint_wakes_one_listener(broker, lines, listener, raw, wait_until):
    other = WakeListener(broker, lines)
    heard = []
    threads = [threading.Thread(target=lambda one=one: heard.append(one.wait(0.5))) for one in (listener, other)]
    for thread in threads:
        thread.start()
    wait_until(lambda: raw.info("clients")["blocked_clients"] == 2)
    broker.run(queues.wake(lines[0]))
    for thread in threads:
        thread.join(20)

    assert sorted(heard) == ["", "mail"]
    other.close()


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
    waiting.join(20)

    assert isinstance(ended[0], ServerUnavailable)


def test_a_server_that_is_not_there_is_unavailable(tmp_path, lines):
    broker = Broker(Endpoint(f"unix://{tmp_path}/none"))

    with pytest.raises(ServerUnavailable):
        WakeListener(broker, lines).wait(1)


def test_a_refusal_is_an_error_and_the_next_wait_works(broker, lines, listener, raw):
    raw.set(lines[0].wake, "damage")
    with pytest.raises(ServerRefused, match="WRONGTYPE"):
        listener.wait(1)

    raw.delete(lines[0].wake)
    enqueue(broker, lines[0])
    assert listener.wait(5) == "mail"
