"""Chains as they are declared, and what cannot be a part of one."""

from types import FunctionType
from typing import Any

import pytest

from jobrunner.errors import InvalidOption, PipelineError
from jobrunner.etl import Pipeline
from jobrunner.jobs.declared_queues import published_by
from jobrunner.jobs.registry import driver_of
from tests.support.registries import station_of


def frames(df: Any, spark: Any) -> Any:
    """A station on Spark."""


def store(df: Any, spark: Any, batch: Any) -> None:
    """A sink on Spark."""


def test_a_chain_replaces_what_serves_its_first_queue(orders: Pipeline) -> None:
    orders.station("raw", to="clean", concurrency=3)(lambda item: None)
    orders.spark_station("clean", to="end", schema="n int")(frames)
    orders.spark_sink("end", schema="n int")(store)
    before = driver_of("orders/clean")

    orders.chain("raw", batch=500, max_wait=3, parallel=1, lease=20)

    chained = orders.spark_stations["orders/raw"]
    assert station_of("orders/raw") is None
    assert driver_of("orders/raw") is not None
    assert driver_of("orders/clean") is before
    assert (chained.is_sink, chained.targets, chained.schema) == (True, (), None)
    assert (chained.batch, chained.max_wait, chained.parallel, chained.lease) == (500, 3.0, 1, 20.0)
    assert [one.settings for one in published_by(["orders/raw"])] == [{"max_inflight": 3}]
    batches = orders.graph.find("orders/raw").batches
    assert [batches[name] for name in ("batch", "max_wait", "parallel", "lease")] == [500, 3.0, 1, 20.0]
    assert chained.function.queues == ["orders/raw", "orders/clean", "orders/end"]  # type: ignore[attr-defined]
    orders.chain("clean")
    assert orders.spark_stations["orders/clean"].schema == "n int"


@pytest.mark.parametrize(("declared", "at_once"), [({}, 2), ({"merge_on": "n"}, 1)])
def test_a_chain_that_merges_by_a_key_runs_one_batch_at_a_time(
    orders: Pipeline, declared: Any, at_once: int
) -> None:
    """As its sink does without a chain: of two versions of a row, the one that was enqueued last is merged last."""
    orders.spark_station("clean", to="end", schema="n int")(frames)
    orders.spark_sink("end", table="delta:/lake/end", schema="n int", **declared)

    orders.chain("clean")
    assert orders.spark_stations["orders/clean"].parallel == at_once
    orders.chain("clean", parallel=3)
    assert orders.spark_stations["orders/clean"].parallel == 3


def _in_cell(function: Any) -> Any:
    """The function as a cell of a notebook defines it anew."""
    made: Any = FunctionType(function.__code__, globals())
    made.__module__, made.__qualname__ = "__main__", "of_a_cell"
    return made


def test_a_chain_that_is_declared_again_runs_the_newest_functions(orders: Pipeline) -> None:
    """As when the cells of a station in its middle and of the chain are run again."""
    head, newer = _in_cell(lambda item: None), _in_cell(frames)
    orders.station("raw", to="clean")(head)
    orders.spark_station("clean", to="end", schema="n int")(_in_cell(frames))
    orders.spark_sink("end", schema="n int")(store)
    orders.chain("raw")
    orders.spark_station("clean", to="end", schema="n int")(newer)

    orders.chain("raw", batch=77)

    chained = orders.spark_stations["orders/raw"]
    made: Any = chained.function
    assert made.python["orders/raw"].function is head
    assert made.spark["orders/clean"].function is newer
    assert chained.batch == 77


@pytest.mark.parametrize("again", ["raw", "clean", "end"])
def test_a_station_that_is_declared_again_is_the_one_of_its_chain(orders: Pipeline, again: str) -> None:
    """As when only its cell is run again: the chain would run the function that was replaced."""
    declare: dict[str, Any] = {
        "raw": lambda function: orders.station("raw", to="clean")(function),
        "clean": lambda function: orders.spark_station("clean", to="end", schema="n int")(function),
        "end": lambda function: orders.spark_sink("end", schema="n int")(function),
    }
    given = {"raw": lambda item: None, "clean": frames, "end": store}
    for name, function in given.items():
        declare[name](_in_cell(function))
    orders.chain("raw", batch=77, parallel=1)
    newer = _in_cell(given[again])

    declare[again](newer)

    chained = orders.spark_stations["orders/raw"]
    made: Any = chained.function
    assert (chained.batch, chained.parallel) == (77, 1)
    assert {**made.python, **made.spark}[f"orders/{again}"].function is newer
    assert station_of("orders/raw") is None
    assert all(node.is_chained for node in orders.graph.nodes)


def test_a_chain_that_a_station_fits_no_more_is_served_by_nothing_until_it_is_chained_again(orders: Pipeline) -> None:
    orders.station("raw", to="clean")(lambda item: None)
    orders.spark_station("clean", to="end", schema="n int")(_in_cell(frames))
    orders.spark_sink("end", schema="n int")(store)
    orders.chain("raw")

    with pytest.raises(PipelineError, match="makes new items"):
        orders.spark_station("clean", to="end", schema="n int", fan_out=True)(_in_cell(frames))

    assert driver_of("orders/raw") is None
    assert "orders/raw" not in orders.spark_stations
    orders.spark_station("clean", to="end", schema="n int")(_in_cell(frames))
    orders.chain("raw")
    assert driver_of("orders/raw") is not None


def test_a_station_that_took_the_place_of_one_on_spark_is_chained(orders: Pipeline) -> None:
    newer = _in_cell(lambda item: None)
    orders.spark_station("clean", to="end", schema="n int")(_in_cell(frames))
    orders.station("clean", to="end")(newer)
    orders.spark_sink("end", schema="n int")(store)

    orders.chain("clean")

    made: Any = orders.spark_stations["orders/clean"].function
    assert made.python["orders/clean"].function is newer


def test_diagrams_show_the_links_of_a_chain(orders: Pipeline) -> None:
    orders.station("raw", to="clean")(lambda item: None)
    orders.spark_station("clean", to="end")(frames)
    orders.spark_sink("end")(store)

    orders.chain("clean")

    assert [line.split()[-2:] for line in orders.diagram("text").splitlines()[:2]] == [["→", "clean"], ["⇒", "end"]]
    assert orders.diagram().splitlines()[-2:] == ["    q0 --> q1", "    q1 ==> q2"]


async def wait(item: Any) -> None:
    """A coroutine function."""


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (lambda p: p.declare("end"), "queue 'end' cannot be a part of it: it has no station, and items of a chain"),
        (lambda p: p.sink("end")(lambda item: None), "it is a sink in Python; a chain ends in sinks on Spark"),
        (lambda p: p.station("end", to="raw")(lambda item: None), r"queue '(raw|end)' .*its items may come back to it"),
        (lambda p: (p.spark_station("end", to="last", fan_out=True)(frames), p.spark_sink("last")(store)),
         r"queue 'end' .*it makes new items \(fan_out=True\)"),
        (lambda p: (p.spark_station("end", to="last", emits_new=True)(frames), p.spark_sink("last")(store)),
         r"it makes new items \(emits_new=True\)"),
        (lambda p: (p.spark_station("end", to="last", missing="fail")(frames), p.spark_sink("last")(store)),
         "it has missing='fail', and a chain does not count the rows"),
        (lambda p: (p.station("end", to="last", fan_out=True)(lambda item: []), p.spark_sink("last")(store)),
         r"it makes new items \(fan_out=True\)"),
        (lambda p: (p.station("end", to="last")(wait), p.spark_sink("last")(store)), "is a coroutine function"),
    ],
)  # fmt: skip
def test_a_station_that_cannot_be_chained_is_named(orders: Pipeline, declared: Any, said: str) -> None:
    orders.station("raw", to="end")(lambda item: None)
    declared(orders)
    with pytest.raises(PipelineError, match=rf"chain\('raw'\): .*{said}"):
        orders.chain("raw")
    assert station_of("orders/raw") is not None


def test_wrong_names_and_options(orders: Pipeline) -> None:
    orders.station("raw", to="end")(lambda item: None)
    with pytest.raises(PipelineError, match="leads to 'end'"):
        orders.chain("raw")
    orders.spark_sink("end")(store)
    with pytest.raises(PipelineError, match="did you mean 'raw'"):
        orders.chain("rawr")
    with pytest.raises(InvalidOption, match="batch"):
        orders.chain("raw", batch=0)
    assert station_of("orders/raw") is not None
