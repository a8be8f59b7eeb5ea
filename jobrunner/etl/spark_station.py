"""Stations on Spark as they are declared. Nothing here runs one, and nothing here needs Spark.

`jobrunner.spark.station.driver` does: its `build_driver(declaration, client, seen)` makes the Driver that serves the
queue. It is named here by its path and imported when a worker starts, as this package lies below it and must work
without Spark.

Also the place of this process's Spark session and Spark's own settings. The command line settles them before it loads
the user's modules. The first of these wins: arguments of `spark_session`, then the command line, then the environment,
then `[tool.jobrunner.spark]` of pyproject.toml.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from jobrunner.broker.calls import queues
from jobrunner.broker.shards import in_partition_of, whole_queue
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.settings_hash import write_settings
from jobrunner.errors import InvalidOption
from jobrunner.etl.station_outcome import Link
from jobrunner.etl.table_sink import TableAddress
from jobrunner.formatting import describe
from jobrunner.jobs.registry import Driver, MakeDriver, Seen
from jobrunner.retry import seconds
from jobrunner.settings import Duration, check_whole, file_settings

ENGINE = "jobrunner.spark.station.driver"
LARGEST_BATCH = 1_000_000
AUTO = "auto"
SMALLEST_AUTO, LARGEST_AUTO = 10_000, 200_000
"""Limits of a batch whose size follows the time that batches take."""
MOST_PARALLEL, PARALLEL = 16, 2
"""Batches of a station that run at once in a process: at most, and where it is not declared."""


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
    """(df, spark) -> DataFrame; of a sink (df, spark, batch) -> None; of one into a table a TableSink, of a chain a
    StationChain: both name their tables in `addresses`."""
    link: Link = field(repr=False)
    """Where items may go: `targets` (full names), `waits(to)`, `max_hops`, `fan_out`, `is_sink`."""
    batch: int | Literal["auto"] = 10_000
    """Items at most."""
    min_rows: int | None = None
    """Items with which a batch begins when the queues before this one are empty; None: a tenth of a full batch."""
    max_wait: float = 1.0
    """Seconds that a batch which is not full waits for more."""
    parallel: int = PARALLEL
    """Batches of one process that run at once."""
    schema: str | None = None
    """DDL of the payload's columns; None: one column `payload`."""
    missing: Literal["drop", "fail"] = "drop"
    """How an item without an output row is treated."""
    emits_new: bool = False
    """Rows are new items, whatever came in."""
    lease: float = 60.0
    """Seconds; the driver renews it."""
    quarantine: bool = False
    """Whether an item that fails alone by an error of its row is dead at once, without further attempts."""
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
    def tables(self) -> tuple[TableAddress, ...]:
        """The tables that its function is declared with; what a function of the user's own writes to is not known."""
        return getattr(self.function, "addresses", ())

    @property
    def fan_out(self) -> bool:
        """Whether several rows of one item are several items."""
        return self.link.fan_out

    @property
    def rest(self) -> str:
        """The outcome of items that no row names: succeeded or dropped."""
        return "succeeded" if self.is_sink or self.fan_out or self.emits_new else "dropped"


_PUBLISHED = ("batch", "min_rows", "max_wait", "parallel", "lease", "quarantine", "schema")


def batches_of(declared: SparkStation) -> dict[str, Any]:
    """What a reader of the published graph learns about its batches."""
    found = {name: getattr(declared, name) for name in _PUBLISHED}
    if not declared.is_sink:
        found |= {name: getattr(declared, name) for name in ("missing", "fan_out", "emits_new")}
    return found


def driver_of(declared: SparkStation) -> MakeDriver:
    """A function that makes the driver of a declared station: it writes the queue's settings and imports
    jobrunner.spark."""

    def make(client: Client, seen: Seen) -> Driver:
        for address in declared.tables:
            address.check_installed()
        if declared.settings:
            written = write_settings(declared.settings, declared.queue)
            broker_of(client).run(queues.configure(keys_of(client).queue(declared.queue), written))
        driver: Driver = import_module(ENGINE).build_driver(declared, client, seen)
        return driver

    return make


def shard_driver_of(declared: SparkStation) -> Callable[[str], MakeDriver]:
    """Returns a function from a shard of the station's queue to what makes its driver. A partition is a pipeline of its
    own, so the station is the same one there; settings reach the shard with those of the whole queue."""
    return lambda shard: driver_of(_in_partition(declared, shard))


def _in_partition(declared: SparkStation, shard: str) -> SparkStation:
    link = declared.link
    here = replace(
        link, queue=shard, targets=tuple(in_partition_of(shard, to) for to in link.targets),
        waits=lambda to: link.waits(whole_queue(to)),
        above=lambda: tuple(in_partition_of(shard, name) for name in link.above()),
    )  # fmt: skip
    return replace(declared, queue=shard, link=here, settings={})


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
    """These options, checked. Raises InvalidOption."""
    if batch != AUTO:
        _check_batch(batch, queue)
    if min_rows is not None:
        check_whole(min_rows, "min_rows", minimum=1, maximum=LARGEST_AUTO if isinstance(batch, str) else batch)
    if parallel is not None:
        check_whole(parallel, "parallel", minimum=1, maximum=MOST_PARALLEL)
    if missing not in ("drop", "fail"):
        raise InvalidOption(f"missing={missing!r} of queue {queue!r}: choose 'drop' or 'fail'")
    if schema is not None and not (isinstance(schema, str) and schema.strip()):
        raise InvalidOption(f"schema={schema!r} of queue {queue!r}: give columns like 'id int, name string'")
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


MASTER, REMOTE, CONF = "JOBRUNNER_SPARK_MASTER", "JOBRUNNER_SPARK_REMOTE", "JOBRUNNER_SPARK_CONF"
NEEDED_CONF = {"spark.sql.python.filterPushdown.enabled": "true"}
"""Without it Spark refuses every read of a source that takes filters; it is off by default."""
_CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
_PLACES = ("master", "remote")
_KEY = re.compile(r"spark(\.[A-Za-z0-9_-]+)+")
_TABLE = "[tool.jobrunner.spark] of pyproject.toml"


def choose(*, master: str | None = None, remote: str | None = None, conf: Iterable[str] = ()) -> dict[str, str]:
    """Checks the command line's options for sessions of this process and of its children, before modules of the user
    are imported. `conf`: texts `key=value`. Returns variables for the environment. Raises InvalidOption.
    """
    if master and remote:
        raise InvalidOption("--master and --remote exclude each other; give one of them")
    given, stored = conf_of_options(conf), conf_of_environment()
    conf_of_file()
    variables = {MASTER: master or "", REMOTE: remote or ""} if master or remote else {}
    prepare_for(remote or (None if master else where()[1]))
    return variables | ({CONF: json.dumps(stored | given)} if given else {})


def prepare_for(remote: str | None) -> None:
    """Selects Connect mode before user modules are imported: PySpark asks for it when a module declares a `@udf`, which
    would else be made for a JVM of this process and fail on a Connect server. Silences py4j."""
    if remote:
        os.environ.setdefault(_CONNECT_MODE, "1")
    silence_py4j()


def silence_py4j() -> None:
    """Silences py4j, which logs a traceback for each object when the JVM is gone, thousands of lines. This package logs
    the cause in one line. A level that the program chose stays."""
    py4j, root = logging.getLogger("py4j"), logging.getLogger()
    if py4j.level != logging.NOTSET:
        return
    py4j.setLevel(logging.CRITICAL + 1)
    root.addFilter(_is_not_of_py4j)  # it writes some lines to the root logger


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def where() -> tuple[str | None, str | None]:
    """(master, remote) of environment and file; at most one of them is set. Raises InvalidOption."""
    master, remote = os.environ.get(MASTER) or None, os.environ.get(REMOTE) or None
    if not master and not remote:
        table = _table()
        master, remote = table.get("master") or None, table.get("remote") or None
        if master and remote:
            raise InvalidOption(f"{_TABLE} names both a master and a remote; remove one of them")
    return (None if remote else master), remote


def conf_of_file() -> dict[str, str]:
    """Spark's own settings in `[tool.jobrunner.spark]`. Raises InvalidOption."""
    named = {name: value for name, value in _table().items() if name not in _PLACES}
    return dict(check_setting(name, value, f"in {_TABLE}") for name, value in named.items())


def conf_of_options(conf: Iterable[str]) -> dict[str, str]:
    """Spark's own settings in texts `key=value` of the command line. Raises InvalidOption."""
    return dict(map(_pair, conf))


def conf_of_environment() -> dict[str, str]:
    """Spark's own settings in JOBRUNNER_SPARK_CONF, a JSON object; the command line puts its own there."""
    text = os.environ.get(CONF)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidOption(f'{CONF}={describe(text)} is no JSON object; write {{"spark.driver.memory": "4g"}}')
    return dict(check_setting(name, value, f"in {CONF}") for name, value in found.items())


def check_setting(name: str, value: object, at: str) -> tuple[str, str]:
    """(name, value as text). Raises InvalidOption for an impossible name or value of a Spark setting."""
    if not isinstance(name, str) or not _KEY.fullmatch(name):
        hint = f"did you mean {f'spark.{name}'!r}?" if _KEY.fullmatch(f"spark.{name}") else "write spark.driver.memory"
        raise InvalidOption(f"{describe(name)} {at} is no setting of Spark's: their names begin with 'spark.'; {hint}")
    if isinstance(value, bool):
        return name, str(value).lower()
    if not isinstance(value, (str, int, float)):
        raise InvalidOption(f"{name} = {describe(value)} {at}: give a text, a number, true or false")
    return name, str(value)


def _pair(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise InvalidOption(f"--conf {describe(word)} has no value; write --conf spark.driver.memory=4g")
    return check_setting(name.strip(), value, "in --conf")


def _table() -> dict[str, Any]:
    return _flat(file_settings().spark)


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """TOML makes tables of a bare `spark.driver.memory = "4g"`; quoted, it is one name."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping) and (above or name == "spark"):
            found |= _flat(value, f"{above}{name}.")
        else:
            found[f"{above}{name}"] = value
    return found
