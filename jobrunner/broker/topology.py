"""URLs that name more than one server: primaries behind Sentinel, and clusters.

    redis+sentinel://[user:password@]host:port,host:port/master[/database][?sentinel_username=…&sentinel_password=…]
    redis+cluster://[user:password@]host:port,host:port

With `rediss` instead of `redis` all connections use TLS, those to sentinels too. Further parameters of the query are
those of redis-py's URLs, for every connection. User and password, in the URL or by the options of credentials.py, are
for the servers; sentinels have their own: `sentinel_username`, and `sentinel_password` or `sentinel_password_file`.

The sentinels name the primary (https://redis.io/docs/reference/sentinel-clients/). Invariant: nothing is sent to a
server before it has replied that it is a primary; an idle connection is used again only while the sentinels, asked at
most a second ago, name its server.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

import msgspec

from jobrunner.broker.connection import CREDENTIAL_OPTIONS, PASSWORD_FILE, ConnectionOptions
from jobrunner.broker.open_connection import open_connection
from jobrunner.broker.redis_errors import (
    AuthenticationError,
    NoPermissionError,
    RedisConnectionError,
    RedisError,
    RedisTimeoutError,
    ResponseError,
    TlsError,
)
from jobrunner.clock import monotonic
from jobrunner.errors import InvalidOption
from jobrunner.formatting import listed

Address = tuple[str, int]
_FORM = re.compile(r"(rediss?)\+(sentinel|cluster)://(?:([^@/?]*)@)?([^@/?]*)(?:/([^?]*))?(?:\?(.*))?")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:,\[\]\s]+)(?::(\d{1,5}))?")
_PORTS = {"sentinel": 26379, "cluster": 6379}
_SENTINELS_OWN = ("sentinel_username", "sentinel_password", "sentinel_password_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The parts of a URL that names more than one server. `hosts` are the sentinels, or some nodes of the cluster."""

    kind: str
    scheme: str
    user: str = field(repr=False)
    """User and password as in the URL, not decoded."""
    hosts: tuple[Address, ...]
    master: str = ""
    database: int = 0
    query: tuple[tuple[str, str], ...] = field(repr=False, default=())
    sentinel_user: str = field(repr=False, default="")
    sentinel_password_file: str = ""

    def url_of(self, address: Address) -> str:
        """The URL of one server that holds data."""
        path = f"/{self.database}" if self.database else ""
        return f"{self.scheme}://{_with_at(self.user)}{_written(address)}{path}{_options(self.query)}"

    def url_of_sentinel(self, address: Address) -> str:
        """The URL of one sentinel."""
        query = [(name, value) for name, value in self.query if name not in CREDENTIAL_OPTIONS]
        if self.sentinel_password_file:
            query.append((PASSWORD_FILE, self.sentinel_password_file))
        return f"{self.scheme}://{_with_at(self.sentinel_user)}{_written(address)}{_options(query)}"


def topology_of(url: str) -> Topology | None:
    """The parts of the URL; None for the URL of a single server. Raises InvalidOption for an invalid URL."""
    scheme = url.partition("://")[0]
    if scheme.partition("+")[2] not in _PORTS or scheme.partition("+")[0] not in ("redis", "rediss"):
        return None
    found = _FORM.fullmatch(url)
    if found is None:
        raise InvalidOption(f"URL of {scheme}:// cannot be understood: write {_example(scheme)}")
    tls, kind, user, hosts, path, query = found.groups("")
    options = dict(parse_qsl(query, keep_blank_values=True))
    own = [options.pop(name, "") for name in _SENTINELS_OWN]
    master, database = _path(scheme, kind, path)
    return Topology(
        kind=kind,
        scheme=tls,
        user=user,
        hosts=tuple(_address(scheme, kind, host) for host in hosts.split(",")),
        master=master,
        database=database,
        query=tuple(options.items()),
        sentinel_user=f"{quote(own[0], safe='')}:{quote(own[1], safe='')}" if any(own[:2]) else "",
        sentinel_password_file=own[2],
    )


def _path(scheme: str, kind: str, path: str) -> tuple[str, int]:
    if kind == "cluster":
        if path.strip("/") not in ("", "0"):
            raise InvalidOption(f"URL of {scheme}:// names database {path!r}: a cluster has only database 0")
        return "", 0
    master, _, database = path.strip("/").partition("/")
    if not master or not (database.isdigit() or not database):
        raise InvalidOption(f"URL of {scheme}:// names no master, or no number of a database: write {_example(scheme)}")
    return unquote(master), int(database or 0)


def _address(scheme: str, kind: str, host: str) -> Address:
    found = _HOST.fullmatch(host.strip())
    if found is None or not 0 < int(found[2] or 1) < 1 << 16:
        raise InvalidOption(f"URL of {scheme}:// names a host that cannot be understood: write {_example(scheme)}")
    return found[1].strip("[]"), int(found[2] or _PORTS[kind])


def _example(scheme: str) -> str:
    return f"{scheme}://host:26379,host:26379/master" if "sentinel" in scheme else f"{scheme}://host:6379,host:6379"


def _options(query: Sequence[tuple[str, str]]) -> str:
    return f"?{urlencode(query)}" if query else ""


def _with_at(user: str) -> str:
    return f"{user}@" if user else ""


def _written(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_RETRY_TIMEOUT_S = 1.0
_TRUSTED_S = 1.0
_NAMED = 5
_LEFT_OUT_S = 10.0
_PRIMARY = (b"master", "master")


class Sentinels:
    """The sentinels of one primary.

    `primary` asks all of them, as a sentinel may not know of a failover yet, and the newest epoch counts. A sentinel
    that did not answer is left out for ten seconds, unless none answers.
    """

    def __init__(self, topology: Topology, options: ConnectionOptions) -> None:
        self._topology = topology
        timeout_s = min(options.connect_timeout_s, _RETRY_TIMEOUT_S)
        self._options = msgspec.structs.replace(options, timeout_s=timeout_s, connect_timeout_s=timeout_s)
        self._silent: dict[Address, float] = {}
        self._named: Address | None = None
        self._asked_at = 0.0

    def primary(self) -> Address:
        """The address of the primary. Raises RedisConnectionError when no sentinel knows it, TlsError for an invalid
        certificate, ResponseError for a server that is no sentinel."""
        hosts, now = self._topology.hosts, monotonic()
        known, failure = self._ask_all([one for one in hosts if self._silent.get(one, 0.0) < now])
        if not known:
            known, failure = self._ask_all(hosts)
        if not known and failure is not None:
            raise failure if isinstance(failure, TlsError) else RedisConnectionError(_no_answer(failure)) from failure
        found = [state for state in known if state.get("name") == self._topology.master]
        newest = max((int(state["config-epoch"]) for state in found), default=0)
        for state in found:
            if int(state["config-epoch"]) == newest and _is_up(state["flags"].split(",")):
                # Lower case, as a connection has the host of its URL: else none would seem to lead to the primary.
                self._named, self._asked_at = (state["ip"].lower(), int(state["port"])), monotonic()
                return self._named
        raise RedisConnectionError(self._unknown(known))

    @property
    def is_due(self) -> bool:
        """Whether the last answer of the sentinels is too old to be trusted."""
        return monotonic() - self._asked_at > _TRUSTED_S

    def name_another(self, connection: Any) -> bool:
        """Whether the sentinels name another server than the connection's.

        When no sentinel answers, the last answer counts: a queue does not end with its sentinels.
        """
        if self.is_due:
            self._asked_at = monotonic()
            with suppress(RedisError, OSError):
                self.primary()
        return self._named != (connection.host, connection.port)

    @staticmethod
    def check_primary(connection: Any) -> None:
        """Asks a server for its role, as a sentinel's answer may be old. Raises RedisConnectionError for no primary."""
        try:
            role = connection.ask("ROLE")
        except ResponseError:  # this user may not send ROLE; a replica refuses writes all the same
            return
        _check(connection, role)

    @staticmethod
    async def check_primary_async(connection: Any) -> None:
        """`check_primary` for asyncio."""
        try:
            role = await connection.ask("ROLE")
        except ResponseError:
            return
        _check(connection, role)

    def _ask_all(self, hosts: Iterable[Address]) -> tuple[list[dict[str, str]], Exception | None]:
        found: list[dict[str, str]] = []
        failure: Exception | None = None
        for address in hosts:
            connection = open_connection(self._topology.url_of_sentinel(address), self._options)
            try:
                connection.connect()
                primaries = [_named_values(said) for said in connection.ask("SENTINEL", "MASTERS")]
                self._silent.pop(address, None)
            except NoPermissionError:
                raise
            except ResponseError as error:
                raise ResponseError(f"{_written(address)} is no sentinel (port 26379 by default): {error}") from error
            except (RedisConnectionError, RedisTimeoutError, OSError) as error:
                self._silent[address], failure = monotonic() + _LEFT_OUT_S, error
                continue
            finally:
                connection.disconnect()
            found += primaries
        return found, failure

    def _unknown(self, known: Iterable[Mapping[str, str]]) -> str:
        wanted, names = self._topology.master, sorted({state.get("name", "") for state in known})
        if wanted in names:
            return f"the sentinels say that primary {wanted!r} is down; are enough servers and sentinels up?"
        return f"the sentinels know no primary {wanted!r}; they know {listed(names, _NAMED) or 'none'}"


def _no_answer(failure: Exception) -> str:
    remedy = "; give sentinel_username and sentinel_password" if isinstance(failure, AuthenticationError) else ""
    return f"no sentinel answers: {failure}{remedy}"


def _named_values(said: list[bytes]) -> dict[str, str]:
    words = [word.decode("utf-8", "replace") for word in said]
    return dict(zip(words[::2], words[1::2], strict=False))


def _is_up(flags: list[str]) -> bool:
    return "master" in flags and "s_down" not in flags and "o_down" not in flags


def _check(connection: Any, role: Any) -> None:
    if role[0] not in _PRIMARY:
        raise RedisConnectionError(f"{connection.host}:{connection.port} is no primary any more")
