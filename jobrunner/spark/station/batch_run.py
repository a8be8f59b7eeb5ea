"""One batch at a Spark station, from its members to the decision. Each step can be called by itself.

Invariants: no row is visible before the decision; a batch that is decided was checked as a whole, so each of its
members is accounted for once. In the DataFrame that the function returns, columns that begin with `_` steer the item or
are its own; all others are its payload. Errors that the columns alone reveal are raised here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql import types as spark_types

from jobrunner.broker.calls.batches import nonces, staged_ids, still_members
from jobrunner.client.batches import BatchLease
from jobrunner.client.client import Client, endpoint_of, keys_of
from jobrunner.errors import PipelineError, StationError
from jobrunner.etl.graph import nearest
from jobrunner.etl.spark_station import SparkStation
from jobrunner.outcome import Steer
from jobrunner.spark.columns import NUMBER, WHOLE
from jobrunner.spark.station.members import (
    MISFITS,
    OWN,
    PAYLOAD,
    BatchConnections,
    BatchRef,
    PayloadShape,
    members_frame,
    shape_of,
)
from jobrunner.spark.station.staging import STAGED, RowRules, StagedRows, digests_of, rules_of, stage_rows

_NAMED = 3
"""Items that an error about many names."""


def _nothing() -> None:
    """The `renew` of a batch without a lease, such as a test of a sink makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkBatch:
    """The batch, as a sink receives it. `id` is the same for the same items however often they come: rows written under
    it are written once."""

    id: str
    supersedes: tuple[str, ...]
    """Ids of batches of which this one is a part, after they failed and were split: rows written under those do not
    count, as this batch and the other parts write them anew. Empty except for parts."""
    epoch: int
    """Number of times the batch was taken, from 1 on."""
    size: int
    renew: Callable[[], None] = field(default=_nothing, repr=False, compare=False)
    """Renews the lease. Raises BatchLost when another attempt may have begun: then write nothing more."""

    @property
    def attempt(self) -> int:
        """The same as `epoch`, from 1 on."""
        return self.epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class StationPlan:
    """The values that all batches of a station share."""

    station: SparkStation
    shape: PayloadShape
    rules: RowRules
    rest: str
    """The outcome of items that no row names."""
    url: str = field(repr=False)
    prefix: str


def plan_of(station: SparkStation, client: Client) -> StationPlan:
    """Needs a session. Raises InvalidOption that names the column of the schema."""
    return StationPlan(
        station=station,
        shape=shape_of(station.schema, station.queue),
        rules=rules_of(station, payload_limit=client.settings.payload_limit),
        rest=station.rest,
        url=endpoint_of(client).shared_url(),
        prefix=keys_of(client).prefix,
    )


class BatchRun:
    """One attempt at one batch. Its steps:

    1. `stage` lets the function make rows of the members, and Spark stage them, checked;
    2. `check` counts what Spark's counted attempts staged;
    3. `decide` makes it happen.
    """

    def __init__(self, spark: SparkSession, plan: StationPlan, lease: BatchLease) -> None:
        self.lease = lease
        self.staged: list[StagedRows] = []
        self._spark = spark
        self._plan = plan
        self._broker, self._keys = lease.batches.broker, lease.batches.keys

    def run(self) -> int:
        """All steps; returns how many rows were staged. Raises what the function raised, and what Spark did."""
        self.stage()
        self.check()
        self.decide()
        return sum(one.rows for one in self.staged)

    def stage(self) -> None:
        """The function, and the rows it makes. Raises PipelineError that names column and item."""
        station, lease = self._plan.station, self.lease
        place = BatchRef(
            url=self._plan.url, prefix=self._plan.prefix, queue=lease.queue, batch=lease.id, epoch=lease.epoch,
            root=lease.root, first=lease.first, size=lease.size, failures=lease.failures,
        )  # fmt: skip
        df = members_frame(self._spark, BatchConnections(place, self._broker, self._keys), self._plan.shape)
        if station.link.is_sink:
            batch = SinkBatch(
                id=lease.id, supersedes=_larger_ones(lease), epoch=lease.epoch, size=lease.size, renew=lease.renew
            )
            _check_sink(station, _steered(station.function(df, self._spark, batch)))
            return
        rows = rows_of(_steered(station.function(df, self._spark)), self._plan.rules, self._plan.shape)
        rules = replace(self._plan.rules, checks_payload=rows.checks_payload)
        staging = rows.frame.mapInArrow(partial(stage_rows, place, rules), STAGED)
        self.staged = [StagedRows(row["nonce"], row["rows"], bytes(row["digests"])) for row in staging.collect()]

    def check(self) -> None:
        """Raises PipelineError for an item with several rows, or one without when none may be missing."""
        named = np.frombuffer(b"".join(one.digests for one in self.staged), np.uint64)
        found, counts = np.unique(named, return_counts=True)
        if not self._plan.rules.fan_out and len(found) < len(named):
            self._check_single(dict(zip(found[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True)))
        if self._plan.station.missing == "fail" and len(found) < self.lease.size:
            self._check_none_missing(found)

    def decide(self) -> None:
        """Decides the batch: from here on its rows are applied. Raises BatchLost."""
        nonces = [*(one.nonce for one in self.staged), *self._misfits()]
        self.lease.decide(nonces, rest=self._plan.rest, max_hops=self._plan.station.link.max_hops)

    def _misfits(self) -> list[str]:
        """Staging keys of payloads that do not fit, of any attempt: whether a payload fits does not depend on the
        attempt."""
        return self._broker.run(nonces(self._keys, self.lease.id, self.lease.epoch, prefix=MISFITS))

    def _check_single(self, counts: dict[int, int]) -> None:
        members = self._members()
        digests = digests_of(one.encode() for one in members).tolist()
        for digest, count in counts.items():
            twice = [one for one, other in zip(members, digests, strict=True) if other == digest]
            if count > len(twice):  # else two ids have one digest
                raise PipelineError(
                    f"station {self.lease.queue!r} returned {count} rows for item {twice[0] if twice else '?'} "
                    f"({len(counts)} such items): declare fan_out=True to make items of them, or drop what is double"
                )

    def _check_none_missing(self, found: "np.ndarray[Any, Any]") -> None:
        members = self._members()
        present = np.isin(digests_of(one.encode() for one in members), found)
        missing = [one for one, is_there in zip(members, present.tolist(), strict=True) if not is_there]
        broker, keys = self._broker, self._keys
        for nonce in self._misfits():
            missing = _without(missing, broker.run(staged_ids(keys, self.lease.id, self.lease.epoch, nonce)))
        are_there = broker.run(still_members(keys, self.lease.root, missing)) if missing else []
        missing = [one for one, is_there in zip(missing, are_there, strict=True) if is_there]
        if missing:
            raise PipelineError(
                f"station {self.lease.queue!r} returned no row for {len(missing)} of {self.lease.size} items, "
                f"such as {', '.join(missing[:_NAMED])}: return a row for each, or declare missing='drop'"
            )

    def _members(self) -> list[str]:
        return self.lease.members(0, self.lease.size)


def _larger_ones(lease: BatchLease) -> tuple[str, ...]:
    found, batch_id = [], lease.id
    while batch_id != lease.root:
        batch_id = batch_id.rpartition(".")[0]
        found.append(batch_id)
    return tuple(found)


def _steered(returned: Any) -> Any:
    """Raises a steering value that the function returned: it may return or raise one."""
    if isinstance(returned, Steer):
        raise returned
    return returned


def _check_sink(station: SparkStation, returned: Any) -> None:
    if isinstance(returned, DataFrame):
        raise StationError(
            f"sink {station.queue!r} returned a DataFrame, which Spark never evaluates: write it, or declare a "
            "spark_station"
        )


def _without(ids: Sequence[str], others: Sequence[str]) -> list[str]:
    gone = set(others)
    return [one for one in ids if one not in gone]


ID, TO, DELAY, PRIORITY, HEADERS = "_id", "_to", "_delay", "_priority", "_headers"
_STEERING = (TO, DELAY, PRIORITY, HEADERS)
_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_HEADERS_TYPE = spark_types.MapType(spark_types.StringType(), spark_types.StringType())


@dataclass(frozen=True, slots=True)
class OutputRows:
    """Rows to stage: `frame` has _id, payload and those of _to, _delay, _priority, _headers that were there."""

    frame: DataFrame
    checks_payload: bool
    """Whether the payload is text of the user's own, which may be no JSON."""


def rows_of(returned: Any, rules: RowRules, shape: PayloadShape) -> OutputRows:
    """The rows of what the function returned for payloads of that shape. Raises StationError that names the column."""
    who = f"station {rules.station!r}"
    if not isinstance(returned, DataFrame):
        said = "nothing" if returned is None else f"{type(returned).__name__} {returned!r}"[:80]
        raise StationError(f"{who} returned {said}: return a DataFrame")
    if returned.isStreaming:
        raise StationError(f"{who} returned a streaming DataFrame: return one made from df")
    columns = {field.name: field.dataType for field in returned.schema.fields}
    _check_names(who, returned.columns, rules)
    _check_types(who, columns)
    payload = {name: kind for name, kind in columns.items() if not name.startswith("_")}
    if not payload:
        raise StationError(f"{who} returned no column for the payload: keep those that are to go on, next to _id")
    text, checked = _payload(payload, shape)
    kept = [_steering(name) for name in columns if name in _STEERING]
    task_id = F.col(ID) if ID in columns else F.lit(None).cast("string").alias(ID)
    return OutputRows(returned.select(task_id, text.alias(PAYLOAD), *kept), checked)


def _check_names(who: str, names: list[str], rules: RowRules) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise StationError(f"{who} returned column {twice[0]!r} twice: drop or rename one of them (join by name)")
    if ID not in names and not rules.emits_new:
        raise StationError(
            f"{who} lost the column _id: keep it in select and groupBy, or declare emits_new=True for new items"
        )
    targets = dict.fromkeys(rules.targets.values())
    if TO not in names and len(targets) != 1:
        short = ", ".join(map(repr, targets))
        raise StationError(f"{who} returned no column _to but leads to {short}: name one of them for each row")
    for name in names:
        if name.startswith("_") and name not in _STEERING + OWN:
            hint = nearest(name, _STEERING)
            raise StationError(f"{who} returned column {name!r}: names that begin with _ steer the item; {hint}")


def _check_types(who: str, columns: dict[str, spark_types.DataType]) -> None:
    wanted: dict[str, tuple[tuple[type[spark_types.DataType], ...], str]] = {
        ID: ((spark_types.StringType,), "a string, as it was in df"),
        TO: ((spark_types.StringType,), "a string, the name of a queue"),
        DELAY: (NUMBER, "a number of seconds"),
        PRIORITY: (WHOLE, "a whole number: 0, 1 or 2"),
        HEADERS: ((spark_types.MapType,), "a map of strings"),
    }
    for name, (kinds, should) in wanted.items():
        kind = columns.get(name)
        if kind is None or isinstance(kind, (*kinds, spark_types.NullType)):
            continue
        raise StationError(f"{who} returned column {name!r} of type {kind.simpleString()}: make it {should}")


def _payload(columns: dict[str, spark_types.DataType], shape: PayloadShape) -> tuple[Column, bool]:
    if list(columns) == [PAYLOAD] and shape.columns is None:
        if isinstance(columns[PAYLOAD], spark_types.StringType):
            return F.col(PAYLOAD), True
        if isinstance(columns[PAYLOAD], spark_types.VariantType):
            return F.to_json(F.col(PAYLOAD)), False
    return F.to_json(F.struct(*[F.col(f"`{name}`") for name in columns]), _JSON), False


def _steering(name: str) -> Column:
    if name == HEADERS:
        return F.to_json(F.col(name).cast(_HEADERS_TYPE)).alias(name)
    return F.col(name).cast({TO: "string", DELAY: "double", PRIORITY: "int"}[name]).alias(name)
