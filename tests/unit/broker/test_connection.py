"""Connections, those of this package and those of redis-py: what a driver sees of them is the same."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hiredis import Reader
from hypothesis import given
from hypothesis import strategies as st
from redis import exceptions as theirs
from redis._parsers.base import BaseParser

from jobrunner.broker import redis_py
from jobrunner.broker.connection import Connection, ConnectionOptions, ServerAddress, address_of
from jobrunner.broker.open_connection import open_connection
from jobrunner.broker.redis_errors import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    BusyScriptError,
    InvalidResponse,
    MovedError,
    NoPermissionError,
    NoScriptError,
    RedisConnectionError,
    RedisError,
    RedisTimeoutError,
    ResponseError,
    WritesRefused,
    error_of_reply,
)
from jobrunner.broker.redis_py import RedisPyConnection, open_async, translated
from jobrunner.broker.resp import PythonReplies, pack, replies_of
from jobrunner.clock import monotonic
from tests.support.server import Server
from tests.support.waiting import wait_for

OPTIONS = ConnectionOptions(client_name="me", timeout_s=5.0, connect_timeout_s=5.0)
IN_REDIS_PY = "health_check_interval=0"
"""An option that only redis-py knows."""
Open = Callable[..., Any]


@pytest.fixture(params=["own", "redis-py"])
def connect(request: pytest.FixtureRequest, server: Server) -> Iterator[Open]:
    made: list[Any] = []

    def connect(url: str = server.url, *, timeout_s: float | None = 5.0, query: str = "") -> Any:
        query = "&".join(filter(None, (query, IN_REDIS_PY if request.param == "redis-py" else "")))
        options = ConnectionOptions(client_name="me", timeout_s=timeout_s, connect_timeout_s=5.0)
        connection = open_connection(f"{url}?{query}" if query else url, options)
        assert isinstance(connection, Connection if request.param == "own" else RedisPyConnection)
        made.append(connection)
        connection.connect()
        return connection

    yield connect
    for one in made:
        one.disconnect()


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://h:1/2", ServerAddress(host="h", port=1, path="", database=2, user="", password="")),
        ("redis://", ServerAddress(host="localhost", port=6379, path="", database=0, user="", password="")),
        ("redis://:p%40@h", ServerAddress(host="h", port=6379, path="", database=0, user="", password="p@")),
        ("redis://u:p@[::1]?db=3", ServerAddress(host="::1", port=6379, path="", database=3, user="u", password="p")),
        ("unix://u:p@/a%20b?db=4", ServerAddress(host="", port=0, path="/a b", database=4, user="u", password="p")),
        ("unix:///a", ServerAddress(host="", port=0, path="/a", database=0, user="", password="")),
        ("rediss://h", None),
        ("redis://h?db=1&protocol=3", None),
    ],
)
def test_a_plain_url_is_read_here_and_any_other_by_redis_py(url: str, address: ServerAddress | None) -> None:
    assert address_of(url) == address


@pytest.mark.parametrize("url", ["redis://h:port", "redis://h:70000", "redis://h?db=x"])
def test_a_url_that_cannot_be_understood_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        address_of(url)


def test_a_connection_introduces_itself_and_selects_its_database(connect: Open, raw: Any) -> None:
    connection = connect(query="db=3")

    (told,) = [one for one in raw.client_list() if one["db"] == "3"]
    assert told["name"] == "me"
    assert connection.ask("PING") == b"PONG"
    assert connection.ask("LPUSH", "pushed", "a", 1, 1.5, b"\0") == 4
    assert connection.ask("LRANGE", "pushed", 0, -1) == [b"\0", b"1.5", b"1", b"a"]
    assert connection.ask("GET", "nothing") is None
    assert connection.ask("DEL", "pushed") == 1


def test_users_and_passwords_are_sent(connect: Open, server: Server, raw: Any) -> None:
    raw.acl_setuser("ann", enabled=True, passwords=["+p@ss"], commands=["+ping", "+client"], keys="~*")
    try:
        known = server.url.replace("unix://", "unix://ann:p%40ss@")
        connection = connect(known)
        assert connection.ask("PING") == b"PONG"
        with pytest.raises(NoPermissionError):
            connection.ask("GET", "x")
        assert connection.ask("PING") == b"PONG"
        with pytest.raises(AuthenticationError):
            connect(server.url.replace("unix://", "unix://ann:wrong@"))
    finally:
        raw.acl_deluser("ann")


def test_error_replies_are_told_apart_and_leave_the_connection_as_it_is(connect: Open) -> None:
    connection = connect()

    with pytest.raises(NoScriptError):
        connection.ask("EVALSHA", "0" * 40, 0)
    with pytest.raises(ResponseError, match=r"^unknown command"):
        connection.ask("NOSUCH")
    assert connection.ask("PING") == b"PONG"


def test_a_server_that_does_not_answer_in_time_is_a_time_out(connect: Open) -> None:
    def greeted() -> Any:
        with suppress(RedisTimeoutError):  # on a busy machine the greeting may take too long, too
            return connect(timeout_s=0.05)
        return None

    connection = wait_for(greeted)

    with pytest.raises(RedisTimeoutError):
        connection.ask("BLPOP", "nothing", 0)
    with pytest.raises(RedisConnectionError):
        connection.socket.fileno()


def _sent_by_redis_py(url: str, options: ConnectionOptions, here: socket.socket, request: bytes) -> None:
    connection: Any = redis_py.open_connection(url, options)
    connection._connection._sock = here
    connection.send(request)


def _sent_by_our_own(url: str, options: ConnectionOptions, here: socket.socket, request: bytes) -> None:
    connection: Any = open_connection(url, options)
    connection._pid, connection._socket = os.getpid(), here
    connection.send(request)


def _sent_by_a_coroutine(url: str, options: ConnectionOptions, here: socket.socket, request: bytes) -> None:
    async def send() -> None:
        connection: Any = redis_py.open_async(url, options)
        here.setblocking(False)
        theirs = connection._connection
        theirs._reader, theirs._writer = await asyncio.open_unix_connection(sock=here)
        await connection.send(request)
        theirs._writer.close()
        await theirs._writer.wait_closed()

    asyncio.run(send())


@pytest.mark.parametrize("send", [_sent_by_our_own, _sent_by_redis_py, _sent_by_a_coroutine])
def test_a_large_request_on_a_slow_link_has_as_long_as_the_server_takes_any_of_it(
    server: Server, send: Callable[..., None]
) -> None:
    """The time for one write was that of the whole request: at 2 MiB/s none above 10 MiB arrived."""
    options = ConnectionOptions(client_name="me", timeout_s=0.5, connect_timeout_s=5.0)
    here, there = socket.socketpair()
    here.settimeout(0.5)
    got, slow = bytearray(), threading.Event()
    request = os.urandom(1 << 20) * 6

    def read() -> None:
        while len(got) < len(request) and (some := there.recv(65_536)):
            got.extend(some)
            slow.wait(0.01)

    reader = threading.Thread(target=read)
    reader.start()
    began = monotonic()
    send(server.url, options, here, request)
    took = monotonic() - began
    reader.join()

    assert bytes(got) == request
    assert took > 0.5, "this machine was to take longer than the time for one write"
    there.close()


def test_a_server_that_takes_nothing_of_a_large_request_is_a_time_out(server: Server) -> None:
    options = ConnectionOptions(client_name="me", timeout_s=0.1, connect_timeout_s=5.0)
    connection: Any = open_connection(server.url, options)
    here, there = socket.socketpair()
    here.settimeout(0.1)
    connection._pid, connection._socket = os.getpid(), here

    with pytest.raises(RedisTimeoutError, match="Timeout writing"):
        connection.send(bytes(6 << 20))
    there.close()


def test_a_server_that_is_not_there_is_an_error_of_the_connection(connect: Open, tmp_path: Any) -> None:
    with pytest.raises(RedisConnectionError, match=r"Error 2 connecting to .*nothing"):
        connect(f"unix://{tmp_path}/nothing")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(RedisConnectionError, match=f"Error 111 connecting to 127.0.0.1:{port}. Connection refused"):
        connect(f"redis://127.0.0.1:{port}")


def test_what_a_server_says_before_it_closes_a_new_connection_is_told(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with server.connect() as raw:
        raw.config_set("maxclients", 1)
        with pytest.raises(RedisConnectionError, match="max number of clients reached"):
            open_connection(server.url, OPTIONS).connect()


@pytest.mark.parametrize("said", ["DENIED Redis is in protected mode", "ERR max number of clients reached"])
def test_so_it_is_over_tcp(connect: Open, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_refuse, args=(listening, f"-{said}\r\n".encode()), daemon=True).start()
        with pytest.raises(RedisError, match=said.partition(" ")[2]):
            connect(f"redis://127.0.0.1:{listening.getsockname()[1]}")


def _refuse(listening: socket.socket, words: bytes) -> None:
    near, _ = listening.accept()
    near.sendall(words)
    near.close()


def test_whether_something_can_be_read(connect: Open, raw: Any) -> None:
    connection = connect()
    assert not connection.can_read()

    connection.send(pack(["PING"]) + pack(["ECHO", "x"]))
    assert connection.can_read(timeout=5)
    assert connection.read_response() == b"PONG"
    assert connection.can_read()
    assert connection.read_response() == b"x"
    assert not connection.can_read()

    raw.client_kill_filter(_id=connection.ask("CLIENT", "ID"))
    wait_for(lambda: _is_cut(connection))
    with pytest.raises(RedisConnectionError):
        connection.read_response()


def _is_cut(connection: Any) -> bool:
    try:
        return bool(connection.can_read())
    except RedisConnectionError:
        return True


def test_another_thread_may_disconnect_it_while_it_waits_for_a_reply(connect: Open, raw: Any) -> None:
    connection, heard = connect(timeout_s=None), []

    def wait() -> None:
        try:
            connection.ask("BLPOP", "nothing", 0)
        except RedisError as error:
            heard.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_for(lambda: raw.info("clients")["blocked_clients"] == 1)
    connection.disconnect()
    waiting.join(30)
    assert isinstance(heard[0], RedisConnectionError)
    connection.connect()
    assert connection.ask("PING") == b"PONG"


def test_a_connection_that_fails_its_check_is_closed(server: Server) -> None:
    def refuse(connection: Any) -> None:
        raise RedisConnectionError(f"no primary: {connection.ask('ROLE')[0].decode()}")

    for url in (server.url, f"{server.url}?{IN_REDIS_PY}"):
        connection = open_connection(url, OPTIONS, refuse)
        with pytest.raises(RedisConnectionError, match="no primary: master"):
            connection.connect()
        with pytest.raises(RedisConnectionError):
            connection.socket.fileno()


def test_what_a_server_says_to_the_greeting_of_a_coroutine_is_not_wrapped(server: Server) -> None:
    async def connect() -> None:
        await open_async(server.url.replace("unix://", "unix://nobody:wrong@"), OPTIONS).connect()

    with pytest.raises((AuthenticationError, ResponseError), match=r"(?i)invalid username-password"):
        asyncio.run(connect())


REPLIES = (
    "ERR unknown command", "ERR max number of clients reached", "ERR invalid password", "WRONGTYPE of a value",
    "NOSCRIPT No matching script", "LOADING Redis is loading", "READONLY You can't write", "NOAUTH required",
    "WRONGPASS invalid", "NOPERM no permissions", "OOM command not allowed", "TRYAGAIN Multiple keys",
    "CLUSTERDOWN Hash slot not served", "MASTERDOWN Link with MASTER is down", "ASK 3999 127.0.0.1:6381",
    "MOVED 3999 ::1:6381", "ERR Error running script", "BUSYGROUP Consumer Group name already exists",
    (
        "ERR AUTH <password> called without any password configured for the default user. "
        "Are you sure your configuration is correct?"
    ),
)  # fmt: skip


@pytest.mark.parametrize("reply", REPLIES)
def test_an_error_reply_is_the_error_that_it_is_by_redis_py(reply: str) -> None:
    by_them = BaseParser.parse_error(reply)

    own = error_of_reply(reply)

    assert (type(own), str(own)) == (type(translated(by_them)), str(by_them))
    assert isinstance(own, RedisConnectionError) == isinstance(by_them, theirs.ConnectionError)


def test_a_server_that_runs_a_script_for_long_has_an_error_of_its_own() -> None:
    reply = "BUSY Redis is busy running a script. You can only call SCRIPT KILL"

    for error in (error_of_reply(reply), translated(BaseParser.parse_error(reply))):
        assert type(error) is BusyScriptError
        assert str(error) == "Redis is busy running a script. You can only call SCRIPT KILL"


@pytest.mark.parametrize("reply", ["MISCONF Errors writing the file: No space", "NOREPLICAS Not enough replicas"])
def test_a_server_that_takes_no_writes_has_an_error_of_its_own(reply: str) -> None:
    for error in (error_of_reply(reply), translated(BaseParser.parse_error(reply))):
        assert type(error) is WritesRefused
        assert str(error) == reply.partition(" ")[2]


def test_a_redirection_names_a_node() -> None:
    moved, asked = error_of_reply("MOVED 3999 ::1:6381"), error_of_reply("ASK 1 h:2")

    assert isinstance(moved, MovedError)
    assert (moved.host, moved.port) == ("::1", 6381)
    assert isinstance(asked, AskError)
    assert not isinstance(asked, MovedError)


Reply = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=50),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=20,
)


def _on_wire(reply: Any) -> bytes:
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n" % len(reply) + b"".join(map(_on_wire, reply))


@given(st.lists(Reply, min_size=1, max_size=5), st.integers(1, 40))
def test_replies_in_pieces_of_any_length_are_read_alike_with_and_without_hiredis(said: list[Any], size: int) -> None:
    wire = b"".join(map(_on_wire, said)) + b"+OK\r\n-LOADING x\r\n"

    for make in (replies_of, PythonReplies):
        pieces = iter([wire[start : start + size] for start in range(0, len(wire), size)])
        replies = make(_Pieces(pieces))  # type: ignore[operator]
        assert [replies.next() for _ in said] == said
        assert replies.next() == b"OK"
        assert isinstance(replies.next(), BusyLoadingError)
        assert not replies.has_data
        with pytest.raises(ConnectionError, match="closed by server"):
            replies.next()


class _Pieces:
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def recv(self, _most: int) -> bytes:
        return next(self._pieces, b"")

    def recv_into(self, buffer: bytearray) -> int:
        piece = next(self._pieces, b"")
        buffer[: len(piece)] = piece
        return len(piece)


@pytest.mark.parametrize("wire", [b"!x\r\n", b"$x\r\n", b"*\r\n"])
def test_what_is_no_reply_is_refused(wire: bytes) -> None:
    for make in (replies_of, PythonReplies):
        replies = make(_Pieces(iter([wire])))  # type: ignore[operator]
        with pytest.raises(InvalidResponse):
            replies.next()


def test_hiredis_is_used_where_it_is_installed() -> None:
    with socket.socket() as one:
        assert isinstance(replies_of(one)._parser, Reader)  # type: ignore[attr-defined]


def test_a_close_that_the_other_end_does_not_hear_of_is_no_error(server: Server) -> None:
    options = ConnectionOptions(client_name="me", timeout_s=5.0, connect_timeout_s=0.05)

    async def closed() -> bool:
        connection = open_async(server.url, options)
        await connection.connect()
        writer = connection._connection._writer
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writer, "wait_closed", asyncio.Event().wait)
            await connection.disconnect()
        return bool(writer.is_closing())

    assert asyncio.run(closed())
