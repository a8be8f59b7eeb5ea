"""A blocking connection to one server by TCP or a Unix socket, in the server's protocol (RESP 2)."""

import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from jobrunner.broker.redis_errors import RedisConnectionError, RedisError, RedisTimeoutError, ResponseError
from jobrunner.broker.resp import CLOSED, pack, pieces, replies_of

_NAME = "jobrunner"
"""The library name in `CLIENT LIST`."""
_KEEP_ALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""Seconds, seconds and a count: the loss of the other end of an idle connection is noticed within a minute."""
PASSWORD_FILE, CREDENTIAL_PROVIDER = "password_file", "credential_provider"
"""Options of a URL. See credentials.py, which is imported when a URL has such an option."""
CREDENTIAL_OPTIONS = (PASSWORD_FILE, CREDENTIAL_PROVIDER)
Check = Callable[[Any], None]
"""Called with a new connection after its handshake; raises a RedisError when the connection must not be used."""


class Credentials(Protocol):
    """The source of the arguments of AUTH, called for each new connection."""

    may_block: bool
    """Whether `get_credentials` may take longer than reading a file."""

    def get_credentials(self) -> tuple[str, ...]:
        """(password,) or (user, password). Raises RedisConnectionError."""


class ConnectionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings shared by all connections of an endpoint. `timeout_s` limits the wait for each reply; None: no limit."""

    client_name: str
    timeout_s: float | None
    connect_timeout_s: float


class ServerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a server, with database and user. `path`: its Unix socket, in place of `host` and `port`."""

    host: str
    port: int
    path: str
    database: int
    user: str
    password: str

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


def address_of(url: str) -> ServerAddress | None:
    """The address in a redis:// or unix:// URL; None for a URL that redis-py has to read: TLS, or options other than
    `db`. Raises ValueError."""
    parts = urlsplit(url)
    options = parse_qs(parts.query)
    if parts.scheme not in ("redis", "unix") or not options.keys() <= {"db"}:
        return None
    database, is_unix = 0, parts.scheme == "unix"
    if "db" in options:
        database = int(options["db"][0])
    elif not is_unix:
        with suppress(ValueError):
            database = int(unquote(parts.path).replace("/", ""))
    return ServerAddress(
        host="" if is_unix else unquote(parts.hostname or "localhost"),
        port=0 if is_unix else parts.port or 6379,
        path=unquote(parts.path) if is_unix else "",
        database=database,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
    )


class Connection:
    """A connection, used as: `connect`, any number of `send` and `read_response`, `disconnect`, and `connect` again.
    Each connect gets the current `credentials`. A failed connection is disconnected. Another thread may disconnect it,
    which ends a wait for a reply."""

    def __init__(
        self, address: ServerAddress, options: ConnectionOptions, check: Check | None = None,
        credentials: Credentials | None = None,
    ) -> None:  # fmt: skip
        self._address = address
        self._credentials = credentials
        self._options = options
        self._check = check
        self._pid = os.getpid()
        self._socket: socket.socket | None = None
        self._replies: Any = None
        self.host, self.port = address.host, address.port

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter may end
            self.disconnect()

    @property
    def socket(self) -> socket.socket:
        """The open socket. Raises RedisConnectionError when the connection is not connected."""
        if self._socket is None:
            raise self._broke("using", ConnectionError(CLOSED))
        return self._socket

    def connect(self) -> None:
        """Opens the socket and makes the handshake in one round trip, unless the connection is connected."""
        if self._socket is not None:
            return
        try:
            opened = _open_socket(self._address, self._options)
        except TimeoutError as error:
            raise RedisTimeoutError(f"Timeout connecting to {self._address}") from error
        except OSError as error:
            raise RedisConnectionError(_not_connected(self._address, error)) from error
        self._pid, self._socket, self._replies = os.getpid(), opened, replies_of(opened)
        try:
            self._greet()
            if self._check is not None:
                self._check(self)
        except BaseException:
            self.disconnect()
            raise

    def disconnect(self) -> None:
        """Closes the connection. In a forked child it stays open for the parent, which opened it."""
        closing, self._socket, self._replies = self._socket, None, None
        if closing is None:
            return
        if self._pid == os.getpid():
            with suppress(OSError):
                closing.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for a reply, with an error
        with suppress(OSError):
            closing.close()

    def send(self, packed: bytes) -> None:
        """Sends packed commands. The time for a write is for each of their `pieces`."""
        try:
            for piece in pieces(packed):
                self.socket.sendall(piece)
        except TimeoutError as error:
            self.disconnect()
            raise RedisTimeoutError(f"Timeout writing to {self._address}") from error
        except OSError as error:
            self.disconnect()
            raise self._broke("writing to", error) from error
        except BaseException:
            self.disconnect()  # a part may have been sent
            raise

    def ask(self, *words: bytes | str | float) -> Any:
        """Sends one command and returns its reply. Raises ResponseError for an error reply."""
        self.send(pack(words))
        return self.read_response()

    def can_read(self, timeout: float = 0) -> bool:
        """Whether data can be read, or arrives within `timeout` seconds. Raises RedisConnectionError when the server
        has closed the connection."""
        asked = self.socket
        try:
            if self._replies.has_data:
                return True
            readable = select.poll()
            readable.register(asked, select.POLLIN)
            if not readable.poll(ceil(timeout * 1000)):
                return False
            if asked.recv(1, socket.MSG_PEEK):
                return True
            raise ConnectionError(CLOSED)
        except (AttributeError, OSError, ValueError) as error:  # AttributeError: another thread has disconnected it
            self.disconnect()
            raise self._broke("reading from", error) from error

    def read_response(self) -> Any:
        """The next reply. Raises ResponseError for an error reply."""
        replies = self._replies
        if replies is None:
            raise self._broke("reading from", ConnectionError(CLOSED))
        try:
            reply = replies.next()
        except TimeoutError as error:
            self.disconnect()
            raise RedisTimeoutError(f"Timeout reading from {self._address}") from error
        except OSError as error:
            self.disconnect()
            raise self._broke("reading from", error) from error
        except BaseException:
            self.disconnect()  # a part of the reply may have been read
            raise
        if isinstance(reply, RedisError):
            raise reply
        return reply

    def _broke(self, doing: str, error: Exception) -> RedisConnectionError:
        """The error of a broken connection. It names the server: the caller may have a URL of several."""
        return RedisConnectionError(f"Error while {doing} {self._address}: {error}")

    def _greet(self) -> None:
        address, name = self._address, self._options.client_name
        needed: list[tuple[bytes | str | float, ...]] = []
        if self._credentials is not None:
            needed.append(("AUTH", *self._credentials.get_credentials()))
        elif address.user or address.password:
            needed.append(("AUTH", *((address.user,) if address.user else ()), address.password))
        needed.append(("CLIENT", "SETNAME", name))
        if address.database:
            needed.append(("SELECT", address.database))
        about = ("CLIENT", "SETINFO", "LIB-NAME", _NAME)
        with suppress(ConnectionError):  # a server that closes at once may have sent the reason
            self.socket.sendall(b"".join(map(pack, (*needed, about))))
        for _ in needed:
            self.read_response()
        with suppress(ResponseError):  # a server before Redis 7.2 does not know SETINFO, a user may have no right to it
            self.read_response()


def _open_socket(address: ServerAddress, options: ConnectionOptions) -> socket.socket:
    if address.path:
        return _connected(socket.AF_UNIX, 0, address.path, options)
    failure = OSError("the name has no address")
    host = address.host.encode() if address.host.isascii() else address.host  # text would import the codec for IDNA
    for family, _, protocol, _, place in socket.getaddrinfo(host, address.port, 0, socket.SOCK_STREAM):
        try:
            return _connected(family, protocol, place, options)
        except OSError as error:
            failure = error
    raise failure


def _connected(family: int, protocol: int, place: Any, options: ConnectionOptions) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM, protocol)
    try:
        if family != socket.AF_UNIX:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE:
                if hasattr(socket, name):  # macOS lacks some
                    made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        made.settimeout(options.connect_timeout_s)
        made.connect(place)
        made.settimeout(options.timeout_s)
    except BaseException:
        made.close()
        raise
    return made


def _not_connected(address: ServerAddress, error: OSError) -> str:
    number, *text = error.args or ("",)
    return f"Error {number} connecting to {address}.{''.join(f' {words}.' for words in text[:1])}"
