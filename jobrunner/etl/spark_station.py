"""Declarations of stations on Spark. This module runs no station and does not need Spark.

`jobrunner.spark.station.driver` runs them: its `StationDriver(declaration, client, seen)` makes the Driver that serves
the queue. This module names it by its path and imports it when a worker starts, as this package must work without
Spark.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Literal

from jobrunner.broker.shards import in_partition_of, whole_queue
from jobrunner.client.client import Client
from jobrunner.errors import InvalidOption
from jobrunner.etl.station_outcome import Link
from jobrunner.etl.table_sink import TableAddress
from jobrunner.formatting import describe
from jobrunner.jobs.batch_driver import Driver, MakeDriver, Seen
from jobrunner.retry import seconds
from jobrunner.settings import Duration, check_whole

ENGINE = "jobrunner.spark.station.driver"
LARGEST_BATCH = 1_000_000
AUTO = "auto"
SMALLEST_AUTO, LARGEST_AUTO = 10_000, 200_000
"""Limits of a batch whose size follows the time that batches take."""
MOST_PARALLEL, PARALLEL = 16, 2
"""The most batches of a station that run at once in a process, and the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkStation:
    """A station or sink whose function takes and returns DataFrames, complete for its driver."""

    pipeline: str
    queue: str
    """Full name."""
    name: str
    origin: str
    """module:qualified name of the function."""
    function: Callable[..., Any] = field(repr=False)
    """(df, spark) -> DataFrame; for a sink (df, spark, batch) -> None; for a sink into a table a TableSink, for a chain
    a StationChain: both name their tables in `addresses`."""
    link: Link = field(repr=False)
    """The targets of items: `targets` (full names), `waits(to)`, `max_hops`, `fan_out`, `is_sink`."""
    batch: int | Literal["auto"] = 10_000
    """The most items of a batch."""
    min_rows: int | None = None
    """The number of items with which a batch begins when the queues before are empty; None: a tenth of a full batch."""
    max_wait: float = 1.0
    """Seconds that a batch waits to be full."""
    parallel: int = PARALLEL
    """The most batches of one process that run at once."""
    schema: str | None = None
    """DDL of the payload's columns; None: one column `payload`."""
    missing: Literal["drop", "fail"] = "drop"
    """The fate of an item without an output row."""
    emits_new: bool = False
    """Whether all rows are new items, independent of the items that came in."""
    lease: float = 60.0
    """Length of the lease in seconds; the driver renews it."""
    quarantine: bool = False
    """Whether an item that fails alone by an error of its row is dead at once, without further attempts."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Full names of its target queues; none for a sink."""
        return self.link.targets

    @property
    def is_sink(self) -> bool:
        """Whether items end at this station."""
        return self.link.is_sink

    @property
    def tables(self) -> tuple[TableAddress, ...]:
        """The declared tables of its function; the targets of a user's own function are not known."""
        return getattr(self.function, "addresses", ())

    @property
    def fan_out(self) -> bool:
        """Whether several rows of one item are several items."""
        return self.link.fan_out

    @property
    def rest(self) -> str:
        """The outcome of items that no row names: succeeded or dropped."""
        return "succeeded" if self.is_sink or self.fan_out or self.emits_new else "dropped"


_LONGEST_SCHEMA = 60
"""The most characters of a schema in an error; the repr of a StructType has some forty for each column."""
_PUBLISHED = ("batch", "min_rows", "max_wait", "parallel", "lease", "quarantine", "schema")


def batches_of(declared: SparkStation) -> dict[str, Any]:
    """The batch options of a station for readers of the published graph."""
    found = {name: getattr(declared, name) for name in _PUBLISHED}
    if not declared.is_sink:
        found |= {name: getattr(declared, name) for name in ("missing", "fan_out", "emits_new")}
    return found


def driver_of(declared: SparkStation) -> MakeDriver:
    """A function that makes the driver of a declared station: it imports jobrunner.spark."""

    def make(client: Client, seen: Seen) -> Driver:
        for address in declared.tables:
            address.check_installed()
        driver: Driver = import_module(ENGINE).StationDriver(declared, client, seen)
        return driver

    return make


def shard_driver_of(declared: SparkStation) -> Callable[[str], MakeDriver]:
    """Returns a function from a shard of the station's queue to the factory of its driver. A partition is a pipeline of
    its own with the same station; its settings come with those of the whole queue."""
    return lambda shard: driver_of(_in_partition(declared, shard))


def _in_partition(declared: SparkStation, shard: str) -> SparkStation:
    link = declared.link
    here = replace(
        link, queue=shard, targets=tuple(in_partition_of(shard, to) for to in link.targets),
        waits=lambda to: link.waits(whole_queue(to)),
        above=lambda: tuple(in_partition_of(shard, name) for name in link.above()),
    )  # fmt: skip
    return replace(declared, queue=shard, link=here)


def settle_batches(
    queue: str,
    *,
    batch: int | str,
    min_rows: int | None,
    max_wait: Duration,
    parallel: int | None,
    schema: str | None,
    missing: str,
    lease: Duration,
    quarantine: bool,
) -> dict[str, Any]:
    """Checks and returns the batch options of a station. Raises InvalidOption."""
    if batch != AUTO:
        _check_batch(batch, queue)
    if min_rows is not None:
        check_whole(min_rows, "min_rows", minimum=1, maximum=LARGEST_AUTO if isinstance(batch, str) else batch)
    if parallel is not None:
        check_whole(parallel, "parallel", minimum=1, maximum=MOST_PARALLEL)
    if missing not in ("drop", "fail"):
        raise InvalidOption(f"missing={missing!r} of queue {queue!r}: choose 'drop' or 'fail'")
    if schema is not None and not (isinstance(schema, str) and schema.strip()):
        described = describe(schema, _LONGEST_SCHEMA)
        raise InvalidOption(f"schema={described} of queue {queue!r}: give columns as text, like 'id int, name string'")
    lease_s = seconds(lease, option="lease")
    if not isinstance(quarantine, bool):
        raise InvalidOption(f"quarantine={quarantine!r} of queue {queue!r}: give True or False")
    if lease_s <= 0:
        raise InvalidOption(f"lease={lease!r} of queue {queue!r}: give more than 0")
    return {
        "batch": batch,
        "min_rows": min_rows,
        "parallel": PARALLEL if parallel is None else parallel,
        "max_wait": seconds(max_wait, option="max_wait"),
        "schema": schema,
        "missing": missing,
        "lease": lease_s,
        "quarantine": quarantine,
    }


def _check_batch(batch: object, queue: str) -> None:
    if isinstance(batch, str):
        raise InvalidOption(f"batch={batch!r} of queue {queue!r}: give a number of items, or 'auto'")
    check_whole(batch, "batch", minimum=1, maximum=LARGEST_BATCH)
