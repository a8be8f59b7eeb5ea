"""From a URL to connections: standalone, TLS, unix socket, embedded.

redis-py parses URLs and speaks the protocol; retrying is switched off in it, because whether a call may be sent twice
is known to the call alone (redis-py 8 would repeat every write). Pooled connections time out reads; blocking reads
get a connection of their own without that limit.
"""

import asyncio
import os
import re
from collections import deque
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis
from redis import asyncio as redis_asyncio
from redis.backoff import NoBackoff

from jobrunner.broker.embedded import EmbeddedServer
from jobrunner.errors import InvalidOption

_LATER = ("redis+sentinel", "redis+cluster")
_PLAIN = ("redis", "rediss", "unix")


class Endpoint:
    """Where the server is, and how to open a connection to it."""

    def __init__(self, url: str, *, timeout_s: float = 5.0, client_name: str = "jobrunner") -> None:
        self.url = url
        self._folder = _embedded_folder(url)
        self.embedded = None if self._folder is None else EmbeddedServer(self._folder)
        self._options: dict[str, Any] = {
            "protocol": 2,
            "client_name": client_name,
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "health_check_interval": 0,
        }
        if self.embedded is None:
            _check_url(url)

    def _url(self) -> str:
        if self.embedded is None:
            return self.url
        return f"unix://{self.embedded.ensure()}"

    def open(self, *, blocking: bool = False) -> Any:
        """An unconnected connection; `blocking` ones never time out while they wait for a reply."""
        options = self._options | {"retry": redis.retry.Retry(NoBackoff(), 0)}
        if blocking:
            options["socket_timeout"] = None
        pool = redis.ConnectionPool.from_url(self._url(), **options)
        return pool.make_connection()

    async def open_async(self, *, blocking: bool = False) -> Any:
        """The same for asyncio."""
        url = await asyncio.to_thread(self._url)
        options = self._options | {"retry": redis_asyncio.retry.Retry(NoBackoff(), 0)}
        if blocking:
            options["socket_timeout"] = None
        pool: Any = redis_asyncio.ConnectionPool.from_url(url, **options)
        return pool.make_connection()

    def shared_url(self) -> str:
        """The URL for a process started by this one, whatever its working directory."""
        return self.url if self._folder is None else f"embedded://{self._folder}"

    def release(self) -> None:
        """Leaves the embedded server, which stops when this was its last user."""
        if self.embedded is not None:
            self.embedded.release()

    def __str__(self) -> str:
        """The URL without its password."""
        parts = urlsplit(self.url)
        if parts.password is None:
            return self.url
        return self.url.replace(f":{parts.password}@", ":***@", 1)


class Idle:
    """Connections at rest, of one process. A fork starts with none: a socket must not be shared."""

    def __init__(self) -> None:
        self._resting: deque[Any] = deque()
        self._pid = os.getpid()

    def __len__(self) -> int:
        return len(self._resting) if self._pid == os.getpid() else 0

    def take(self) -> Any | None:
        """The connection used last, or None."""
        if self._pid != os.getpid():
            self._resting, self._pid = deque(), os.getpid()
        try:
            return self._resting.pop()
        except IndexError:
            return None

    def rest(self, connection: Any) -> None:
        """Puts a connection back after a complete exchange."""
        self._resting.append(connection)

    def take_all(self) -> list[Any]:
        """Empties it."""
        taken = []
        while (connection := self.take()) is not None:
            taken.append(connection)
        return taken


def has_died(connection: Any) -> bool:
    """Whether the server ended a connection that rested, or left something unread on it."""
    try:
        return bool(connection.can_read(timeout=0))
    except (redis.ConnectionError, redis.TimeoutError, OSError):
        return True


async def has_died_async(connection: Any) -> bool:
    """The same for asyncio."""
    for _ in range(2):
        await asyncio.sleep(0)  # lets a loop that did not run meanwhile hear of the end
    look = getattr(connection, "can_read", None) or connection.can_read_destructive  # its name before redis-py 8
    try:
        return bool(await look())
    except (redis.ConnectionError, redis.TimeoutError, OSError):
        return True


def _embedded_folder(url: str) -> Path | None:
    if not url.startswith("embedded:"):
        return None
    parts = urlsplit(url)
    if parts.netloc or not url.startswith("embedded://"):
        raise InvalidOption(f"URL {url!r}: write embedded:///absolute/folder or embedded:// for ./.jobrunner")
    return Path(parts.path or ".jobrunner").absolute()


def _check_url(url: str) -> None:
    scheme = url.split("://")[0] if "://" in url else ""
    if scheme in _LATER:
        raise InvalidOption(f"URL scheme {scheme!r} is not supported by this version; use redis://, rediss:// or unix://")
    if scheme not in _PLAIN:
        shown = re.sub(r":[^:/@]*@", ":***@", url)
        shown = shown if len(shown) < 80 else shown[:77] + "..."
        raise InvalidOption(
            f"URL {shown!r} is not one of redis://host:port/db, rediss://…, unix:///path, embedded:///folder"
        )
    try:
        redis.ConnectionPool.from_url(url)
    except ValueError as error:
        raise InvalidOption(f"URL of the server cannot be used: {error}") from error
