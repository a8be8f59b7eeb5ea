"""Which node of a cluster serves which slot (https://redis.io/docs/reference/cluster-spec/).

The map is the last reply of some node, with the redirections since then. It may be out of date at any time: the node
that gets a command decides.
"""

import threading
from collections.abc import Callable
from typing import Any

from jobrunner.broker.redis_errors import AuthenticationError, RedisConnectionError, RedisError, ResponseError, TlsError
from jobrunner.broker.slots import SLOTS, slot_of
from jobrunner.broker.topology import Address, Topology
from jobrunner.forks import call_in_forks

_LASTING = (AuthenticationError, ResponseError, TlsError)
"""Errors that a retry does not cure."""


class Cluster:
    """The map of slots, shared by the connections of one endpoint; any thread may read and renew it."""

    def __init__(self, topology: Topology, open_at: Callable[[str], Any]) -> None:
        self._topology = topology
        self._open_at = open_at
        self._map: list[Address | None] = []
        self._nodes: tuple[Address, ...] = ()
        self._failing: set[Address] = set()
        self._renewing = threading.Lock()
        self.is_stale = True
        call_in_forks(self._begin_in_fork)

    def url_of(self, address: Address) -> str:
        """The URL of one node."""
        return self._topology.url_of(address)

    def node_of(self, slot: int) -> Address:
        """The node that serves a slot. Raises ConnectionError when none is known to."""
        found = self._map[slot] if self._map else None
        if found is None:
            self.is_stale = True
            raise RedisConnectionError(f"no node of the cluster serves slot {slot}")
        return found

    def node_for(self, key: bytes) -> Address:
        """The node that serves a key's slot; asks the cluster first when the map is stale."""
        if self.is_stale:
            self.renew()
        return self.node_of(slot_of(key))

    def last_known(self, key: bytes) -> Address | None:
        """The node that served a key's slot when the map was last renewed; sends nothing."""
        return self._map[slot_of(key)] if self._map else None

    def primaries(self) -> tuple[Address, ...]:
        """The nodes that serve slots; some may have ceased to, since the map was last renewed."""
        return self._nodes

    def note(self, slot: int, address: Address) -> None:
        """Notes a redirection: a slot is at that node now, which may be one that joined since."""
        self._map[slot] = address
        if address not in self._nodes:
            self._nodes = (*self._nodes, address)

    def answered(self, address: Address) -> None:
        """Notes that a node took part in an exchange."""
        self._failing.discard(address)

    def failed(self, address: Address) -> None:
        """Notes that a node did not answer, or is cut off from the others: the map may have changed, and this node is
        asked for it last."""
        self._failing.add(address)
        self.is_stale = True

    def refresh(self) -> None:
        """Renews a map that is stale. One thread asks at a time; the others go on with the map as it is, where there
        is one: a node that does not answer must not hold up what goes to the others."""
        if not self.is_stale or not self._renewing.acquire(blocking=not self._map):
            return
        try:
            if self.is_stale:
                self.renew()
        finally:
            self._renewing.release()

    def _begin_in_fork(self) -> None:
        """Frees the lock in a forked child: a thread of its parent may have held it, which asks for the map."""
        self._renewing = threading.Lock()

    def renew(self) -> None:
        """Asks one node after another for the map. Raises ConnectionError when none answers, and what one refused."""
        failure: Exception | None = None
        known = dict.fromkeys((*self._nodes, *self._topology.hosts))
        for address in sorted(known, key=self._failing.__contains__):
            try:
                said = self._ask(address)
            except (RedisError, OSError) as error:
                failure = failure if isinstance(failure, _LASTING) else error
                continue
            if said:
                return self._take(said, address)
        if isinstance(failure, _LASTING):
            raise failure
        raise RedisConnectionError(f"no node of the cluster tells its slots: {failure or 'none is served'}")

    def _ask(self, address: Address) -> list[Any]:
        connection = self._open_at(self.url_of(address))
        try:
            connection.connect()
            said: list[Any] = connection.ask("CLUSTER", "SLOTS")
        finally:
            connection.disconnect()
        return said

    def _take(self, said: list[Any], asked: Address) -> None:
        found: list[Address | None] = [None] * SLOTS
        for first, last, (host, port, *_), *_ in said:
            name = host.decode() if host else ""
            address = (name if name not in ("", "?") else asked[0], int(port))
            found[first : last + 1] = [address] * (last + 1 - first)
        self._map, self._nodes = found, tuple(dict.fromkeys(one for one in found if one is not None))
        self.is_stale = False
