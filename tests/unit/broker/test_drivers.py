"""One suite for both drivers, threads and asyncio: their guarantees with and without faults."""

import asyncio
import multiprocessing
import os
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import redis

from jobrunner.broker import redis_py
from jobrunner.broker.async_broker import AsyncBroker
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import command
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import leases, new_tasks, queues
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.connection import Connection
from jobrunner.broker.redis_py import AsyncRedisPyConnection
from jobrunner.broker.resp import pack
from jobrunner.clock import monotonic
from jobrunner.errors import (
    ClientClosed,
    DamagedData,
    OutcomeUnknown,
    ServerFull,
    ServerRefused,
    ServerUnavailable,
)
from jobrunner.task import Task
from tests.support.waiting import wait_for


def enqueue(mail, *ids):
    return new_tasks.enqueue(mail, [Task(id=one, queue="mail", payload=b"x" * 100) for one in ids])


def test_a_call_has_its_value(connect, server, mail):
    driver = connect(server.url)

    assert driver.run(enqueue(mail, "a", "b")) == [True, True]
    assert driver.run(queues.counts(mail)).waiting == 2
    assert driver.run(command("ECHO", "x", read=bytes.decode)) == "x"


def test_calls_go_together_and_answer_in_order(connect, fault_proxy, mail):
    driver = connect(fault_proxy.url)

    assert driver.run_many([enqueue(mail, "a"), queues.counts(mail), enqueue(mail, "a")])[::2] == [[True], [False]]
    assert driver.run_many([]) == []
    assert fault_proxy.connections == 1


def test_one_connection_serves_calls_that_follow_each_other(connect, fault_proxy, mail):
    driver = connect(fault_proxy.url)
    for _ in range(50):
        driver.run(queues.counts(mail))

    assert fault_proxy.connections == 1


def test_a_server_that_forgot_its_scripts_is_sent_them_again(connect, server, raw, mail):
    driver = connect(server.url)
    for n in range(3):
        raw.script_flush()
        assert driver.run(enqueue(mail, f"{n}")) == [True]
        raw.script_flush()
        assert len(driver.run(leases.reserve(mail, 1, token=f"{n}")).attempts) == 1
        raw.script_flush()
        found = driver.run_many([enqueue(mail, "x", "y"), queues.counts(mail), queues.counts(mail)])
        assert [found[1].pending, found[2].waiting] == [n + 1, 2]


def test_a_script_is_sent_once_and_named_afterwards(connect, server, raw, mail):
    driver = connect(server.url)
    driver.run(enqueue(mail, "a"))
    before = raw.info("commandstats")["cmdstat_eval"]["calls"]
    driver.run(enqueue(mail, "b"))

    assert raw.info("commandstats")["cmdstat_eval"]["calls"] == before


def test_a_refusal_is_an_error_and_the_calls_beside_it_are_done(connect, fault_proxy, raw, mail):
    driver = connect(fault_proxy.url)
    raw.set(mail.scheduled, "damage")

    with pytest.raises(ServerRefused, match="WRONGTYPE"):
        driver.run_many([enqueue(mail, "a"), queues.counts(mail), enqueue(mail, "b")])

    assert raw.zrange(mail.waiting, 0, -1) == [b"a", b"b"]
    assert driver.run(enqueue(mail, "c")) == [True]
    assert fault_proxy.connections == 1, "the connection is as good as before"


def test_a_full_server_has_an_error_of_its_own(connect, start_server, mail):
    full = start_server(maxmemory="1")

    with pytest.raises(ServerFull, match="maxmemory"):
        connect(full.url).run(enqueue(mail, "a"))


def test_a_reader_that_raises_leaves_the_connection_usable(connect, fault_proxy):
    driver = connect(fault_proxy.url)
    with pytest.raises(DamagedData, match="invalid"):
        driver.run(command("ECHO", "x", read=int))

    assert driver.run(command("ECHO", "7", read=int)) == 7
    assert fault_proxy.connections == 1


@pytest.mark.parametrize("sent", [0, 1, 30, 200])
def test_a_call_that_may_be_repeated_is_done_once_when_its_request_is_cut(connect, fault_proxy, raw, mail, sent):
    driver = connect(fault_proxy.url)
    driver.run(enqueue(mail, "before"))
    fault_proxy.cut_request = sent

    assert driver.run(enqueue(mail, "a")) == [True]
    assert raw.zrange(mail.waiting, 0, -1) == [b"before", b"a"]
    assert fault_proxy.connections == 2


@pytest.mark.parametrize("heard", [0, 1, 3])
def test_a_call_that_may_be_repeated_is_done_once_when_its_reply_is_cut(connect, fault_proxy, raw, mail, heard):
    driver = connect(fault_proxy.url)
    driver.run(enqueue(mail, "before"))
    fault_proxy.cut_reply = heard

    assert driver.run(enqueue(mail, "a")) == [True], "the reply is that to the first sending"
    assert raw.zrange(mail.waiting, 0, -1) == [b"before", b"a"]


def test_a_report_that_is_repeated_says_not_that_the_task_was_gone(connect, fault_proxy, mail):
    driver = connect(fault_proxy.url)
    driver.run(enqueue(mail, "a"))
    (attempt,) = driver.run(leases.reserve(mail, 1, token="r")).attempts
    driver.run(leases.commit(mail, [("ghost", "1", 0, "succeeded", b"")]))
    fault_proxy.cut_reply = 0

    assert driver.run(leases.commit(mail, [("a", attempt.token, 0, "succeeded", b"")])) == ["unknown"]
    assert driver.run(leases.commit(mail, [("a", attempt.token, 0, "succeeded", b"")])) == ["gone"]
    assert driver.run(queues.counts(mail)).totals["succeeded"] == 1


@pytest.mark.parametrize("cut", ["cut_request", "cut_reply"])
def test_a_call_that_may_not_be_repeated_is_sent_once(connect, fault_proxy, raw, keys, cut):
    driver = connect(fault_proxy.url)
    increment = leader_calls.metadata_increment(keys, "job", "n", 1)
    driver.run(increment)
    setattr(fault_proxy, cut, 0)

    with pytest.raises(OutcomeUnknown, match="it was applied or it was not"):
        driver.run(increment)

    assert raw.hget(keys.job("job"), "n") == (b"1" if cut == "cut_request" else b"2")
    assert driver.run(increment) == (2 if cut == "cut_request" else 3)


def test_a_reservation_whose_reply_was_lost_comes_back_when_its_lease_ends(connect, fault_proxy, clock, mail):
    clock.set()
    driver = connect(fault_proxy.url)
    driver.run(enqueue(mail, "a"))
    driver.run(leases.reserve(mail, 0, token="r0"))
    fault_proxy.cut_reply = 0

    with pytest.raises(OutcomeUnknown, match="during reserve"):
        driver.run(leases.reserve(mail, 1, token="r1"))

    assert driver.run(leases.reserve(mail, 1, token="r2")).attempts == []
    clock.advance(30_000)
    (attempt,) = driver.run(leases.reserve(mail, 1, token="r3")).attempts
    assert (attempt.id, attempt.number) == ("a", 2)


def test_one_call_that_may_not_be_repeated_decides_for_those_beside_it(connect, fault_proxy, keys, mail):
    driver = connect(fault_proxy.url)
    driver.run(queues.counts(mail))
    fault_proxy.cut_reply = 0

    with pytest.raises(OutcomeUnknown):
        driver.run_many([queues.counts(mail), leader_calls.metadata_increment(keys, "job", "n", 1)])


def test_a_connection_that_died_while_it_rested_spoils_no_call(connect, start_server, keys, mail):
    own = start_server()
    driver = connect(own.url)
    driver.run_many([queues.counts(mail), leader_calls.metadata_increment(keys, "job", "n", 1)])
    own.kill()
    own.start()

    assert driver.run(leader_calls.metadata_increment(keys, "job", "n", 1)) == 1
    own.kill()
    own.start()
    assert driver.run(enqueue(mail, "a")) == [True]


def test_a_server_that_is_not_there_is_unavailable_when_patience_is_over(connect, tmp_path, mail):
    driver = connect(f"unix://{tmp_path}/none", retry_timeout_s=0.15)
    began = monotonic()

    with pytest.raises(ServerUnavailable, match=r"no server at unix:///.*; start it"):
        driver.run(queues.counts(mail))

    assert 0.15 <= monotonic() - began < 30


def test_without_patience_there_is_one_try(connect, mail):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    began = monotonic()

    with pytest.raises(ServerUnavailable):
        connect(f"redis://127.0.0.1:{port}", retry_timeout_s=0).run(queues.counts(mail))
    assert monotonic() - began < 10


def test_a_server_that_comes_back_in_time_is_waited_for(connect, start_server, mail):
    own = start_server()
    own.kill()
    later = threading.Timer(0.2, own.start)
    later.start()

    assert connect(own.url, retry_timeout_s=20).run(enqueue(mail, "a")) == [True]
    later.join()


def test_a_call_that_outlives_the_close_of_its_driver_leaves_no_connection(server, raw):
    others = {one["id"] for one in raw.client_list()}
    driver = Broker(Endpoint(server.url))
    waiting = threading.Thread(target=driver.run, args=[command("BLPOP", "nothing", 0.2, read=bool)])
    waiting.start()
    wait_for(lambda: [one for one in raw.client_list() if one["cmd"] == "blpop"])
    driver.close()
    waiting.join()

    wait_for(lambda: {one["id"] for one in raw.client_list()} <= others)


def test_a_driver_that_was_closed_does_nothing(connect, server, raw, mail):
    others = {one["id"] for one in raw.client_list()}
    driver = connect(server.url)
    driver.run(queues.counts(mail))
    mine = {one["id"] for one in raw.client_list()} - others
    driver.close()

    with pytest.raises(ClientClosed, match="closed"):
        driver.run(enqueue(mail, "a"))
    assert not raw.exists(mail.waiting)
    assert mine
    assert not mine & {one["id"] for one in raw.client_list()}
    driver.close()


def test_a_wrong_password_is_refused_at_once_and_told_to_nobody(connect, start_server, mail):
    own = start_server(requirepass="right")
    driver = connect(own.url.replace("unix://", "unix://:secret@"), retry_timeout_s=20)
    began = monotonic()

    with pytest.raises(ServerRefused, match="check user, password") as refusal:
        driver.run(queues.counts(mail))

    assert monotonic() - began < 10
    assert "secret" not in str(refusal.value)


def test_a_password_that_is_missing_is_refused_at_once(connect, start_server, mail):
    own = start_server(requirepass="right")

    with pytest.raises(ServerRefused, match="check user, password"):
        connect(own.url, retry_timeout_s=20).run(queues.counts(mail))
    assert connect(own.url.replace("unix://", "unix://:right@")).run(queues.counts(mail)).waiting == 0


def test_a_user_without_the_right_is_refused(connect, server, mail):
    nodes = Broker(Endpoint(server.url)).nodes()
    for node in nodes:
        node.run(command("ACL", "SETUSER", "viewer", "on", "nopass", "~*", "+@all", "-evalsha", "-eval", read=bytes))
    try:
        with pytest.raises(ServerRefused, match="ACL"):
            connect(server.url.replace("://", "://viewer:any@")).run(queues.counts(mail))
    finally:
        for node in nodes:
            node.run(command("ACL", "DELUSER", "viewer", read=int))


def test_a_server_that_does_not_answer_in_time_is_given_up(connect, start_server, keys, mail):
    own = start_server()
    driver = connect(own.url, timeout_s=0.1, retry_timeout_s=0.3)

    def answered() -> bool:
        with suppress(OutcomeUnknown, ServerUnavailable):  # on a busy machine its first call may take too long, too
            return bool(driver.run(leader_calls.metadata_increment(keys, "job", "n", 1)))
        return False

    wait_for(answered)
    with own.connect() as raw:
        raw.client_pause(60_000)

    with pytest.raises(OutcomeUnknown):
        driver.run(leader_calls.metadata_increment(keys, "job", "n", 1))
    with pytest.raises((OutcomeUnknown, ServerUnavailable)):
        driver.run(queues.counts(mail))


class Loading:
    """A server that is loading its data: answers so to every script until it has been asked `times` times."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.answered_first = 0
        self.says = b"LOADING the dataset"
        self.asked = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        while words := line.recv(65536):
            for verb in re.findall(rb"\*\d+\r\n\$\d+\r\n(\w+)", words):
                line.sendall(self._reply(verb.upper()))

    def _reply(self, verb: bytes) -> bytes:
        if verb == b"CLIENT":
            return b"+OK\r\n"
        self.asked += 1
        is_loading = self.answered_first < self.asked <= self.times
        return b"-%b\r\n" % self.says if is_loading else b":7\r\n"

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def loading():
    made = []

    def make(times: int) -> Loading:
        made.append(Loading(times))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_server_that_is_loading_is_waited_for_even_by_what_may_not_be_repeated(connect, loading, keys):
    own = loading(3)

    assert connect(own.url).run(leader_calls.metadata_increment(keys, "job", "n", 1)) == 7
    assert own.asked == 4


@pytest.mark.parametrize("calls", [3, 40])
def test_calls_that_meet_the_end_of_loading_in_one_exchange_are_all_done_once(connect, loading, keys, calls):
    own = loading(2)
    increment = leader_calls.metadata_increment(keys, "job", "n", 1)  # may not be repeated

    assert connect(own.url, retry_timeout_s=0).run_many([increment] * calls) == [7] * calls
    assert own.asked == calls + 2


def test_a_server_that_is_loading_is_waited_for_by_several_calls_that_may_not_be_repeated(connect, loading, keys):
    own = loading(3)
    increment = leader_calls.metadata_increment(keys, "job", "n", 1)

    assert connect(own.url).run_many([increment, increment, increment]) == [7, 7, 7]
    assert own.asked == 6


def test_a_server_that_goes_on_loading_within_an_exchange_is_not_asked_for_ever(connect, loading, keys):
    own = loading(10**9)
    own.answered_first = 1
    increment = leader_calls.metadata_increment(keys, "job", "n", 1)

    with pytest.raises(ServerUnavailable, match="the dataset"):
        connect(own.url, retry_timeout_s=0).run_many([increment, increment])
    assert own.asked == 3


def test_a_long_script_that_begins_within_an_exchange_is_waited_for_by_the_calls_behind(connect, loading, keys):
    own = loading(6)
    own.answered_first, own.says = 1, b"BUSY Redis is busy running a script"
    increment = leader_calls.metadata_increment(keys, "job", "n", 1)  # may not be repeated

    assert connect(own.url, retry_timeout_s=60).run_many([increment] * 3) == [7, 7, 7]
    assert own.asked == 8


def test_a_long_script_that_goes_on_within_an_exchange_is_waited_for_as_long_as_the_server(connect, loading, keys):
    own = loading(10**9)
    own.answered_first, own.says = 1, b"BUSY Redis is busy running a script"
    increment = leader_calls.metadata_increment(keys, "job", "n", 1)

    driver = connect(own.url, retry_timeout_s=0.2)
    with pytest.raises(ServerUnavailable, match="running a script"):
        driver.run_many([increment, increment])
    assert own.asked > 3
    own.asked = 0
    with pytest.raises(OutcomeUnknown, match=r"running a script.* others of the same call may have been added"):
        driver.write([increment, increment])


def test_a_server_that_loads_for_longer_than_patience_is_unavailable(connect, loading, keys):
    with pytest.raises(ServerUnavailable, match="it is loading its data"):
        connect(loading(10**9).url, retry_timeout_s=0.1).run(leader_calls.metadata_increment(keys, "job", "n", 1))


def test_a_server_that_is_busy_with_a_script_is_waited_for(connect, start_server, keys):
    own = start_server(lua_time_limit="1")
    increment = leader_calls.metadata_increment(keys, "job", "n", 1)
    with own.connect() as raw, own.connect() as other, ThreadPoolExecutor(1) as beside:
        endless = beside.submit(lambda: raw.eval("while true do end", 0))

        def is_busy() -> bool:
            try:
                return not other.ping()
            except redis.ResponseError as error:
                return str(error).startswith("BUSY")

        wait_for(is_busy)
        with pytest.raises(ServerUnavailable, match=r"has run a script for long|is busy running a script"):
            connect(own.url, retry_timeout_s=0.1).run(increment)
        other.script_kill()
        with pytest.raises(redis.ResponseError, match="killed"):
            endless.result()

    assert connect(own.url).run(increment) == 1


def test_calls_of_one_round_trip_leave_in_one_piece(connect, server, mail, monkeypatch):
    driver, sent = connect(server.url), []
    driver.run(queues.counts(mail))
    for kind in (Connection, AsyncRedisPyConnection):

        def send(connection, packed, original=kind.send):
            sent.append(packed.count(b"EVALSHA"))
            return original(connection, packed)

        monkeypatch.setattr(kind, "send", send)

    assert len(driver.run_many([queues.counts(mail)] * 5)) == 5
    assert sent == [5]


def test_something_is_done_while_the_server_works(server, mail):
    driver, done = Broker(Endpoint(server.url)), []

    assert driver.run_each([queues.counts(mail)] * 2, lambda: done.append(1))[1].waiting == 0
    assert done == [1]
    driver.close()


def test_threads_share_a_driver(server, keys):
    driver = Broker(Endpoint(server.url))
    increment = leader_calls.metadata_increment(keys, "job", "n", 1)
    threads = [threading.Thread(target=lambda: [driver.run(increment) for _ in range(100)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert driver.run(increment) == 801
    driver.close()


def test_coroutines_share_a_driver(server, keys):
    async def all_of_them() -> int:
        driver = AsyncBroker(Endpoint(server.url))
        increment = leader_calls.metadata_increment(keys, "job", "n", 1)
        await asyncio.gather(*(driver.run(increment) for _ in range(50)))
        total = await driver.run(increment)
        await driver.close()
        return total

    assert asyncio.run(all_of_them()) == 51


def test_a_coroutine_that_is_cancelled_leaves_no_reply_behind(start_server, mail):
    own = start_server()

    async def cancelled_in_mid_call() -> bytes:
        driver = AsyncBroker(Endpoint(own.url))
        await driver.run(command("PING", read=bytes))
        with own.connect() as raw:
            raw.client_pause(200)
        waiting = asyncio.create_task(driver.run(command("ECHO", "wrong", read=bytes)))
        await asyncio.sleep(0)
        while not waiting.done():
            await asyncio.sleep(0.01)
            waiting.cancel()
        found = await driver.run(command("ECHO", "right", read=bytes))
        await driver.close()
        return found

    assert asyncio.run(cancelled_in_mid_call()) == b"right"


@pytest.mark.parametrize("rests", [False, True])
def test_a_coroutine_that_is_cancelled_leaves_no_connection_open(start_server, monkeypatch, rests):
    own = start_server()
    opened: list[Any] = []
    make = redis_py.open_async
    monkeypatch.setattr(redis_py, "open_async", lambda *given: opened.append(make(*given)) or opened[-1])

    async def cancelled_after(turns: int) -> int:
        driver = AsyncBroker(Endpoint(own.url))
        if rests:
            await driver.run(command("PING", read=bytes))
        asking = asyncio.create_task(driver.run(command("PING", read=bytes, repeatable=False)))
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        await driver.close()
        return sum(one._connection.is_connected for one in opened)

    assert [asyncio.run(cancelled_after(turns)) for turns in range(16)] == [0] * 16
    assert opened


def _in_child(driver: Broker, keys: Any, pipe: Any) -> None:
    increment = leader_calls.metadata_increment(keys, "job", "n", 1)
    pipe.send([driver.run(increment) for _ in range(50)])


def test_a_forked_child_has_connections_of_its_own(fault_proxy, keys):
    driver = Broker(Endpoint(fault_proxy.url))
    increment = leader_calls.metadata_increment(keys, "job", "n", 1)
    driver.run(increment)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_in_child, args=(driver, keys, theirs))
    child.start()
    mine = [driver.run(increment) for _ in range(50)]
    assert ours.poll(20)
    seen = ours.recv()
    child.join()

    assert sorted(mine + seen) == list(range(2, 102))
    assert fault_proxy.connections == 2, "the parent's is still its own"
    assert os.getpid() != child.pid
    driver.close()


def test_a_blocking_connection_waits_longer_than_any_other(server, keys):
    driver = Broker(Endpoint(server.url, timeout_s=0.5))
    nothing = keys.prefix.encode() + b"nothing"
    connection = driver.open_blocking(nothing)
    connection.connect()

    connection.send(pack(("BLPOP", nothing, "1.5")))
    assert connection.can_read(timeout=5)
    assert connection.read_response() is None
    connection.disconnect()
    driver.close()


def test_run_each_has_errors_among_its_values(broker, raw, mail):
    raw.set(mail.scheduled, "damage")

    first, second, third = broker.run_each([enqueue(mail, "a"), queues.counts(mail), enqueue(mail, "b")])

    assert (first, third) == ([True], [True])
    assert isinstance(second, ServerRefused)


def test_the_clock_of_a_driver_is_the_clock_of_its_scripts(connect, server, clock, raw, mail):
    clock.set(1_234_567_890_123.5)
    connect(server.url).run(enqueue(mail, "a"))

    assert raw.hget(mail.task("a"), "enqueue_time") == b"1234567890123.5"
