"""Which node of a cluster serves which slot (https://redis.io/docs/reference/cluster-spec/).

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
    TlsError,
)
from jobrunner.broker.slots import SLOTS, slot_of
from jobrunner.broker.topology import Address, Topology
from jobrunner.clock import monotonic
from jobrunner.forks import call_in_forks

_LASTING = (AuthenticationError, ResponseError, TlsError)
"""Errors that a retry does not cure."""
_LOOK_S = 0.1
"""Callers wait so long for a look at a node that failed, and its result counts for so long."""


class Cluster:
    """The map of slots, shared by the connections of one endpoint; any thread may read and renew it."""

    def __init__(self, topology: Topology, open_at: Callable[[str], Any]) -> None:
        self._topology = topology
        self._open_at = open_at
        self._map: list[Address | None] = []
        self._nodes: tuple[Address, ...] = ()
        self._failing: dict[Address, str] = {}
        """Nodes that did not answer when they were last asked, and why not."""
        self._looks: dict[Address, tuple[float, threading.Event]] = {}
        """At nodes that failed: when it began, and whether it is over."""
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

    def any_primary(self) -> Address:
        """The node for what any may answer: one that answered when it was last asked, if there is one."""
        return next((one for one in self._nodes if one not in self._failing), self._nodes[0])

    def note(self, slot: int, address: Address) -> None:
        """Notes a redirection: a slot is at that node now, which may be one that joined since."""
        self._map[slot] = address
        if address not in self._nodes:
            self._nodes = (*self._nodes, address)

    def answered(self, address: Address) -> None:
        """Notes that a node took part in an exchange."""
        self._failing.pop(address, None)

    def failed(self, address: Address, why: BaseException) -> None:
        """Notes that a node did not answer, or is cut off from the others: the map may have changed, and this node is
        asked for it last."""
        self._failing[address] = str(why)
        self.is_stale = True

    def has_failed(self, address: Address | None) -> bool:
        """Whether a node did not answer when it was last asked."""
        return address in self._failing

    def why_away(self, address: Address | None) -> str | None:
        """Why a node that failed is still not to be asked; None for one to ask.

        A look at it goes on beside its callers, which wait only for a moment: a node that hangs would otherwise hold up
        what they send to the others, for the whole time limit and each time.
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
        except (*_LASTING, BusyLoadingError):  # it answers: those that ask it are told what is wrong
            self.answered(address)
        except (RedisError, OSError) as error:
            self._failing[address] = str(error)
        finally:
            is_over.set()

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
        """Frees the lock in a forked child: a thread of its parent may have held it, which asks for the map. Nor has it
        the threads that look at nodes."""
        self._renewing, self._looks = threading.Lock(), {}

    def renew(self) -> None:
        """Asks one node after another for the map. Raises ConnectionError when none answers, and what one refused."""
        failure: Exception | None = None
        known = dict.fromkeys((*self._nodes, *self._topology.hosts))
        for address in sorted(known, key=self._failing.__contains__):
            try:
                said = self._ask(address, "CLUSTER", "SLOTS")
            except (RedisError, OSError) as error:
                failure = failure if isinstance(failure, _LASTING) else error
                if not isinstance(error, (*_LASTING, BusyLoadingError)):
                    self._failing[address] = str(error)  # else a call would wait for it as long once more
                continue
            if said:
                return self._take(said, address)
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
