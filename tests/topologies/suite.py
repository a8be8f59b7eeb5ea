"""The server of the whole suite, when it runs behind Sentinel or on a cluster: `pytest --server sentinel`."""

from typing import Any

import redis

from tests.support.server import Server
from tests.topologies.servers import Behind, Spread

_CALM_MS = 60_000
"""Tests stop servers for a while; that is no failover."""


class Sentinel(Server):
    """A primary with a replica, reached through three sentinels."""

    def __init__(self) -> None:
        self._behind = Behind(down_after_ms=_CALM_MS, unixsocket="s")
        self.folder = self._behind.folder
        primary = self._behind.primary()
        self.socket, self.pid = primary.folder / "s", primary.pid
        self.url = self._behind.url

    def kill(self) -> None:
        """Ends them all."""
        self._behind.remove()


class Cluster(Server):
    """Three primaries. `socket` is that of the first one."""

    def __init__(self) -> None:
        self._spread = Spread(node_timeout_ms=_CALM_MS, unixsocket="s")
        self.folder = self._spread.folder
        self.socket, self.pid = self._spread.nodes[0].folder / "s", self._spread.nodes[0].pid
        self.url = self._spread.url

    def connect(self, **options: Any) -> redis.Redis:
        """A plain client of the cluster, with the face of one of a server."""
        made: Any = _AsOne(host="127.0.0.1", port=self._spread.nodes[0].port, protocol=2, **options)
        return made  # type: ignore[no-any-return]

    def kill(self) -> None:
        """Ends them all."""
        self._spread.remove()


class _AsOne(redis.RedisCluster):
    """A cluster with the interface of a single server."""

    def info(self, *sections: str) -> dict[str, Any]:  # type: ignore[override]
        told = super().info(*sections, target_nodes=redis.RedisCluster.PRIMARIES).values()
        whole: dict[str, Any] = {}
        for one in told:
            whole |= {name: said + whole.get(name, 0) if type(said) is int else said for name, said in one.items()}
        return whole

    def keys(self, pattern: Any = "*", **options: Any) -> list[bytes]:
        found: list[bytes] = super().keys(pattern, target_nodes=redis.RedisCluster.PRIMARIES, **options)
        return found
