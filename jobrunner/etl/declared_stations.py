"""The sum of a pipeline's declarations: its graph, and for each queue its settings and its station, sink or chain.

A queue is declared once. In `__main__` a declaration may be repeated, as a cell of a notebook is run again: it replaces
the station of the queue, and chains with that queue are made anew.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from jobrunner.broker.call import Call
from jobrunner.broker.keys import Keys
from jobrunner.encryption.cipher import allow_forward
from jobrunner.etl.chain import PythonStep, StationChain, chain_of
from jobrunner.etl.graph import Graph, QueueNode, publish
from jobrunner.etl.spark_station import SparkStation, batches_of, driver_of, shard_driver_of
from jobrunner.etl.table_sink import TableSink
from jobrunner.jobs.declared_queues import DeclaredQueue, declare_of_pipeline
from jobrunner.jobs.registry import StationDefinition, forget_station, note_targets, register_driver, register_station


class DeclaredStations:
    """The queues of one pipeline. It also registers their stations in the registry of this process, for its workers."""

    def __init__(self, pipeline: str) -> None:
        self.graph = Graph(pipeline)
        self.queues: dict[str, DeclaredQueue] = {}
        """The settings of each queue, by full name, as in the other dictionaries."""
        self.on_spark: dict[str, SparkStation] = {}
        """Declarations that run on Spark: stations, sinks, and the chains that begin with them."""
        self.changes = 0
        """The number of declarations so far."""
        self._python: dict[str, PythonStep] = {}
        self._spark: dict[str, SparkStation] = {}
        """Declared stations and sinks, also those that are parts of chains."""
        self._chains: dict[str, tuple[StationChain, Callable[[], None]]] = {}
        """Chains by their first queue, each with the call that makes it again."""

    def add_queue(self, queue: str, settings: Mapping[str, Any], origin: str) -> None:
        """Adds a queue that no station serves. Raises PipelineError, as the others."""
        self._add(QueueNode(queue=queue, kind="queue", origin=origin), settings)
        self._chain_again(queue)

    def add_python(self, step: PythonStep, definition: StationDefinition, settings: Mapping[str, Any]) -> None:
        """Adds a station or a sink in Python."""
        queue, kind = definition.queue, "sink" if step.link.is_sink else "station"
        self._add(QueueNode(queue=queue, kind=kind, targets=step.link.targets, origin=definition.origin), settings)
        register_station(queue, definition)
        self._python[queue] = step
        self._chain_again(queue)

    def add_spark(self, station: SparkStation, settings: Mapping[str, Any]) -> None:
        """Adds a station or a sink on Spark."""
        queue, kind = station.queue, "spark sink" if station.is_sink else "spark station"
        node = QueueNode(queue=queue, kind=kind, targets=station.targets, origin=station.origin,
                         batches=batches_of(station))  # fmt: skip
        self._add(node, settings)
        self._spark[queue] = station
        self._serve_on_spark(station)
        self._chain_again(queue)

    def chain_from(self, queue: str) -> StationChain:
        """The station of a queue and all stations after it. Raises PipelineError."""
        return chain_of(self.graph, queue, self._python, self._spark)

    def add_chain(self, station: SparkStation, chain: StationChain, again: Callable[[], None]) -> None:
        """Has a chain serve its first queue; `again` makes it anew from the stations declared by then."""
        self.changes += 1
        forget_station(chain.first)
        self._chains[chain.first] = chain, again
        self.graph.mark_chained(queue for one, _ in self._chains.values() for queue in one.queues)
        self.graph.note_batches(chain.first, batches_of(station))
        self._serve_on_spark(station)

    def is_table_of_cell(self, queue: str) -> bool:
        """Whether the station of a queue is a sink into a table that a notebook declared."""
        known = self._spark.get(queue)
        return known is not None and isinstance(known.function, TableSink) and known.origin.startswith("__main__:")

    def _serve_on_spark(self, station: SparkStation) -> None:
        self.on_spark[station.queue] = station
        of_shard = shard_driver_of(station)
        register_driver(station.queue, driver_of(station), origin=station.origin, of_shard=of_shard)

    def _add(self, node: QueueNode, settings: Mapping[str, Any]) -> None:
        queue, dead_queue = node.queue, settings.get("dead_letter_queue")
        self.graph.add(replace(node, dead_letter_queue=dead_queue))
        if dead_queue is not None:
            allow_forward(queue, dead_queue)
        forget_station(queue)  # the same function declared again, in a notebook, or another kind of station
        for stations in (self._python, self._spark, self.on_spark):
            stations.pop(queue, None)
        note_targets(queue, node.targets)
        place = node.origin if node.is_served else f"pipeline {self.graph.pipeline}"
        self.queues[queue] = declare_of_pipeline(queue, settings, place, self._publish)
        self.changes += 1

    def _publish(self, keys: Keys) -> Call[int]:
        return publish(keys, self.graph, may_fail=True, if_missing=True)

    def _chain_again(self, queue: str) -> None:
        """Makes the chains with a queue anew, as its station was declared again. Raises PipelineError for a chain that
        the station does not fit any more: nothing serves that chain until it is chained again."""
        stale = [first for first, (chain, _) in self._chains.items() if queue in chain.queues]
        for first in stale:
            self.on_spark.pop(first, None)
            forget_station(first)
        for _, again in [self._chains.pop(first) for first in stale]:
            again()
