"""A pipeline drawn: as Mermaid for documents, as text for terminals."""

from jobrunner.errors import InvalidOption
from jobrunner.etl.graph import Graph, QueueNode

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
    """Shapes tell what serves a queue; a dotted line leads to where the dead go. See mermaid.js.org, "Flowcharts"."""
    nodes = graph.in_order()
    names = {node.queue: f"q{number}" for number, node in enumerate(nodes)}
    lines = ["flowchart LR"]
    for node in nodes:
        opens, closes = _SHAPES[node.kind]
        lines.append(f'    {names[node.queue]}{opens}"{_shown(node)}"{closes}')
    for node in nodes:
        lines += [f"    {names[node.queue]} --> {names[to]}" for to in node.targets if to in names]
        if node.dead_letter_queue in names:
            lines.append(f"    {names[node.queue]} -. dead .-> {names[node.dead_letter_queue]}")
    return "\n".join(lines)


def _text(graph: Graph) -> str:
    """One line a queue: its name, what serves it, where that leads to. `↺` marks a way back into a loop."""
    nodes = graph.in_order()
    width = max((len(node.short) for node in nodes), default=0)
    kinds = max((len(node.kind) for node in nodes), default=0)
    return "\n".join(f"{node.short:<{width}}  {node.kind:<{kinds}}  {_ways(graph, node)}".rstrip() for node in nodes)


def _ways(graph: Graph, node: QueueNode) -> str:
    ways = [f"→ {_target(graph, node, to)}" for to in node.targets]
    if node.dead_letter_queue is not None:
        ways.append(f"☠ {node.dead_letter_queue.partition('/')[2]}")
    return "  ".join(ways)


def _target(graph: Graph, node: QueueNode, to: str) -> str:
    return to.partition("/")[2] + ("" if graph.waits(node.queue, to) else " ↺")


def _shown(node: QueueNode) -> str:
    function = node.origin.rpartition(":")[2].rpartition(".")[2]
    if not function or function == node.short or not function.isidentifier():
        return node.short
    return f"{node.short}: {function}"
