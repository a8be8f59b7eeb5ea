"""Two nodes of a cluster that share the slots, without a server."""

import threading
from typing import Any

from jobrunner.broker.call import Call, command
from jobrunner.broker.cluster import Cluster
from jobrunner.broker.cluster_batch import ClusterBatch, NodeBatch
from jobrunner.broker.keys import Keys
from jobrunner.broker.redis_errors import RedisConnectionError
from jobrunner.broker.topology import topology_of

KEYS = Keys("t")
LINES = [KEYS.queue(f"q{n}") for n in range(6)]
LEFT, RIGHT = ("h", 1), ("h", 2)
MAP: list[Any] = [[0, 8191, [b"h", 1, b"a"]], [8192, 16383, [b"", 2, b"b"]]]


def get(line: Any) -> Call[bytes]:
    """A call on a queue."""
    return command("HGET", line.settings, "x", read=lambda reply: reply)


def answers(parts: ClusterBatch, answer: Any) -> list[NodeBatch]:
    """One round: `answer(address, call)` for each call; returns what was sent."""
    sent = parts.groups()
    for group in sent:
        parts.take(group, [answer(group.address, call) for call in group.calls])
    return sent


class Nodes:
    """Nodes that reply to CLUSTER SLOTS from `maps`, by address; a node without a map is down. Nodes in `hanging`
    answer when they go on."""

    def __init__(self, maps: dict[tuple[str, int], list[Any]]) -> None:
        self.maps = maps
        self.hanging: dict[tuple[str, int], threading.Event] = {}

    def open_at(self, url: str) -> Any:
        host, _, port = url.removeprefix("redis://").partition(":")
        address = host, int(port)
        said, hangs = self.maps.get(address), self.hanging.get(address)

        class Connection:
            def connect(self) -> None:
                if hangs is not None:
                    hangs.wait()
                if said is None:
                    raise RedisConnectionError("refused")

            def ask(self, *_: str) -> list[Any]:
                return said or []

            def disconnect(self) -> None: ...

        return Connection()


def renewable(nodes: Nodes) -> Cluster:
    """A slot map that reads from these nodes."""
    topology = topology_of("redis+cluster://h:1,h:2")
    assert topology is not None
    made = Cluster(topology, nodes.open_at)
    made.renew()
    return made
