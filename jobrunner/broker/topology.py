"""URLs that name more than one server: primaries behind Sentinel, and clusters.

    redis+sentinel://[user:password@]host:port,host:port/master[/database][?sentinel_username=…&sentinel_password=…]
    redis+cluster://[user:password@]host:port,host:port

With `rediss` in place of `redis` everything is asked over TLS, the sentinels too. Further parameters of the query are
those of redis-py's URLs, for every connection. User and password are those of the servers; sentinels have their own.
"""

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlencode

from jobrunner.errors import InvalidOption

Address = tuple[str, int]
_FORM = re.compile(r"(rediss?)\+(sentinel|cluster)://(?:([^@/?]*)@)?([^@/?]*)(?:/([^?]*))?(?:\?(.*))?")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:,\[\]\s]+)(?::(\d{1,5}))?")
_PORTS = {"sentinel": 26379, "cluster": 6379}
_SENTINELS_OWN = ("sentinel_username", "sentinel_password")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The parts of such a URL. `hosts` are the sentinels, or some nodes of the cluster."""

    kind: str
    scheme: str
    user: str = field(repr=False)
    """As it is in the URL, with its password, not decoded."""
    hosts: tuple[Address, ...]
    master: str = ""
    database: int = 0
    query: tuple[tuple[str, str], ...] = field(repr=False, default=())
    sentinel_user: str = field(repr=False, default="")

    def url_of(self, address: Address) -> str:
        """The URL of one server that holds data."""
        path = f"/{self.database}" if self.database else ""
        return f"{self.scheme}://{_with_at(self.user)}{_written(address)}{path}{self._options()}"

    def url_of_sentinel(self, address: Address) -> str:
        """The URL of one sentinel."""
        return f"{self.scheme}://{_with_at(self.sentinel_user)}{_written(address)}{self._options()}"

    def _options(self) -> str:
        return f"?{urlencode(self.query)}" if self.query else ""


def topology_of(url: str) -> Topology | None:
    """The parts of the URL; None for that of a single server. Raises InvalidOption for an invalid URL."""
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
        sentinel_user=f"{quote(own[0], safe='')}:{quote(own[1], safe='')}" if any(own) else "",
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


def _with_at(user: str) -> str:
    return f"{user}@" if user else ""


def _written(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
