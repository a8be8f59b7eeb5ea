"""Stations on Spark as they are declared. Nothing here runs one, and nothing here needs Spark.

`jobrunner.spark.station.driver` does: its `build_driver(declaration, client, seen)` makes the Driver that serves the
queue. It is named here by its path and imported when a worker starts, as this package lies below it and must work
without Spark.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from jobrunner.broker.calls import queues
from jobrunner.client.client import Client
from jobrunner.client.internals import broker_of, keys_of
from jobrunner.client.settings_hash import write_settings
from jobrunner.errors import InvalidOption
from jobrunner.etl.station_outcome import Link
from jobrunner.jobs.driver import Driver, MakeDriver, Seen
from jobrunner.retry import seconds
from jobrunner.settings import Duration, check_whole

ENGINE = "jobrunner.spark.station.driver"
LARGEST_BATCH = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkStation:
    """A station or sink whose function takes and returns DataFrames. All that a driver needs to know of it."""

    pipeline: str
    queue: str
    """Full name."""
    name: str
    origin: str
    """module:qualified name of the function."""
    function: Callable[..., Any] = field(repr=False)
    """(df, spark) -> DataFrame; of a sink (df, spark, batch) -> None."""
    link: Link = field(repr=False)
    """Where items may go: `targets` (full names), `waits(to)`, `max_hops`, `fan_out`, `is_sink`."""
    batch: int = 10_000
    """Items at most."""
    max_wait: float = 1.0
    """Seconds that a batch which is not full waits for more."""
    schema: str | None = None
    """DDL of the payload's columns; None: one column `payload`."""
    missing: Literal["drop", "fail"] = "drop"
    """How an item without an output row is treated."""
    emits_new: bool = False
    """Rows are new items, whatever came in."""
    lease: float = 60.0
    """Seconds; the driver renews it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """For `Queue.configure`: only what was given."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Full names of the queues it leads to; none for a sink."""
        return self.link.targets

    @property
    def is_sink(self) -> bool:
        """Whether it is the end of the line."""
        return self.link.is_sink

    @property
    def fan_out(self) -> bool:
        """Whether several rows of one item are several items."""
        return self.link.fan_out

    @property
    def rest(self) -> str:
        """The outcome of items that no row names: succeeded or dropped."""
        return "succeeded" if self.is_sink or self.fan_out or self.emits_new else "dropped"


def driver_of(declared: SparkStation) -> MakeDriver:
    """A function that makes the driver of a declared station: it writes the queue's settings and imports
    jobrunner.spark."""

    def make(client: Client, seen: Seen) -> Driver:
        if declared.settings:
            written = write_settings(declared.settings, declared.queue)
            broker_of(client).run(queues.configure(keys_of(client).queue(declared.queue), written))
        driver: Driver = import_module(ENGINE).build_driver(declared, client, seen)
        return driver

    return make


def settle_batches(
    queue: str, *, batch: int, max_wait: Duration, schema: str | None, missing: str, lease: Duration
) -> dict[str, Any]:
    """These options, checked. Raises InvalidOption."""
    check_whole(batch, "batch", minimum=1, maximum=LARGEST_BATCH)
    if missing not in ("drop", "fail"):
        raise InvalidOption(f"missing={missing!r} of queue {queue!r}: choose 'drop' or 'fail'")
    if schema is not None and not (isinstance(schema, str) and schema.strip()):
        raise InvalidOption(f"schema={schema!r} of queue {queue!r}: give columns like 'id int, name string'")
    lease_s = seconds(lease, option="lease")
    if lease_s <= 0:
        raise InvalidOption(f"lease={lease!r} of queue {queue!r}: give more than 0")
    return {
        "batch": batch,
        "max_wait": seconds(max_wait, option="max_wait"),
        "schema": schema,
        "missing": missing,
        "lease": lease_s,
    }
