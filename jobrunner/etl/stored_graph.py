"""Graphs of pipelines as they are kept on the server, so that who looks needs none of the code.

A program writes the graph of a pipeline when it first uses it; the last one to write is right. Readers take what they
cannot read for not there: another version may have written it.
"""

from typing import Any

import msgspec

from jobrunner.broker.call import Call, command
from jobrunner.broker.keys import Keys
from jobrunner.errors import PipelineError
from jobrunner.etl.graph import Graph, QueueNode


class _StoredQueue(msgspec.Struct, kw_only=True):
    queue: str
    kind: str
    targets: tuple[str, ...] = ()
    dead_letter_queue: str | None = None


def publish(keys: Keys, graph: Graph) -> Call[int]:
    """Writes a graph."""
    told = [
        _StoredQueue(queue=node.queue, kind=node.kind, targets=node.targets, dead_letter_queue=node.dead_letter_queue)
        for node in graph.nodes
    ]
    return command("HSET", keys.pipelines, graph.pipeline, msgspec.json.encode(told), read=int)


def published(keys: Keys) -> Call[dict[str, Graph]]:
    """Every graph that was written, by the name of its pipeline; without those that cannot be read."""
    return command("HGETALL", keys.pipelines, read=_graphs)


def _graphs(reply: list[bytes]) -> dict[str, Graph]:
    found = {raw.decode("utf-8", "replace"): text for raw, text in zip(reply[::2], reply[1::2], strict=True)}
    read = {name: _graph(name, text) for name, text in sorted(found.items())}
    return {name: graph for name, graph in read.items() if graph is not None}


def _graph(name: str, text: bytes) -> Graph | None:
    graph = Graph(name)
    try:
        told: Any = msgspec.json.decode(text, type=list[_StoredQueue])
        for one in told:
            graph.add(
                QueueNode(queue=one.queue, kind=one.kind, targets=one.targets, dead_letter_queue=one.dead_letter_queue)
            )
    except (msgspec.MsgspecError, PipelineError):
        return None
    return graph
