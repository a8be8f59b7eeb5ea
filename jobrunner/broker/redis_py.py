"""Connections of redis-py: those with TLS, with options in their URL, and those of coroutines.

Its retrying is switched off, as only a call knows whether it may be sent twice (redis-py 8 would repeat every write).
Its errors become those of `redis_errors.py`, which the drivers distinguish.
"""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from ssl import SSLCertVerificationError, SSLError
from typing import Any, TypeVar

import redis
from redis import asyncio as redis_asyncio
from redis import credentials as theirs_credentials
from redis import exceptions as theirs
from redis.backoff import NoBackoff

from jobrunner.broker import redis_errors as ours
from jobrunner.broker import tls_files
from jobrunner.broker.connection import Check, ConnectionOptions, Credentials
from jobrunner.broker.resp import pieces
from jobrunner.errors import InvalidOption

_OURS: dict[type[Exception], type[ours.RedisError]] = {
    theirs.AskError: ours.AskError,
    theirs.AuthenticationError: ours.AuthenticationError,
    theirs.BusyLoadingError: ours.BusyLoadingError,
    theirs.ClusterDownError: ours.ClusterDownError,
    theirs.ConnectionError: ours.RedisConnectionError,
    theirs.InvalidResponse: ours.InvalidResponse,
    theirs.MasterDownError: ours.ReadOnlyError,
    theirs.MovedError: ours.MovedError,
    theirs.NoPermissionError: ours.NoPermissionError,
    theirs.NoScriptError: ours.NoScriptError,
    theirs.OutOfMemoryError: ours.OutOfMemoryError,
    theirs.ReadOnlyError: ours.ReadOnlyError,
    theirs.RedisError: ours.RedisError,
    theirs.ResponseError: ours.ResponseError,
    theirs.TimeoutError: ours.RedisTimeoutError,
    theirs.TryAgainError: ours.TryAgainError,
}
_REPLIES = (theirs.AuthenticationError, theirs.BusyLoadingError, theirs.ResponseError)
"""Errors that are replies like any other, behind which more may come: redis-py would close the connection for the first
two, and the replies behind them were lost."""
_OWN = {"protocol": 2, "decode_responses": False, "health_check_interval": 0, "retry_on_timeout": False}
"""Options that a URL cannot change: replies are read as bytes in RESP 2, and only calls know what may be sent again."""
_MAINTENANCE = (
    "maint_notifications_config", "maint_notifications_pool_handler", "oss_cluster_maint_notifications_handler",
)  # fmt: skip
"""What a pool of redis-py 8 adds for servers that announce their maintenance, in RESP 3 only: in RESP 2 and without
hiredis its connections refuse it."""
_CERTIFICATE_REFUSED = re.compile("_ALERT_.*(UNKNOWN_CA|CERTIFICATE)")
"""Alerts of a server about the certificate of its client."""
_WITH_PLACE = (ours.RedisConnectionError, ours.RedisTimeoutError)
_UNNAMED = ("BUSY ", "MISCONF ", "NOREPLICAS ")
"""Prefixes of replies for which redis-py has no class of their own."""
AsyncCheck = Callable[[Any], Awaitable[None]]
T = TypeVar("T")


def is_understood(url: str) -> bool:
    """Whether redis-py can read a URL. Its error is not raised on: the text may name a part that is a secret."""
    try:
        pool = _own(redis.ConnectionPool.from_url(url))
        pool.make_connection()
    except (TypeError, ValueError, theirs.RedisError):  # an option that it does not know, or a value
        return False
    return tls_files.are_usable(_tls_options(pool))


def open_connection(
    url: str, options: ConnectionOptions, check: Check | None = None, credentials: Credentials | None = None
) -> "RedisPyConnection":
    """An unconnected connection."""
    pool = _own(redis.ConnectionPool.from_url(url, **_arguments(options, credentials)))
    pool.connection_kwargs["retry"] = redis.retry.Retry(NoBackoff(), 0)
    return RedisPyConnection(pool.make_connection(), check, _tls_options(pool))


def open_async(
    url: str, options: ConnectionOptions, check: AsyncCheck | None = None, credentials: Credentials | None = None
) -> "AsyncRedisPyConnection":
    """The same for asyncio."""
    pool = _own(redis_asyncio.ConnectionPool.from_url(url, **_arguments(options, credentials)))
    pool.connection_kwargs["retry"] = redis_asyncio.retry.Retry(NoBackoff(), 0)
    if options.timeout_s is None:
        pool.connection_kwargs["socket_timeout"] = None
    try:
        connection = pool.make_connection()
    except TypeError as error:  # of redis-py 6.0 for `ssl_password`, which its connections for threads know
        raise InvalidOption(f"this redis-py does not know all options of the URL for asyncio: {error}") from error
    return AsyncRedisPyConnection(connection, check, _tls_options(pool))


def _own(pool: Any) -> Any:
    """The pool, whose connections have our options."""
    pool.connection_kwargs |= _OWN
    for name in _MAINTENANCE:
        pool.connection_kwargs.pop(name, None)
    return pool


def _tls_options(pool: Any) -> dict[str, Any]:
    return {name: value for name, value in pool.connection_kwargs.items() if name.startswith("ssl_")}


def _arguments(options: ConnectionOptions, credentials: Credentials | None) -> dict[str, Any]:
    return {
        "client_name": options.client_name,
        "socket_timeout": options.timeout_s,
        "socket_connect_timeout": options.connect_timeout_s,
        "credential_provider": None if credentials is None else _CredentialsForRedisPy(credentials),
    }


class _CredentialsForRedisPy(theirs_credentials.CredentialProvider):
    """Credentials as redis-py asks for them."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def get_credentials(self) -> Any:
        """Raises an error of redis-py, as it closes the connection for no other."""
        try:
            return self._credentials.get_credentials()
        except ours.RedisConnectionError as error:
            raise theirs.ConnectionError(str(error)) from error

    async def get_credentials_async(self) -> Any:
        """The same, without a wait of the event loop."""
        if self._credentials.may_block:
            return await asyncio.to_thread(self.get_credentials)
        return self.get_credentials()


def translated(error: theirs.RedisError, place: str = "") -> ours.RedisError:
    """The error of this package for one of redis-py. `place` is the address of the server: redis-py does not name it
    when the server closes a connection, and the caller may have a URL of several servers."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, SSLCertVerificationError):
        reason = (cause.verify_message or str(cause)).rstrip(".")
        return ours.TlsError(f"{reason}; mend the server's certificate, or see ssl_ca_certs of the URL")
    if isinstance(cause, SSLError) and _CERTIFICATE_REFUSED.search(cause.reason or ""):
        return ours.TlsError(f"it takes no certificate of this client: {cause}; see ssl_certfile of the URL")
    _forget_arguments(error)
    if type(error) is theirs.ResponseError and str(error).startswith(_UNNAMED):
        return ours.error_of_reply(str(error))
    kind = next(kind for kind in type(error).__mro__ if kind in _OURS)
    ours_kind, text = _OURS[kind], str(error)
    if ours_kind in _WITH_PLACE and place and place not in text:
        text = f"{text.rstrip('.')} ({place})"
    return ours_kind(text)


def _forget_arguments(link: BaseException | None) -> None:
    """Cuts the texts of an error and of its causes, which a traceback prints, too."""
    while link is not None:
        link.args = tuple(ours.without_arguments(one) if isinstance(one, str) else one for one in link.args)
        link = link.__cause__ or link.__context__


def _failed_connect(error: theirs.RedisError, place: str, tls: dict[str, Any]) -> ours.RedisError:
    """The error of a connect, which reads the files of the options for TLS each time: they may be gone by now, or in
    the middle of being replaced."""
    cause = error.__cause__ or error.__context__
    if tls and isinstance(cause, OSError) and not isinstance(cause, (ConnectionError, TimeoutError)):
        found = translated(error, place)
        if isinstance(found, ours.TlsError) or not (fault := tls_files.file_fault(tls)):
            return found
        return ours.TlsError(f"{fault}; mend that file, or the URL")
    return translated(error, place)


@contextmanager
def _translation(place: str) -> Iterator[None]:
    try:
        yield
    except theirs.RedisError as error:
        raise translated(error, place) from error


def _place_of(connection: Any) -> str:
    path, host = getattr(connection, "path", ""), getattr(connection, "host", "")
    return path or (f"{host}:{getattr(connection, 'port', 0)}" if host else "")


class RedisPyConnection:
    """A blocking one. See connection.Connection."""

    def __init__(self, connection: Any, check: Check | None, tls: dict[str, Any]) -> None:
        self._connection = connection
        self._tls = tls
        self._check = check
        self.host, self.port = getattr(connection, "host", ""), getattr(connection, "port", 0)
        self._place = _place_of(connection)

    @property
    def socket(self) -> socket.socket:
        """Where its bytes come from. Raises RedisConnectionError when it is not connected."""
        found: socket.socket | None = self._connection._sock  # noqa: SLF001  redis-py waits for one at a time
        if found is None:
            raise ours.RedisConnectionError("it is not connected")
        return found

    def connect(self) -> None:
        """Connects unless it is connected."""
        try:
            self._connection.connect()
        except theirs.RedisError as error:
            raise _failed_connect(error, self._place, self._tls) from error
        try:
            if self._check is not None:
                self._check(self)
        except BaseException:
            self.disconnect()
            raise

    def disconnect(self) -> None:
        """Closes it."""
        self._connection.disconnect()

    def send(self, packed: bytes) -> None:
        """Sends commands that are packed already."""
        with _translation(self._place):
            self._connection.send_packed_command(pieces(packed), check_health=False)

    def ask(self, *words: bytes | str | float) -> Any:
        """Sends one command and returns its reply. Raises ResponseError for an error reply."""
        with _translation(self._place):
            self._connection.send_command(*words)
            return self._connection.read_response()

    def can_read(self, timeout: float = 0) -> bool:
        """Whether there is something to read, or comes within so many seconds."""
        with _translation(self._place):
            return bool(self._connection.can_read(timeout=timeout))

    def read_response(self) -> Any:
        """The next reply. Raises ResponseError for an error reply."""
        try:
            return self._connection.read_response(disconnect_on_error=False)
        except _REPLIES as error:
            raise translated(error, self._place) from error
        except theirs.RedisError as error:
            self.disconnect()
            raise translated(error, self._place) from error
        except BaseException:
            self.disconnect()
            raise


async def _cancellable(asked: Awaitable[T]) -> T:
    """Ends with the cancellation that came meanwhile. Before Python 3.12 `asyncio.wait_for`, in which redis-py sends,
    swallows one that comes just as it ends (bpo-37658): a wait with a time limit would go on without it."""
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    answer = await asked
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
    return answer


class AsyncRedisPyConnection:
    """One of asyncio."""

    def __init__(self, connection: Any, check: AsyncCheck | None, tls: dict[str, Any]) -> None:
        self._connection = connection
        self._tls = tls
        self._check = check
        self._look = getattr(connection, "can_read", None) or connection.can_read_destructive  # before redis-py 8
        self.host, self.port = getattr(connection, "host", ""), getattr(connection, "port", 0)
        self._place = _place_of(connection)

    async def connect(self) -> None:
        """Connects unless it is connected."""
        try:
            await _cancellable(self._connection.connect())
        except theirs.RedisError as error:
            # What a server says to a greeting is wrapped in a ConnectionError here.
            _forget_arguments(error)
            cause = error.__cause__
            said = cause if isinstance(cause, (theirs.AuthenticationError, theirs.ResponseError)) else error
            raise _failed_connect(said, self._place, self._tls) from error
        except BaseException:  # redis-py leaves it open when its caller is cancelled while it greets the server
            await self.disconnect(nowait=True)
            raise
        try:
            if self._check is not None:
                await self._check(self)
        except BaseException:
            await self.disconnect(nowait=True)
            raise

    async def disconnect(self, nowait: bool = False) -> None:
        """Closes it. `nowait`: does not wait until the other end has heard of it; else as long as for a connect."""
        with suppress(theirs.TimeoutError):  # closed at this end all the same
            await self._connection.disconnect(nowait=nowait)

    async def send(self, packed: bytes) -> None:
        """Sends commands that are packed already."""
        try:
            for piece in pieces(packed):  # redis-py has one time limit for all that it is given
                await _cancellable(self._connection.send_packed_command([piece], check_health=False))
        except theirs.RedisError as error:
            raise translated(error, self._place) from error
        except asyncio.CancelledError:  # a part may have been sent
            await self.disconnect(nowait=True)
            raise

    async def ask(self, *words: bytes | str | float) -> Any:
        """Sends one command and returns its reply. Raises ResponseError for an error reply."""
        with _translation(self._place):
            await _cancellable(self._connection.send_command(*words))
            return await self._connection.read_response()

    async def can_read(self) -> bool:
        """Whether there is something to read."""
        with _translation(self._place):
            return bool(await self._look())

    async def read_response(self) -> Any:
        """The next reply. Raises ResponseError for an error reply."""
        try:
            return await self._connection.read_response(disconnect_on_error=False)
        except _REPLIES as error:
            raise translated(error, self._place) from error
        except theirs.RedisError as error:
            await self.disconnect(nowait=True)
            raise translated(error, self._place) from error
        except BaseException:
            await self.disconnect(nowait=True)
            raise
