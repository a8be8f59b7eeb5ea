"""The map of a cluster's slots to the nodes that serve them (https://redis.io/docs/reference/cluster-spec/).

The map is the last reply of some node, with the redirections since then. It may be out of date at any time: the node
that gets a command decides.
"""

import threading
from collections.abc import Callable
from typing import Any

from jobrunner.broker.redis_errors import (
    AuthenticationError,
    BusyLoadingError,
    RedisConnectionError,
    RedisError,
    ResponseError,
    SlotNotServed,
    TlsError,
)
from jobrunner.broker.slots import SLOTS, slot_of
from jobrunner.broker.topology import Address, Topology
from jobrunner.clock import monotonic
from jobrunner.forks import call_in_forks

_LASTING = (AuthenticationError, ResponseError, TlsError)
"""Errors that a retry does not cure."""
_LOOK_S = 0.1
"""How long callers wait for a ping of a node that failed, and how long the result of the ping counts."""


class Cluster:
    """The map of slots, shared by the connections of one endpoint; any thread may read and renew it."""

    def __init__(self, topology: Topology, open_at: Callable[[str], Any]) -> None:
        self._topology = topology
        self._open_at = open_at
        self._map: list[Address | None] = []
        self._nodes: tuple[Address, ...] = ()
        self._failing: dict[Address, str] = {}
        """Nodes that did not answer the last request, with the error."""
        self._looks: dict[Address, tuple[float, threading.Event]] = {}
        """Pings of nodes that failed: the start of each, and an event that is set at its end."""
        self._renewing = threading.Lock()
        self.is_stale = True
        call_in_forks(self._begin_in_fork)

    def url_of(self, address: Address) -> str:
        """The URL of one node."""
        return self._topology.url_of(address)

    def node_of(self, slot: int) -> Address:
        """The node that serves a slot. Raises SlotNotServed when none is known."""
        found = self._map[slot] if self._map else None
        if found is None:
            self.is_stale = True
            raise SlotNotServed(f"no node of the cluster serves slot {slot}")
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
        """The nodes that served slots when the map was last renewed."""
        return self._nodes

    def any_primary(self) -> Address:
        """The node for calls that any node can answer: the first that answered its last request, else the first."""
        return next((one for one in self._nodes if one not in self._failing), self._nodes[0])

    def note(self, slot: int, address: Address) -> None:
        """Records a redirection: the node serves the slot now; it may have joined since the map was renewed."""
        self._map[slot] = address
        if address not in self._nodes:
            self._nodes = (*self._nodes, address)

    def answered(self, address: Address) -> None:
        """Records that a node answered."""
        self._failing.pop(address, None)

    def failed(self, address: Address, why: BaseException) -> None:
        """Records that a node did not answer, or is cut off from the others: the map may have changed, and `renew` asks
        this node last."""
        self._failing[address] = str(why)
        self.is_stale = True

    def has_failed(self, address: Address | None) -> bool:
        """Whether a node did not answer the last request."""
        return address in self._failing

    def why_away(self, address: Address | None) -> str | None:
        """The reason not to send to a node that failed; None for a node that may be asked.

        A thread of its own pings the node, and callers wait for it only for a moment: a node that hangs would otherwise
        delay their calls to the other nodes by the whole timeout, each time.
        """
        if address is None or address not in self._failing:
            return None
        began, is_over = self._looks.get(address, (0.0, None))
        if is_over is None or (is_over.is_set() and monotonic() >= began + _LOOK_S):
            began, is_over = self._looks[address] = monotonic(), threading.Event()
            threading.Thread(target=self._look, args=(address, is_over), name="jobrunner-look", daemon=True).start()
        is_over.wait(max(began + _LOOK_S - monotonic(), 0.0))
        return self._failing.get(address)

    def _look(self, address: Address, is_over: threading.Event) -> None:
        try:
            self._ask(address, "PING")
            self.answered(address)
        except (*_LASTING, BusyLoadingError):  # it answers: callers get this error from it themselves
            self.answered(address)
        except (RedisError, OSError) as error:
            self._failing[address] = str(error)
        finally:
            is_over.set()

    def refresh(self) -> None:
        """Renews a stale map. One thread asks at a time, and the others go on with the map that they have: a node that
        does not answer must not delay the calls to other nodes."""
        if not self.is_stale or not self._renewing.acquire(blocking=not self._map):
            return
        try:
            if self.is_stale:
                self.renew()
        finally:
            self._renewing.release()

    def _begin_in_fork(self) -> None:
        """Replaces the lock in a forked child, as a thread of the parent may have held it while it renewed the map. The
        child has none of the threads that ping nodes either."""
        self._renewing, self._looks = threading.Lock(), {}

    def renew(self) -> None:
        """Asks one node after another for the map. Raises RedisConnectionError when none answers, and a node's
        refusal."""
        failure: Exception | None = None
        known = dict.fromkeys((*self._nodes, *self._topology.hosts))
        for address in sorted(known, key=self._failing.__contains__):
            try:
                reply = self._ask(address, "CLUSTER", "SLOTS")
            except (RedisError, OSError) as error:
                failure = failure if isinstance(failure, _LASTING) else error
                if not isinstance(error, (*_LASTING, BusyLoadingError)):
                    self._failing[address] = str(error)  # else the next call would wait for the timeout, too
                continue
            if reply:
                return self._take(reply, address)
        if isinstance(failure, _LASTING):
            raise failure
        raise RedisConnectionError(f"no node of the cluster tells its slots: {failure or 'none is served'}")

    def _ask(self, address: Address, *words: str) -> Any:
        connection = self._open_at(self.url_of(address))
        try:
            connection.connect()
            return connection.ask(*words)
        finally:
            connection.disconnect()

    def _take(self, said: list[Any], asked: Address) -> None:
        found: list[Address | None] = [None] * SLOTS
        for first, last, (host, port, *_), *_ in said:
            name = host.decode() if host else ""
            address = (name if name not in ("", "?") else asked[0], int(port))
            found[first : last + 1] = [address] * (last + 1 - first)
        self._map, self._nodes = found, tuple(dict.fromkeys(one for one in found if one is not None))
        self.is_stale = False
