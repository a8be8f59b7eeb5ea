"""Pipeline: stations joined by queues of one hash tag, so that every move between them is one step."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar, Unpack

from jobrunner.broker.calls import queues
from jobrunner.broker.calls.shards import shard_counts
from jobrunner.broker.keys import check_name
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.current import current_client
from jobrunner.client.item import ItemKeywords, item_of
from jobrunner.client.operations.queue import OnClash, Progress
from jobrunner.client.queue import Queue, align_shards
from jobrunner.errors import PipelineError
from jobrunner.etl.chain import PythonStep
from jobrunner.etl.declared_stations import DeclaredStations
from jobrunner.etl.graph import draw, full_name, nearest, publish
from jobrunner.etl.spark_station import SparkStation, settle_batches
from jobrunner.etl.station import (
    QueueOptions,
    StationFunction,
    StationOptions,
    check_function,
    check_station,
    define_station,
    name_of,
    origin_of,
    settle_queue,
    settle_station,
    targets_of,
)
from jobrunner.etl.station_outcome import Link
from jobrunner.etl.table_sink import TABLE_OPTIONS, SinkOptions, TableSink, settle_table
from jobrunner.jobs.declared_queues import forget_queue, publishing
from jobrunner.jobs.registry import forget_station
from jobrunner.option_names import calling_module, checks_options
from jobrunner.settings import Duration, check_whole

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound=StationFunction)
Targets = str | tuple[str, ...] | list[str]
_BATCHES = ("queue", "batch", "min_rows", "max_wait", "parallel", "schema", "lease", "quarantine", "name")
_OPTIONS = {
    "station": ("queue", "to", "fan_out"),
    "sink": ("queue",),
    "spark station": (*_BATCHES, "to", "missing", "fan_out", "emits_new"),
    "spark sink": (*_BATCHES, *TABLE_OPTIONS),
}
"""Options of declarations in addition to the options of a queue."""
_SPARK_STATION, _SPARK_SINK = ("df", "spark"), ("df", "spark", "batch")


@checks_options
class Pipeline:
    """A checked graph of stations. Its life:

    1. registers itself when it is made, and its stations for the workers of this process as they are declared;
    2. refuses a wrong name or option, a queue of another pipeline, or a second station at the declaration;
    3. checks at the first push, and before it is run, that every link leads to a declared queue;
    4. publishes the settings of its queues then, once for each client, and again after further declarations.

    Without a `client` it uses the current client. An item that exceeds `max_hops` moves is dead; 0: no limit.
    """

    def __init__(self, name: str, client: Client | None = None, max_hops: int = 100) -> None:
        self.name = check_name(name, "pipeline name")
        self.max_hops = check_whole(max_hops, "max_hops", minimum=0)
        self._stations = DeclaredStations(name)
        self.graph = self._stations.graph
        self.spark_stations = self._stations.on_spark
        """Declarations on Spark, by the full name of the queue: stations, sinks, and the chains that begin with
        them."""
        self.own_client = client
        """The client that it was made with, if any."""
        self._applied: tuple[Client | None, int] = (None, 0)
        """The client for which it was last published, and the number of declarations at that time."""
        _make_known(self, calling_module())

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"

    def station(
        self, queue: str, to: Targets = (), *, fan_out: bool = False, **options: Unpack[StationOptions]
    ) -> Callable[[S], S]:
        """Declares the station of a queue: a function (or coroutine function) of one item.

        It returns the payload that moves on to `to`, nothing to leave the payload as it is, `To(queue, payload)` to
        choose the queue (needed with several in `to`), `Drop()`, or Retry, Snooze, Fail, Cancel as jobs do. With
        `fan_out` it returns or yields several payloads and To(...). Other options are those of StationOptions.

        Raises PipelineError, UnknownOption, InvalidOption, InvalidName.
        """
        own = full_name(self.name, queue)
        check_station(options, f"station of queue {queue!r}", _OPTIONS["station"])
        link = _link(self, own, targets_of(self.name, own, to), fan_out=fan_out)
        return self._declare(own, link, dict(options), "station")

    def sink(self, queue: str, **options: Unpack[StationOptions]) -> Callable[[S], S]:
        """Declares the end of a line: the function's return value is the item's result. Raises as `station`."""
        own = full_name(self.name, queue)
        return self._declare(own, _link(self, own, (), is_sink=True), dict(options), "sink")

    def declare(self, queue: str, **options: Unpack[QueueOptions]) -> None:
        """Declares a queue without a station: an end that a program reads, or a dead letter queue."""
        own = full_name(self.name, queue)
        settings = settle_queue(self.name, own, dict(options), explicit=("queue",))
        self._stations.add_queue(own, settings, f"{calling_module()}:{queue}")

    def spark_station(
        self,
        queue: str,
        to: Targets = (),
        *,
        batch: int | Literal["auto"] = 10_000,
        min_rows: int | None = None,
        max_wait: Duration = 1.0,
        parallel: int | None = None,
        schema: str | None = None,
        missing: Literal["drop", "fail"] = "drop",
        fan_out: bool = False,
        emits_new: bool = False,
        lease: Duration = 60.0,
        quarantine: bool = False,
        name: str | None = None,
        **options: Unpack[QueueOptions],
    ) -> Callable[[F], F]:
        """Declares a station on Spark: (df, spark) -> DataFrame, for up to `batch` items at a time.

        A batch that is not full waits `max_wait` for more items, but with `min_rows` items only while items are on
        their way to this queue. Up to `parallel` batches run at once, in threads. `schema` names the payload's columns;
        `missing` is the fate of an item without a row. With `quarantine` an item that fails alone is dead at once.
        Raises as `station`.
        """
        own = full_name(self.name, queue)
        settings = settle_queue(self.name, own, options, explicit=_OPTIONS["spark station"])
        link = _link(self, own, targets_of(self.name, own, to), fan_out=fan_out)
        batches = settle_batches(
            queue, batch=batch, min_rows=min_rows, max_wait=max_wait, parallel=parallel, schema=schema, missing=missing,
            lease=lease, quarantine=quarantine,
        )  # fmt: skip
        return self._declare_spark(link, name, settings, {**batches, "emits_new": emits_new})

    def spark_sink(
        self,
        queue: str,
        *,
        batch: int | Literal["auto"] = 10_000,
        min_rows: int | None = None,
        max_wait: Duration = 1.0,
        parallel: int | None = None,
        schema: str | None = None,
        lease: Duration = 60.0,
        quarantine: bool = False,
        name: str | None = None,
        **options: Unpack[SinkOptions],
    ) -> Callable[[F], F]:
        """Declares the end of a line on Spark: (df, spark, batch) -> None; `batch.id` is stable over retries.

        With `table=` (SinkOptions) the call declares it; a function, if any, shapes rows: (df, spark) -> DataFrame.
        """
        own = full_name(self.name, queue)
        link = _link(self, own, (), is_sink=True)
        sink, of_queue = settle_table(queue, schema, options)
        if parallel is None and sink is not None and sink.merge_on:
            parallel = 1  # of two versions of a row, the one enqueued last must be merged last
        batches = settle_batches(
            queue, batch=batch, min_rows=min_rows, max_wait=max_wait, parallel=parallel, schema=schema, missing="drop",
            lease=lease, quarantine=quarantine,
        )  # fmt: skip
        settings = settle_queue(self.name, own, of_queue, explicit=_OPTIONS["spark sink"])
        if sink is not None:
            module = calling_module()
            if module == "__main__" and self._stations.is_table_of_cell(own):
                self.graph.forget(own)  # the cell is run again: a function may have given the sink another name
            self._add_spark(link, name or queue, settings, batches, sink, f"{module}:{queue}")
        return self._declare_spark(link, name, settings, batches, sink)

    def chain(
        self,
        queue: str,
        *,
        batch: int | Literal["auto"] = 10_000,
        min_rows: int | None = None,
        max_wait: Duration = 1.0,
        parallel: int | None = None,
        lease: Duration = 60.0,
        quarantine: bool = False,
    ) -> None:
        """Runs the station of `queue` and all stations after it on Spark in one batch, without queues between them.

        Items are read once and end once, so a pipeline costs little more than the same program without a queue. The
        stations must be declared before; options are those of `spark_station`. An item that a station refuses is dead
        in `queue`, without further attempts. Items in the other queues are processed as before. Raises PipelineError,
        which names a station that cannot be chained, InvalidOption.
        """
        own = full_name(self.name, queue)
        again = partial(self.chain, queue, batch=batch, min_rows=min_rows, max_wait=max_wait, parallel=parallel,
                        lease=lease, quarantine=quarantine)  # fmt: skip
        made = self._stations.chain_from(own)
        head = made.spark.get(own)
        if parallel is None and made.merges:
            parallel = 1  # as for a sink with merge_on outside a chain
        batches = settle_batches(
            queue, batch=batch, min_rows=min_rows, max_wait=max_wait, parallel=parallel, missing="drop", lease=lease,
            schema=None if head is None else head.schema, quarantine=quarantine,
        )  # fmt: skip
        node = self.graph.find(own)
        declared = SparkStation(
            pipeline=self.name, queue=own, name=node.short, origin=node.origin, function=made,
            link=_link(self, own, (), is_sink=True), **batches,
        )  # fmt: skip
        self._stations.add_chain(declared, made, again)

    @property
    def client(self) -> Client:
        """The pipeline's own client, else the current client."""
        return self.own_client or current_client()

    def queue(self, name: str) -> Queue:
        """One of its queues, by short or full name. Raises PipelineError, which names the nearest."""
        return self.client.queue(self.graph.find(full_name(self.name, name)).queue)

    def push(
        self, queue: str, payload: Any, *, wait: Duration = 0, on_clash: OnClash = "existing",
        **options: Unpack[ItemKeywords],
    ) -> str:
        """Adds a payload or an `Item` and returns its id; waits up to `wait` for capacity. Options are those of `Item`.

        `on_clash` as of Queue.push. Raises PipelineError, QueueFull, DuplicateTask.
        """
        return self.push_many(queue, [item_of(payload, options)], wait=wait, on_clash=on_clash)[0]

    def push_many(
        self, queue: str, payloads: Iterable[Any], *, wait: Duration = 0, on_clash: OnClash = "existing"
    ) -> list[str]:
        """Adds payloads or `Item`s in order, all or none, and returns their ids; waits up to `wait` for capacity."""
        self._apply_once()
        return self.queue(queue).push_many(payloads, wait=wait, on_clash=on_clash)

    def push_all(
        self,
        queue: str,
        payloads: Iterable[Any],
        *,
        wait: Duration = 0,
        on_clash: OnClash = "existing",
        progress: Progress | None = None,
    ) -> int:
        """Adds any number of payloads or `Item`s in order, a thousand at a time; see `Queue.push_all`."""
        self._apply_once()
        return self.queue(queue).push_all(payloads, wait=wait, on_clash=on_clash, progress=progress)

    def check(self) -> None:
        """Raises PipelineError, with the remedy, when the stations do not fit together."""
        self.graph.check()

    def diagram(self, form: str = "mermaid") -> str:
        """The graph as Mermaid or as text, each queue once."""
        return draw(self.graph, form)

    def apply(self, client: Client | None = None) -> None:
        """Checks the pipeline, then publishes its graph and the declared settings of its queues, in one round trip; a
        pipeline with partitions takes a few more, for the settings of each shard. A change by hand is kept until the
        declared value changes, and the settings of a queue that workers publish stay as they are."""
        self._write(client or self.client)

    def _write(self, client: Client, *, needs_graph: bool = True) -> None:
        self.check()
        names = [node.queue for node in self.graph.nodes]
        keys = keys_of(client)
        settings = publishing(keys, self._stations.queues.values())
        registering = queues.register if needs_graph else queues.register_if_room  # a push registers its own queue
        written = [*registering(keys, names), publish(keys, self.graph, may_fail=not needs_graph), *settings]
        *_, counts = broker_of(client).run_many([*written, shard_counts(keys.queue(names[0]))])
        for name in names if counts.served > 1 else ():
            align_shards(client.queue(name))

    def _apply_once(self) -> None:
        current = client, _ = self.client, self._stations.changes
        if self._applied != current:
            self._write(client, needs_graph=False)  # a producer's user may add items, and not write the graph
            self._applied = current

    def _declare(self, queue: str, link: Link, options: dict[str, Any], kind: str) -> Callable[[S], S]:
        default, explicit = queue.partition("/")[2], _OPTIONS[kind]
        what = f"{kind} of queue {default!r}"
        settle_station(self.name, queue, options, default_name=default, what=what, explicit=explicit)

        def declare(function: S) -> S:
            check_function(function, queue, ("item",), may_yield=link.fan_out)
            settled = settle_station(
                self.name, queue, options, default_name=name_of(function, default), what=what, explicit=explicit
            )
            definition = define_station(function, link, settled)
            self._stations.add_python(PythonStep(function, link), definition, settled.settings)
            return function

        return declare

    def _declare_spark(
        self, link: Link, name: str | None, settings: Mapping[str, Any], batches: Mapping[str, Any],
        sink: TableSink | None = None,
    ) -> Callable[[F], F]:  # fmt: skip
        arguments = _SPARK_SINK if link.is_sink and sink is None else _SPARK_STATION

        def declare(function: F) -> F:
            check_function(function, link.queue, arguments, may_await=False)
            own = name or name_of(function, link.queue.partition("/")[2])
            if sink is not None:
                self.graph.forget(link.queue)  # the call that made this decorator declared it
            does = function if sink is None else replace(sink, shape=function)
            self._add_spark(link, own, settings, batches, does, origin_of(function))
            return function

        return declare

    def _add_spark(
        self, link: Link, name: str, settings: Mapping[str, Any], batches: Mapping[str, Any],
        function: Callable[..., Any], origin: str,
    ) -> None:  # fmt: skip
        declared = SparkStation(pipeline=self.name, queue=link.queue, name=name, origin=origin, function=function,
                                link=link, **batches)  # fmt: skip
        self._stations.add_spark(declared, settings)


def _link(
    pipeline: Pipeline, queue: str, targets: tuple[str, ...], *, fan_out: bool = False, is_sink: bool = False
) -> Link:
    graph = pipeline.graph
    return Link(
        queue=queue, targets=targets, waits=partial(graph.waits, queue), max_hops=pipeline.max_hops,
        above=partial(graph.above, queue), fan_out=fan_out, is_sink=is_sink,
    )  # fmt: skip


_known: dict[str, tuple[str, Pipeline]] = {}


def find_pipeline(name: str) -> Pipeline:
    """The pipeline with this name in the loaded modules. Raises PipelineError, which names the nearest."""
    if name not in _known:
        raise PipelineError(f"no loaded module declares a pipeline {name!r}; {nearest(name, sorted(_known))}")
    return _known[name][1]


def all_pipelines() -> list[Pipeline]:
    """Every pipeline of this process, by name."""
    return [_known[name][1] for name in sorted(_known)]


def forget_pipeline(name: str) -> None:
    """Removes a pipeline and its stations, for tests that declare their own pipelines."""
    if name in _known:
        _, pipeline = _known.pop(name)
        for node in pipeline.graph.nodes:
            forget_station(node.queue)
            forget_queue(node.queue)


def _make_known(pipeline: Pipeline, module: str) -> None:
    if pipeline.name in _known:
        before, _ = _known[pipeline.name]
        if before != module:
            raise PipelineError(
                f"pipeline {pipeline.name!r} is made in module {before} and in {module}; import it from one of them, "
                "or give one another name"
            )
        forget_pipeline(pipeline.name)  # the module was reloaded, or a cell of a notebook run again
    _known[pipeline.name] = (module, pipeline)
