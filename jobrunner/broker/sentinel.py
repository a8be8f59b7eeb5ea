"""Finding the primary through Sentinel, and making sure that it is one (https://redis.io/docs/reference/sentinel-clients/).

Invariant: nothing is sent to a server before it has replied that it is a primary; an idle connection is used again only
while the sentinels, asked at most a second ago, name its server.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import redis
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from jobrunner.broker.topology import Address, Topology
from jobrunner.clock import monotonic

_RETRY_TIMEOUT_S = 1.0
_TRUSTED_S = 1.0
_LEFT_OUT_S = 10.0
_PRIMARY = (b"master", "master")


class Sentinels:
    """The sentinels of one primary.

    All are asked, as one may not have heard of a failover yet, and the newest epoch counts. One that did not answer is
    left out for ten seconds, unless none answers.
    """

    def __init__(self, topology: Topology, options: dict[str, Any]) -> None:
        self._topology = topology
        timeout_s = min(options["socket_timeout"], _RETRY_TIMEOUT_S)
        self._options = options | {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
        self._silent: dict[Address, float] = {}
        self._named: Address | None = None
        self._asked_at = 0.0

    def primary(self) -> Address:
        """Where the primary is. Raises redis-py's ConnectionError when no sentinel knows; ResponseError: it is none."""
        hosts, now = self._topology.hosts, monotonic()
        found, failure = self._ask_all([one for one in hosts if self._silent.get(one, 0.0) < now])
        if not found:
            found, failure = self._ask_all(hosts)
        newest = max((state["config-epoch"] for state in found), default=0)
        for state in found:
            if state["config-epoch"] == newest and state["is_master"] and not (state["is_sdown"] or state["is_odown"]):
                self._named, self._asked_at = (state["ip"], int(state["port"])), monotonic()
                return self._named
        raise RedisConnectionError(self._unknown(failure)) from failure

    @property
    def is_due(self) -> bool:
        """Whether their last reply is too old to be trusted."""
        return monotonic() - self._asked_at > _TRUSTED_S

    def name_another(self, connection: Any) -> bool:
        """Whether they name another server than the one a connection leads to.

        When none of them answers it is used on: a queue does not end with its sentinels.
        """
        if self.is_due:
            self._asked_at = monotonic()
            with suppress(RedisError, OSError):
                self.primary()
        return self._named != (connection.host, connection.port)

    def _ask_all(self, hosts: Iterable[Address]) -> tuple[list[Any], Exception | None]:
        found: list[Any] = []
        failure: Exception | None = None
        for address in hosts:
            client: Any = redis.Redis.from_url(self._topology.url_of_sentinel(address), **self._options)
            try:
                state = client.sentinel_masters().get(self._topology.master)
                self._silent.pop(address, None)
            except (RedisConnectionError, redis.TimeoutError, OSError) as error:
                self._silent[address], failure = monotonic() + _LEFT_OUT_S, error
                continue
            finally:
                client.close()
            if state is not None:
                found.append(state)
        return found, failure

    def _unknown(self, failure: Exception | None) -> str:
        is_refused = isinstance(failure, AuthenticationError)
        remedy = "give sentinel_username and sentinel_password" if is_refused else "are enough of them up?"
        return f"no sentinel names a primary {self._topology.master!r} that is up; {remedy}"


def check_primary(connection: Any) -> None:
    """Greets a server and asks for its role, as what a sentinel says may be old. Raises ConnectionError."""
    connection.on_connect()
    connection.send_command("ROLE")
    try:
        role = connection.read_response()
    except ResponseError:  # this user may not ask; a replica refuses writes all the same
        return
    _check(connection, role)


async def check_primary_async(connection: Any) -> None:
    """The same for asyncio."""
    await connection.on_connect()
    await connection.send_command("ROLE")
    try:
        role = await connection.read_response()
    except ResponseError:
        return
    _check(connection, role)


def _check(connection: Any, role: Any) -> None:
    if role[0] not in _PRIMARY:
        raise RedisConnectionError(f"{connection.host}:{connection.port} is no primary any more")
