"""Reads fields of very many hashes: one write and one parser for hundreds of commands, without an object per command.
`broker_at` is the driver of a process that Spark started, which knows only the URL and the prefix.

Invariant: every reply to a sent command is received, in order; a failure ends the reader. The reader repeats nothing:
the caller restarts the failed part.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Self

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import BROKEN, read_reply
from jobrunner.broker.calls.server import check_format
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.broker.reconnect import ReconnectPolicy
from jobrunner.broker.redis_errors import RedisError, error_of_reply, raise_if_loading, server_error
from jobrunner.broker.resp import pack
from jobrunner.errors import ServerUnavailable

_AT_ONCE = 1 << 18
"""Bytes taken from the socket at a time."""
_RETRY_TIMEOUT_S = 5.0
_PING = pack((b"PING",))
_DAMAGED = "WRONGTYPE"
_PARTIAL = object()
"""Returned by the parser while a reply is incomplete, as any Python value could be a reply."""


@contextmanager
def broker_at(url: str, prefix: str) -> Iterator[Broker]:
    """A driver that lives as long as the block, as objects that Spark sends to other processes hold no connection. The
    driver's calls raise NewerFormat or OlderFormat when this version cannot read the keys below the prefix."""
    endpoint = Endpoint(url, client_name="jobrunner-spark")
    broker = Broker(endpoint, retry_timeout_s=_RETRY_TIMEOUT_S, greeting=check_format(Keys(prefix)))
    try:
        yield broker
    finally:
        broker.close()
        endpoint.release()


class BulkReader:
    """One connection for `send` and `receive` in turns: an idle connection of a driver, or a new connection. It is
    connected at once, and ends with `give_back`, `close` or its block.

    `received` counts the bytes of the replies so far. On a cluster all keys that are read must be in the slot of `key`.
    """

    def __init__(self, broker: Broker, key: bytes = b"") -> None:
        self._broker = broker
        self._endpoint = broker.endpoint
        self._connection = broker.lend() or _connected(broker.endpoint, key)
        self._replies = _replies(self._connection)
        self.received = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, *words: bytes | str | float) -> Any:
        """The reply to one command. Raises ServerRefused for an error reply."""
        self.send(pack(words))
        reply = self.receive(1)[0]
        if isinstance(reply, Exception):
            raise server_error(reply) from reply
        return reply

    def send(self, packed: bytes) -> None:
        """Sends packed commands without waiting for replies. Raises ServerUnavailable."""
        try:
            self._connection.send(packed)
        except BROKEN as error:
            raise self._unavailable(error) from error

    def receive(self, count: int) -> list[Any]:
        """The next `count` replies; the reply for a key of the wrong type (WRONGTYPE) is an exception. Raises
        ServerUnavailable, and ServerRefused for any other refusal, because the data of that command may exist."""
        try:
            found = self._replies.take(count)
        except BROKEN as error:
            raise self._unavailable(error) from error
        self.received = self._replies.bytes
        if any(issubclass(kind, Exception) for kind in set(map(type, found))):
            refused = (one for one in found if isinstance(one, Exception) and not str(one).startswith(_DAMAGED))
            if (reply := next(refused, None)) is not None:
                raise server_error(reply) from reply
        return found

    def give_back(self) -> None:
        """Returns the connection to the driver for its next call. Allowed only after every reply was received."""
        self._broker.take_back(self._connection)

    def close(self) -> None:
        """Disconnects."""
        self._connection.disconnect()

    def _unavailable(self, error: Exception) -> ServerUnavailable:
        return ServerUnavailable(f"the server at {self._endpoint} cannot be read from: {error}; check that it runs")


def pack_hash_reads(prefix: bytes, ids: Sequence[bytes], fields: Sequence[bytes]) -> bytes:
    """One HMGET for the hash of each id, packed; `prefix` is the prefix of the keys of the hashes."""
    head = b"*%d\r\n$5\r\nHMGET\r\n" % (2 + len(fields))
    tail = b"\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(field), field) for field in fields)
    lengths = set(map(len, ids))
    if len(lengths) == 1:  # ids that jobrunner generated: one pass in C
        start = b"%b$%d\r\n%b" % (head, len(prefix) + lengths.pop(), prefix)
        return start + (tail + start).join(ids) + tail
    return b"".join([b"%b$%d\r\n%b%b%b" % (head, len(prefix) + len(one), prefix, one, tail) for one in ids])


def _connected(endpoint: Endpoint, key: bytes) -> Any:
    policy = ReconnectPolicy(_RETRY_TIMEOUT_S, endpoint)
    while True:
        try:
            connection = endpoint.open(key=key)
            connection.connect()
            _check_has_loaded(connection)
        except BROKEN as error:
            policy.wait_to_connect(error)
        except RedisError as error:
            raise server_error(error) from error
        else:
            return connection


def _check_has_loaded(connection: Any) -> None:
    """Raises BusyLoadingError. A refused PING is ignored: its user may still have the right to read."""
    try:
        connection.send(_PING)
        raise_if_loading([read_reply(connection)])
    except BaseException:
        connection.disconnect()
        raise


class _FromHiredis:
    def __init__(self, connection: Any, parser: Any) -> None:
        self._socket = connection.socket
        self._parser = parser
        self._buffer = bytearray(_AT_ONCE)
        self.bytes = 0

    def take(self, count: int) -> list[Any]:
        found: list[Any] = []
        while True:
            found.extend(islice(iter(self._parser.gets, _PARTIAL), count - len(found)))
            if len(found) == count:
                return found
            self._fill()

    def _fill(self) -> None:
        size = self._socket.recv_into(self._buffer)
        if size == 0:
            raise ConnectionError("it closed the connection")
        self._parser.feed(self._buffer, 0, size)
        self.bytes += size


class _FromRedis:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.bytes = 0

    def take(self, count: int) -> list[Any]:
        return [self._one() for _ in range(count)]

    def _one(self) -> Any:
        reply = read_reply(self._connection)
        self.bytes += sum(len(part) for part in reply if isinstance(part, bytes)) if isinstance(reply, list) else 0
        return reply


def _replies(connection: Any) -> _FromHiredis | _FromRedis:
    try:
        from hiredis import Reader
    except ImportError:
        return _FromRedis(connection)
    return _FromHiredis(connection, Reader(notEnoughData=_PARTIAL, replyError=error_of_reply))
