"""The stations of one pipeline as a graph of queues: names, checks, diagrams, and the form stored on the server.

Invariant: a move may wait for room in a full target only where this cannot deadlock. So moves within a strongly
connected component (a loop, a station that leads to itself) never wait.

A program writes the graph of a pipeline to the server when it first uses the pipeline, so that readers do not need its
code; the last writer wins. Workers write it with their heartbeats where there is none, as after a loss of data. Readers
skip a graph that they cannot read: another version may have written it.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import msgspec

from jobrunner.broker.call import Call, command
from jobrunner.broker.keys import Keys, split_queue
from jobrunner.errors import InvalidOption, PipelineError


def full_name(pipeline: str, name: object) -> str:
    """`pipeline/name` of a short or full name. Raises InvalidName, PipelineError for a queue of another pipeline."""
    if not isinstance(name, str):
        split_queue(name)  # raises
    return _full_name(pipeline, str(name))


@lru_cache(maxsize=1024)  # each item that a station moves has the name of its target
def _full_name(pipeline: str, name: str) -> str:
    if "/" in name:
        tag, short = split_queue(name)
        if tag != pipeline:
            raise PipelineError(
                f"queue {name!r} is of pipeline {tag!r}, not of {pipeline!r}: a move is one step within one pipeline "
                f"only; write {short!r} for its queue of that name, or push from a sink into the other pipeline"
            )
        return name
    full = f"{pipeline}/{name}"
    split_queue(full)
    return full


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint for an error: the nearest known name, or all of them."""
    near = difflib.get_close_matches(name.rpartition("/")[2], known, n=1, cutoff=0.4)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(map(repr, known)) or 'none'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueNode:
    """The declaration of one queue. `kind`: 'station', 'sink', 'spark station', 'spark sink' or 'queue' (no station
    serves it)."""

    queue: str
    kind: str
    targets: tuple[str, ...] = ()
    dead_letter_queue: str | None = None
    """Full name of the queue that gets the items that would be dead in this queue."""
    origin: str = ""
    batches: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The declared batch options of a station on Spark, or of the chain that begins with it: batch, max_wait, schema,
    …"""
    is_chained: bool = False
    """Whether a chain passes items through the queue's station without entering the next queue."""

    @property
    def short(self) -> str:
        """The queue's name within the pipeline."""
        return self.queue.partition("/")[2]

    @property
    def is_served(self) -> bool:
        """Whether a station or sink serves the queue."""
        return self.kind != "queue"


class Graph:
    """The queues of one pipeline, in the order of their declaration."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        self._nodes: dict[str, QueueNode] = {}
        self._component: dict[str, int] | None = None

    def add(self, node: QueueNode) -> None:
        """Adds a queue. Raises PipelineError for a second declaration, unless `__main__` repeats the same one."""
        known = self._nodes.get(node.queue)
        if known is not None and not (known.origin == node.origin and node.origin.startswith("__main__:")):
            raise PipelineError(
                f"queue {node.short!r} of pipeline {self.pipeline!r} is declared twice: as {_told(known)} and as "
                f"{_told(node)}; a queue has one station; give one of them another queue"
            )
        self._nodes[node.queue] = node
        self._component = None

    def forget(self, queue: str) -> None:
        """Removes a queue that is declared anew; the next queue with its name gets its place in the order."""
        self._nodes.pop(queue, None)

    def mark_chained(self, queues: Iterable[str]) -> None:
        """Records the queues of all chains."""
        chained = frozenset(queues)
        self._nodes = {queue: replace(node, is_chained=queue in chained) for queue, node in self._nodes.items()}

    def note_batches(self, queue: str, batches: Mapping[str, Any]) -> None:
        """Records the batch options of a queue: those of the chain that begins with it."""
        self._nodes[queue] = replace(self._nodes[queue], batches=batches)

    @property
    def nodes(self) -> list[QueueNode]:
        """The queues in the order of declaration."""
        return list(self._nodes.values())

    def find(self, queue: str) -> QueueNode:
        """The queue with this full name. Raises PipelineError, which names the nearest."""
        if queue not in self._nodes:
            raise PipelineError(
                f"pipeline {self.pipeline!r} has no queue {queue.partition('/')[2]!r}; {self._hint(queue)}"
            )
        return self._nodes[queue]

    def check(self) -> None:
        """Raises PipelineError when there is no station, or a target is not declared."""
        if not any(node.is_served for node in self._nodes.values()):
            raise PipelineError(f"pipeline {self.pipeline!r} has no station; declare one with @….station or @….sink")
        for node in self._nodes.values():
            for target, option in [*((to, "to") for to in node.targets), (node.dead_letter_queue, "dead_letter_queue")]:
                if target is not None and target not in self._nodes:
                    name = target.partition("/")[2]
                    raise PipelineError(
                        f"{_told(node)} of queue {node.short!r} leads to {name!r} ({option}=…), and pipeline "
                        f"{self.pipeline!r} has no such queue: give it a station, a sink or declare({name!r}); "
                        f"{self._hint(name)}"
                    )

    def waits(self, queue: str, to: str) -> bool:
        """Whether a move may wait for room: not within a loop, where it could deadlock."""
        if self._component is None:
            self._component = dict(_components(self._nodes))
        return self._component.get(queue, -1) != self._component.get(to, -2)

    def above(self, queue: str) -> tuple[str, ...]:
        """Queues whose items may reach this queue, directly or not; the queue itself among them in a loop."""
        found: dict[str, None] = {}
        wanted = [queue]
        while wanted:
            to = wanted.pop()
            new = [node.queue for node in self._nodes.values() if to in _leads_to(node) and node.queue not in found]
            found |= dict.fromkeys(new)
            wanted += new
        return tuple(found)

    def in_order(self) -> list[QueueNode]:
        """The queues sorted so that each comes after those that lead to it, where loops allow, else as declared."""
        component = dict(_components(self._nodes))
        ranks = {queue: -number for queue, number in component.items()}
        return sorted(self._nodes.values(), key=lambda node: ranks[node.queue])

    def _hint(self, name: str) -> str:
        return nearest(name, [node.short for node in self._nodes.values()])


def _leads_to(node: QueueNode) -> tuple[str | None, ...]:
    return (*node.targets, node.dead_letter_queue)


def _told(node: QueueNode) -> str:
    return f"{node.kind} {node.origin.partition(':')[2] or node.short}" if node.is_served else "a queue"


def _components(nodes: dict[str, QueueNode]) -> Iterator[tuple[str, int]]:
    """(queue, number of its strongly connected component); a component has a higher number than components it leads to.

    Tarjan, "Depth-First Search and Linear Graph Algorithms" (1972), without recursion.
    """
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    numbered: dict[str, int] = {}
    # The last declared first: numbers increase in this order, and `in_order` reverses it.
    for root in reversed(nodes):
        if root not in index:
            _explore(root, nodes, index, lowest, path, numbered)
    yield from numbered.items()


def _explore(
    root: str,
    nodes: dict[str, QueueNode],
    index: dict[str, int],
    lowest: dict[str, int],
    path: list[str],
    numbered: dict[str, int],
) -> None:
    work = [(root, iter(_known_targets(root, nodes)))]
    index[root] = lowest[root] = len(index)
    path.append(root)
    while work:
        queue, targets = work[-1]
        target = next(targets, None)
        if target is None:
            work.pop()
            if work:
                lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[queue])
            if lowest[queue] == index[queue]:
                _close(queue, path, numbered)
        elif target not in index:
            index[target] = lowest[target] = len(index)
            path.append(target)
            work.append((target, iter(_known_targets(target, nodes))))
        elif target not in numbered:
            lowest[queue] = min(lowest[queue], index[target])


def _known_targets(queue: str, nodes: dict[str, QueueNode]) -> list[str]:
    return [target for target in reversed(nodes[queue].targets) if target in nodes]


def _close(queue: str, path: list[str], numbered: dict[str, int]) -> None:
    number = len(set(numbered.values()))
    while True:
        member = path.pop()
        numbered[member] = number
        if member == queue:
            return


_SHAPES = {
    "station": ("[", "]"),
    "sink": ("([", "])"),
    "spark station": ("[[", "]]"),
    "spark sink": ("[(", ")]"),
    "queue": (">", "]"),
}


def draw(graph: Graph, form: str) -> str:
    """The graph as `mermaid` or `text`. Raises InvalidOption for another form."""
    if form == "mermaid":
        return _mermaid(graph)
    if form == "text":
        return _text(graph)
    raise InvalidOption(f"diagram {form!r}: choose 'mermaid' or 'text'")


def _mermaid(graph: Graph) -> str:
    """The graph as Mermaid. The shape of a queue shows its kind; a thick line is a link of a chain, a dotted line leads
    to the dead letter queue. See mermaid.js.org, "Flowcharts"."""
    nodes = graph.in_order()
    names = {node.queue: f"q{number}" for number, node in enumerate(nodes)}
    lines = ["flowchart LR"]
    for node in nodes:
        opens, closes = _SHAPES[node.kind]
        lines.append(f'    {names[node.queue]}{opens}"{_shown(node)}"{closes}')
    for node in nodes:
        arrow = "==>" if node.is_chained else "-->"
        lines += [f"    {names[node.queue]} {arrow} {names[to]}" for to in node.targets if to in names]
        if node.dead_letter_queue in names:
            lines.append(f"    {names[node.queue]} -. dead .-> {names[node.dead_letter_queue]}")
    return "\n".join(lines)


def _text(graph: Graph) -> str:
    """The graph as text, one line for each queue: name, kind, targets. `↺` marks a move within a loop, `⇒` within a
    chain.
    """
    nodes = graph.in_order()
    width = max((len(node.short) for node in nodes), default=0)
    kinds = max((len(node.kind) for node in nodes), default=0)
    return "\n".join(f"{node.short:<{width}}  {node.kind:<{kinds}}  {_ways(graph, node)}".rstrip() for node in nodes)


def _ways(graph: Graph, node: QueueNode) -> str:
    ways = [f"{'⇒' if node.is_chained else '→'} {_target(graph, node, to)}" for to in node.targets]
    if node.dead_letter_queue is not None:
        ways.append(f"☠ {node.dead_letter_queue.partition('/')[2]}")
    return "  ".join(ways)


def _target(graph: Graph, node: QueueNode, to: str) -> str:
    return to.partition("/")[2] + ("" if graph.waits(node.queue, to) else " ↺")


def _shown(node: QueueNode) -> str:
    function = node.origin.rpartition(":")[2].rpartition(".")[2] if node.is_served else ""
    if not function or function == node.short or not function.isidentifier():
        return node.short
    return f"{node.short}: {function}"


class _StoredQueue(msgspec.Struct, kw_only=True, omit_defaults=True):
    queue: str
    kind: str
    targets: tuple[str, ...] = ()
    dead_letter_queue: str | None = None
    batches: Mapping[str, Any] = {}
    is_chained: bool = False


def publish(keys: Keys, graph: Graph, *, may_fail: bool = False, if_missing: bool = False) -> Call[int]:
    """Writes a graph; `if_missing`: unless there is one."""
    fields = _StoredQueue.__struct_fields__
    told = [_StoredQueue(**{name: getattr(node, name) for name in fields}) for node in graph.nodes]
    stored = msgspec.json.encode(told)
    verb = "HSETNX" if if_missing else "HSET"
    return command(verb, keys.pipelines, graph.pipeline, stored, read=lambda reply: reply or 0, may_fail=may_fail)


def published(keys: Keys) -> Call[dict[str, Graph]]:
    """Every published graph that can be read, by the name of its pipeline."""
    return command("HGETALL", keys.pipelines, read=_graphs)


def end_queues(graphs: Iterable[Graph]) -> frozenset[str]:
    """The queues that no station serves: items wait there for a program to read them, so a missing worker is no
    fault."""
    return frozenset(node.queue for graph in graphs for node in graph.nodes if not node.is_served)


def _graphs(reply: list[bytes]) -> dict[str, Graph]:
    found = {raw.decode("utf-8", "replace"): text for raw, text in zip(reply[::2], reply[1::2], strict=True)}
    read = {name: _graph(name, text) for name, text in sorted(found.items())}
    return {name: graph for name, graph in read.items() if graph is not None}


def _graph(name: str, text: bytes) -> Graph | None:
    graph = Graph(name)
    try:
        told: Any = msgspec.json.decode(text, type=list[_StoredQueue])
        for one in told:
            graph.add(QueueNode(**msgspec.structs.asdict(one)))
    except (msgspec.MsgspecError, PipelineError):
        return None
    return graph
