"""Declarations of chains: stations that share the batches of the first station, without queues between them.

A driver serves a chain like a sink on Spark: one batch of the first queue goes through all of its stations, and its
items end there. `jobrunner.spark.station.chained` runs the chain; this module names it by its path and imports it with
the first batch, as this package must not depend on it. (The idea is operator chaining of Apache Flink.)
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from jobrunner.errors import PipelineError
from jobrunner.etl.graph import Graph
from jobrunner.etl.spark_station import SparkStation
from jobrunner.etl.station import StationFunction
from jobrunner.etl.station_outcome import Link
from jobrunner.etl.table_sink import TableAddress, TableSink

RUNNER = "jobrunner.spark.station.chained"


@dataclass(frozen=True, slots=True)
class PythonStep:
    """A station in Python: its function, and the targets of its items."""

    function: StationFunction
    link: Link

    def to_be_sent(self, payload_limit: int) -> "PythonStep":
        """The station for a process without a client, without the graph of the other queues: a chain does not need
        that, and it may not pickle."""
        return PythonStep(self.function, replace(self.link, waits=_never, above=tuple, payload_limit=payload_limit))


def _never(_to: str) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class StationChain:
    """The stations of one chain, by the full names of their queues."""

    first: str
    python: Mapping[str, PythonStep] = field(repr=False)
    spark: Mapping[str, SparkStation] = field(repr=False)

    def __call__(self, df: Any, spark: Any, batch: Any) -> Any:
        """The function of the chain as a sink, called by the driver."""
        return import_module(RUNNER).run_chain(self, df, spark, batch)

    @property
    def addresses(self) -> tuple[TableAddress, ...]:
        """The declared tables of its sinks."""
        return tuple(one for station in self.spark.values() for one in station.tables)

    @property
    def merges(self) -> bool:
        """Whether one of its sinks replaces rows by a key, so that the order of batches counts."""
        return any(isinstance(one.function, TableSink) and one.function.merge_on for one in self.spark.values())

    @property
    def queues(self) -> list[str]:
        """The full names of all queues, the first queue first."""
        return sorted({*self.python, *self.spark}, key=lambda queue: (queue != self.first, queue))


def chain_of(
    graph: Graph, first: str, python: Mapping[str, PythonStep], spark: Mapping[str, SparkStation]
) -> StationChain:  # fmt: skip
    """The chain of a queue and of all queues that its items may reach. Raises PipelineError, which names a station that
    cannot be a part of it."""
    graph.check()
    own_python: dict[str, PythonStep] = {}
    own_spark: dict[str, SparkStation] = {}
    wanted = [graph.find(first).queue]
    while wanted:
        queue = wanted.pop()
        if queue in own_python or queue in own_spark:
            continue
        if queue in graph.above(queue):
            raise _unfit(first, queue, "its items may come back to it")
        if queue in spark:
            own_spark[queue] = _fit_on_spark(first, spark[queue])
        elif queue in python:
            own_python[queue] = _fit_in_python(first, python[queue])
        else:
            raise _unfit(first, queue, "it has no station, and items of a chain are in no queue but the first")
        wanted += graph.find(queue).targets
    if not any(station.is_sink for station in own_spark.values()):
        raise _unfit(first, first, "it leads to no sink on Spark")
    return StationChain(first=first, python=own_python, spark=own_spark)


def _fit_on_spark(first: str, station: SparkStation) -> SparkStation:
    for option in ("fan_out", "emits_new"):
        if getattr(station, option):
            raise _unfit(first, station.queue, f"it makes new items ({option}=True), and a chain makes none")
    if station.missing == "fail":
        raise _unfit(first, station.queue, "it has missing='fail', and a chain does not count the rows between its "
                     "stations")  # fmt: skip
    return station


def _fit_in_python(first: str, step: PythonStep) -> PythonStep:
    queue, function = step.link.queue, step.function
    if step.link.is_sink:
        raise _unfit(first, queue, "it is a sink in Python; a chain ends in sinks on Spark")
    if step.link.fan_out:
        raise _unfit(first, queue, "it makes new items (fan_out=True), and a chain makes none")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise _unfit(first, queue, "its function is a coroutine function, and Spark's Python has no event loop")
    return step


def _unfit(first: str, queue: str, why: str) -> PipelineError:
    short = first.partition("/")[2]
    return PipelineError(
        f"chain({short!r}): queue {queue.partition('/')[2]!r} cannot be a part of it: {why}; change that station, or "
        "chain from a later queue"
    )
