"""The faults of a way to a server that only the soak uses; the others are tested by what uses them."""

import socket
import threading

import pytest
import redis

from jobrunner.soak.fault_proxy import FaultProxy, target_of, url_through
from jobrunner.soak.run import fresh_prefix
from tests.support.server import Server
from tests.support.waiting import wait_for


def test_a_lost_reply_is_one_of_a_command_that_was_applied(fault_proxy: FaultProxy, raw: redis.Redis) -> None:
    through = redis.Redis.from_url(fault_proxy.url, protocol=2, retry=None)
    assert through.ping()
    fault_proxy.replies_to_lose = 1

    with pytest.raises(redis.ConnectionError):
        through.incr("count")

    assert raw.get("count") == b"1"
    assert redis.Redis.from_url(fault_proxy.url, protocol=2).ping()


def test_without_a_server_connections_end_and_work_when_it_is_back(server: Server, fault_proxy: FaultProxy) -> None:
    server.kill()
    with pytest.raises(redis.ConnectionError):
        redis.Redis.from_url(fault_proxy.url, protocol=2, retry=None).ping()
    server.start()

    assert redis.Redis.from_url(fault_proxy.url, protocol=2).ping()


def test_a_url_on_another_way_keeps_user_password_and_database(fault_proxy: FaultProxy) -> None:
    at = f"127.0.0.1:{fault_proxy.port}"

    assert url_through(fault_proxy, "redis://me:secret@host:6380/3?timeout=1") == f"redis://me:secret@{at}/3?timeout=1"
    assert url_through(fault_proxy, "redis://host") == f"redis://{at}"
    assert url_through(fault_proxy, "unix://me:secret@/run/redis.sock?db=2") == f"redis://me:secret@{at}?db=2"
    through = redis.ConnectionPool.from_url(url_through(fault_proxy, "unix:///run/a%20b?password=s%40cret&db=2"))
    assert {name: through.connection_kwargs[name] for name in ("host", "port", "password", "db")} == {
        "host": "127.0.0.1", "port": fault_proxy.port, "password": "s@cret", "db": 2,
    }  # fmt: skip


def test_only_plain_urls_have_a_target() -> None:
    assert target_of("redis://host:6380/3") == ("host", 6380)
    assert target_of("redis://host") == ("host", 6379)
    assert str(target_of("unix:///run/redis.sock?db=2")) == "/run/redis.sock"
    assert str(target_of("unix:///my%20run/redis.sock")) == "/my run/redis.sock"
    for url in ("rediss://host", "redis+sentinel://a:1,b:2/main", "redis+cluster://a:1", "embedded:///tmp/x"):
        assert target_of(url) is None


def test_prefixes_are_fresh_and_say_what_they_are() -> None:
    assert fresh_prefix().startswith("soak-")
    assert fresh_prefix("mine").startswith("mine-soak-")
    assert fresh_prefix() != fresh_prefix()


def test_who_has_said_everything_still_hears_the_answer(fault_proxy: FaultProxy) -> None:
    with socket.create_connection(("127.0.0.1", fault_proxy.port)) as talker:
        talker.sendall(b"PING\r\n")
        talker.shutdown(socket.SHUT_WR)
        talker.settimeout(10)

        assert talker.recv(100) == b"+PONG\r\n"
        assert talker.recv(100) == b""


def test_what_was_sent_into_a_silence_never_arrives_when_the_proxy_is_closed(
    fault_proxy: FaultProxy, raw: redis.Redis
) -> None:
    """As a soak closes it and then deletes its keys: a command that arrived later would create some again."""
    holds_back = threading.Event()

    class Gate(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            holds_back.set()
            return super().wait(timeout)

    fault_proxy._open = Gate()
    with socket.create_connection(("127.0.0.1", fault_proxy.port)) as talker:
        talker.sendall(b"SET late 1\r\n")
        assert holds_back.wait(20)
        fault_proxy.close()
        wait_for(lambda: not fault_proxy._sockets)

    assert raw.get("late") is None
