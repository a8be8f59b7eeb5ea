"""Order, loops, and drawings of pipelines."""

from typing import Any

import pytest

from jobrunner.errors import InvalidOption
from jobrunner.etl import Pipeline
from jobrunner.etl.graph import Graph, QueueNode


def graph(**targets: str) -> Graph:
    made = Graph("p")
    for queue, to in targets.items():
        made.add(QueueNode(queue=f"p/{queue}", kind="station", targets=tuple(f"p/{name}" for name in to)))
    return made


def test_queues_come_behind_those_that_lead_to_them() -> None:
    found = graph(d="e", b="d", c="d", a="bc", e="", x="").in_order()

    assert "".join(node.short for node in found) == "abcdex"


def test_moves_wait_but_not_within_loops() -> None:
    made = graph(a="ab", b="c", c="bd", d="e", e="d", f="")

    waiting = {(x, y) for x in "abcdef" for y in "abcdef" if made.waits(f"p/{x}", f"p/{y}")}
    within = {(x, x) for x in "abcdef"} | {("b", "c"), ("c", "b"), ("d", "e"), ("e", "d")}
    assert waiting == {(x, y) for x in "abcdef" for y in "abcdef"} - within


def test_above_a_queue_are_those_whose_items_may_reach_it() -> None:
    made = graph(a="b", b="c", c="bd", d="", x="d", y="z", z="")
    made.add(QueueNode(queue="p/e", kind="station", targets=("p/z",), dead_letter_queue="p/a"))

    assert set(made.above("p/d")) == {"p/a", "p/b", "p/c", "p/x", "p/e"}
    assert set(made.above("p/b")) == {"p/a", "p/b", "p/c", "p/e"}, "itself, in a loop"
    assert made.above("p/x") == ()


def test_a_long_line_needs_no_recursion() -> None:
    made = Graph("p")
    for number in range(3000):
        made.add(QueueNode(queue=f"p/{number}", kind="station", targets=(f"p/{(number + 1) % 3000}",)))

    assert not made.waits("p/0", "p/2999")
    assert len(made.in_order()) == 3000


@pytest.fixture
def drawn() -> Pipeline:
    """A fork, a loop, a place for the dead."""
    made = Pipeline("orders")

    @made.station("raw", to=("home", "abroad"), dead_letter_queue="graves")
    def route(item: Any) -> None: ...

    @made.station("abroad", to=("abroad", "home"))
    def customs(item: Any) -> None: ...

    @made.spark_sink("home")
    def store(df: Any, spark: Any, batch: Any) -> None: ...

    made.declare("graves")
    return made


def test_a_pipeline_as_mermaid(drawn: Pipeline) -> None:
    assert drawn.diagram() == drawn.diagram("mermaid")
    assert drawn.diagram().splitlines() == [
        "flowchart LR",
        '    q0["raw: route"]',
        '    q1["abroad: customs"]',
        '    q2[("home: store")]',
        '    q3>"graves"]',
        "    q0 --> q2",
        "    q0 --> q1",
        "    q0 -. dead .-> q3",
        "    q1 --> q1",
        "    q1 --> q2",
    ]


def test_a_pipeline_as_text(drawn: Pipeline) -> None:
    assert drawn.diagram("text").splitlines() == [
        "raw     station     → home  → abroad  ☠ graves",
        "abroad  station     → abroad ↺  → home",
        "home    spark sink",
        "graves  queue",
    ]


def test_another_form_is_refused(drawn: Pipeline) -> None:
    with pytest.raises(InvalidOption, match="choose 'mermaid' or 'text'"):
        drawn.diagram("dot")
