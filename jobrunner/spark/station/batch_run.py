"""An attempt at a batch of a Spark station, from its members to the decision. Each step can be called separately.

Invariants: no row is visible before the decision; a decided batch was checked as a whole, so each of its members is
accounted for once.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from jobrunner.broker.calls.batch_reads import first_error, nonces, staged_ids, staged_rows, still_members
from jobrunner.broker.calls.batches import rows_lost
from jobrunner.broker.calls.server import run_id
from jobrunner.client.batches import BatchLease
from jobrunner.client.client import Client, endpoint_of, keys_of
from jobrunner.clock import monotonic
from jobrunner.errors import PipelineError, ServerRefused, StationError
from jobrunner.etl.chain import StationChain
from jobrunner.etl.spark_station import SparkStation
from jobrunner.formatting import counted
from jobrunner.spark.row_errors import ERROR, ID, fold_errors
from jobrunner.spark.running import activate
from jobrunner.spark.shipping import Shipped
from jobrunner.spark.station.members import (
    CANCELLED,
    MISFITS,
    BatchConnections,
    BatchRef,
    cancelled_members,
    members_frame,
    without_members,
)
from jobrunner.spark.station.misfits import InnerPayloads, NoPayloadFits
from jobrunner.spark.station.output_rows import check_sink, check_types, rows_of, steered
from jobrunner.spark.station.payload_shape import PayloadShape, shape_of
from jobrunner.spark.station.sink_batch import BatchMembers, SinkBatch
from jobrunner.spark.station.staging import (
    ERRORS,
    STAGED,
    RowRules,
    StagedRows,
    digests_of,
    rules_of,
    stage_batches,
    stage_rows,
)

_NAMED = 3
"""The most items that an error message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StationPlan:
    """Values shared by all batches of a station."""

    station: SparkStation
    shape: PayloadShape
    rules: RowRules
    rest: str
    """The outcome of items without a row."""
    url: str = field(repr=False)
    prefix: str


def plan_of(station: SparkStation, client: Client) -> StationPlan:
    """Builds the plan of a station; needs a session. Raises InvalidOption, which names the column of the schema, also
    for a station within a chain."""
    if isinstance(station.function, StationChain):
        for queue, one in station.function.spark.items():
            shape_of(one.schema, queue)
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

    1. `stage` calls the function with the members; Spark checks and stages its rows;
    2. `check` counts the rows staged by the attempts that Spark counts;
    3. `decide` has the server apply the staged rows.

    `may_bury`: whether all items of the batch may die of payloads that do not fit; called when none fits. `inner`: the
    same for stations within a chain.
    """

    def __init__(
        self, spark: SparkSession, plan: StationPlan, lease: BatchLease, may_bury: Callable[[], bool] = lambda: True,
        inner: InnerPayloads | None = None,
    ) -> None:  # fmt: skip
        self.lease = lease
        self.staged: list[StagedRows] = []
        self.some_fit = True
        """Whether the payload of an item fitted, so that the function worked on an item. Known after `decide`."""
        self.commit_s = 0.0
        """Seconds that the decision took."""
        self._server = ""
        self._written: list[int] = []
        self._cancelled: frozenset[bytes] = frozenset()
        self._may_bury = may_bury
        self._inner = inner or InnerPayloads()
        self._spark = spark
        self._plan = plan
        self._broker, self._keys = lease.batches.broker, lease.batches.keys

    def run(self, around: Callable[[Callable[[], int]], object] = lambda work: work()) -> int:
        """Runs all steps. Returns the number of rows that go to other queues, or that a sink wrote by writers of this
        package, without rows that Spark wrote. Raises the errors of the function, of Spark and of `around`, which is
        called with the steps before the decision: an error behind them fails the batch."""
        around(self._prepare)
        began = monotonic()
        self.decide()
        self.commit_s = monotonic() - began
        return self._rows()

    def _prepare(self) -> int:
        self.stage()
        self.check()
        return self._rows()

    def _rows(self) -> int:
        return sum(one.rows for one in self.staged if not one.nonce.startswith(ERRORS)) + sum(self._written)

    def stage(self) -> None:
        """Calls the function and stages its rows. Raises PipelineError, which names column and item."""
        station, lease = self._plan.station, self.lease
        self.note_server()
        lease.settle_size()
        activate(self._spark)  # as the function may write to a queue
        place = BatchRef(
            url=self._plan.url, prefix=self._plan.prefix, queue=lease.queue, batch=lease.id, epoch=lease.epoch,
            root=lease.root, first=lease.first, size=lease.size, failures=lease.failures,
        )  # fmt: skip
        if lease.epoch > 1 or lease.root != lease.id:
            with BatchConnections(place, self._broker, self._keys) as asking:
                self._cancelled = cancelled_members(asking)
                place = replace(place, cancelled=self._cancelled)
        access = BatchConnections(place, self._broker, self._keys)
        df = members_frame(self._spark, access, self._plan.shape)
        if station.link.is_sink:
            self._call_sink(df, access)
            return
        rows = rows_of(steered(station.function(df, self._spark)), self._plan.rules, self._plan.shape)
        rules = replace(self._plan.rules, checks_payload=rows.checks_payload)
        staging = rows.frame.mapInArrow(Shipped(partial(stage_rows, place, rules)), STAGED)
        self.staged = [StagedRows(row["nonce"], row["rows"], bytes(row["digests"])) for row in staging.collect()]

    def note_server(self) -> None:
        """Records the run id of the server, before rows are staged on it."""
        self._server = self._broker.run(run_id(self._keys.batches))

    def _call_sink(self, df: DataFrame, access: BatchConnections) -> None:
        """Calls the sink's function; again, without some members, for paths that have their rows (see `LeftOut`)."""
        lease = self.lease
        batch = SinkBatch(
            id=lease.id, supersedes=_larger_ones(lease), epoch=lease.epoch, size=lease.size, renew=lease.renew,
            lease=lease, members=BatchMembers(lease), written=self._written,
            payload_limit=self._plan.rules.payload_limit, inner=self._inner,
        )  # fmt: skip
        told: set[str] = set()
        self._run_sink(df, batch, access, told)
        while batch.left_out.next_run():  # after a failover only
            self._run_sink(without_members(df, batch.left_out.members), batch, access, told)
        came_before = lease.epoch > 1 or lease.root != lease.id or batch.left_out.are_some_there
        if came_before and access.reads_later:
            # A sink whose rows are already written reads none, and items with misfit payloads would end as succeeded.
            df.count()

    def _run_sink(self, df: DataFrame, batch: SinkBatch, access: BatchConnections, told: set[str]) -> None:
        with SetAside(access, self._plan.rules, self.staged, told) as aside:
            one = replace(batch, quarantine=aside.quarantine)
            station = self._plan.station
            check_sink(station.queue, steered(station.function(df, self._spark, one)))

    def check(self) -> None:
        """Raises PipelineError for an item with several rows, or without a row, where the station forbids that."""
        named = np.frombuffer(b"".join(one.digests for one in self.staged), np.uint64)
        found, counts = np.unique(named, return_counts=True)
        if not self._plan.rules.fan_out and not self._plan.station.is_sink and len(found) < len(named):
            self._check_single(dict(zip(found[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True)))
        if self._plan.station.missing == "fail" and len(found) < self.lease.size:
            self._check_none_missing(found)

    def decide(self) -> None:
        """Decides the batch: the server then applies its rows. Raises BatchLost, NoPayloadFits, and ServerRefused when
        a restart or a failover may have lost rows."""
        staged = sorted(self.staged, key=lambda one: not one.nonce.startswith(ERRORS))
        misfits = self._misfits()
        self._check_some_fit(misfits)
        rows = {one.nonce: one.rows for one in staged} | misfits
        self.lease.decide(rows, rest=self._plan.rest, max_hops=self._plan.station.link.max_hops)

    def _misfits(self) -> dict[str, int]:
        """Nonces of staged payloads that do not fit, with their row counts, from any attempt: whether a payload fits
        does not depend on the attempt. Only the server has them, so it must not have restarted or failed over."""
        broker, keys, lease = self._broker, self._keys, self.lease
        found = nonces(keys, lease.id, lease.epoch, prefix=MISFITS)
        server, names = broker.run_many([run_id(keys.batches), found])
        if server != self._server:
            raise ServerRefused(rows_lost(lease.id))
        counts = broker.run_many([staged_rows(keys, lease.id, lease.epoch, one) for one in names]) if names else []
        return dict(zip(names, counts, strict=True))

    def _check_some_fit(self, misfits: dict[str, int]) -> None:
        """Raises NoPayloadFits when all items would die of their payloads and may not."""
        if sum(misfits.values()) < self.lease.size:  # a chunk that was read twice has its misfits twice
            return
        broker, keys, lease = self._broker, self._keys, self.lease
        dead: set[str] = set()
        for nonce in misfits:
            dead.update(broker.run(staged_ids(keys, lease.id, lease.epoch, nonce)))
        if not dead.issuperset(self._members()):
            return
        self.some_fit = False
        cancelled = {one.decode() for one in self._cancelled}
        if dead == cancelled or self._may_bury():
            return
        reasons = broker.run_many([first_error(keys, lease.id, lease.epoch, one) for one in misfits])
        reason = next(one for one in reasons if one != CANCELLED.decode())
        raise NoPayloadFits(
            f"none of {counted(len(dead - cancelled), 'payload')} fits, and no batch has succeeded in this process: "
            f"{reason.removeprefix(f'{PipelineError.__name__}: ')}; correct the schema of queue {lease.queue!r}, or "
            "what fills it"
        )

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


class SetAside:
    """Stages a sink's rows with errors, before the other rows are written. The frame is persisted until the `with`
    block ends, so that rows are computed once.

    Invariant: a row is written or staged, never both and never neither, also when it is computed again with another
    result. `told`: the items whose errors are staged, by any call of the sink's function for this attempt.
    """

    def __init__(
        self, access: BatchConnections, rules: RowRules, staged: list[StagedRows], told: set[str]
    ) -> None:
        self._access = access
        self._rules = rules
        self._staged = staged
        self._kept: list[DataFrame] = []
        self._told = told

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for kept in self._kept:
            with suppress(Exception):  # Spark has ended, and the frame with it
                kept.unpersist()

    def quarantine(self, df: DataFrame) -> DataFrame:
        """Stages the rows of `df` with errors. Returns the other rows, without rows of the same items. Raises
        StationError for errors without an _id."""
        rows = fold_errors(df)
        if ERROR not in rows.columns:
            return self._without_dead(rows)
        check_types(f"sink {self._rules.station!r} has", {ERROR: rows.schema[ERROR].dataType})
        if ID not in rows.columns:
            raise StationError(
                f"sink {self._rules.station!r} has errors of rows without _id: keep the column _id, or drop it behind "
                "batch.quarantine(df)"
            )
        rows = rows.persist()
        self._kept.append(rows)
        failed = rows.where(F.col(ERROR).isNotNull()).select(ID, ERROR).toArrow()
        new: list[int] = []  # a sink may write to two tables, and a row may be there twice
        for place, one in enumerate(failed[ID].to_pylist()):
            if one not in self._told:
                self._told.add(one)
                new.append(place)
        self._staged += stage_batches(self._access, self._rules, failed.take(pa.array(new, pa.int64())).to_batches(), 0)
        rows = self._without_dead(rows)
        changed = F.raise_error(F.concat(F.lit("this row had no error before: "), F.col(ERROR)))
        return rows.where(F.when(F.col(ERROR).isNull(), True).otherwise(changed.cast("boolean"))).drop(ERROR)

    def _without_dead(self, rows: DataFrame) -> DataFrame:
        """The rows without items whose errors are staged; all rows when they have no item ids."""
        if not self._told or dict(rows.dtypes).get(ID) != "string":
            return rows
        ids = rows.sparkSession.createDataFrame(pa.table({ID: sorted(self._told)}))
        return rows.join(F.broadcast(ids), rows[ID] == ids[ID], "left_anti")


def _larger_ones(lease: BatchLease) -> tuple[str, ...]:
    found, batch_id = [], lease.id
    while batch_id != lease.root:
        batch_id = batch_id.rpartition(".")[0]
        found.append(batch_id)
    return tuple(found)


def _without(ids: Sequence[str], others: Sequence[str]) -> list[str]:
    gone = set(others)
    return [one for one in ids if one not in gone]
