"""One batch at a Spark station, from its members to the decision. Each step can be called by itself.

Invariants: no row is visible before the decision; a batch that is decided was checked as a whole, so each of its
members is accounted for once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from jobrunner.broker.calls.batches import nonces, staged_ids, still_members
from jobrunner.client.batches import BatchLease
from jobrunner.client.client import Client
from jobrunner.client.internals import broker_of, endpoint_of, keys_of
from jobrunner.errors import PipelineError, StationError
from jobrunner.etl.spark_station import SparkStation
from jobrunner.outcome import Steer
from jobrunner.spark.station.frame import PayloadShape, members_frame, rows_of
from jobrunner.spark.station.members import MISFITS, BatchRef
from jobrunner.spark.station.staging import STAGED, StagedRows, digests_of, rules_of, stage_rows

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
    """Ids of batches of which this one is a part, after they failed and were halved: rows written under those do not
    count, as this batch and its other halves write them anew. Empty except for halves."""
    epoch: int
    """Number of times the batch was taken, from 1 on."""
    size: int
    renew: Callable[[], None] = field(default=_nothing, repr=False, compare=False)
    """Renews the lease. Raises BatchLost when another attempt may have begun: then write nothing more."""

    @property
    def attempt(self) -> int:
        """The same as `epoch`, from 1 on."""
        return self.epoch


class BatchRun:
    """One attempt at one batch. Its steps:

    1. `stage` lets the function make rows of the members, and Spark stage them, checked;
    2. `check` counts what Spark's counted attempts staged;
    3. `decide` makes it happen.
    """

    def __init__(
        self, spark: SparkSession, client: Client, station: SparkStation, shape: PayloadShape, lease: BatchLease
    ) -> None:
        self.lease = lease
        self.staged: list[StagedRows] = []
        self._spark = spark
        self._client = client
        self._station = station
        self._shape = shape
        self._place = _place_of(client, lease)

    def run(self) -> int:
        """All steps; returns how many rows were staged. Raises what the function raised, and what Spark did."""
        self.stage()
        self.check()
        self.decide()
        return sum(one.rows for one in self.staged)

    def stage(self) -> None:
        """The function, and the rows it makes. Raises PipelineError that names column and item."""
        station = self._station
        df = members_frame(self._spark, self._place, self._shape)
        if station.is_sink:
            batch = SinkBatch(
                id=self.lease.id,
                supersedes=_larger_ones(self.lease),
                epoch=self.lease.epoch,
                size=self.lease.size,
                renew=self.lease.renew,
            )
            _check_sink(station, _steered(station.function(df, self._spark, batch)))
            return
        rows = rows_of(_steered(station.function(df, self._spark)), station, self._shape)
        limit = self._client.settings.payload_limit
        rules = rules_of(station, checks_payload=rows.checks_payload, payload_limit=limit)
        staging = rows.frame.mapInArrow(partial(stage_rows, self._place, rules), STAGED)
        self.staged = [StagedRows(row["nonce"], row["rows"], bytes(row["digests"])) for row in staging.collect()]

    def check(self) -> None:
        """Raises PipelineError for an item with several rows, or one without when none may be missing."""
        station = self._station
        named = np.frombuffer(b"".join(one.digests for one in self.staged), np.uint64)
        found, counts = np.unique(named, return_counts=True)
        if not station.fan_out and len(found) < len(named):
            self._check_single(dict(zip(found[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True)))
        if station.missing == "fail" and len(found) < self.lease.size:
            self._check_none_missing(found)

    def decide(self) -> None:
        """Decides the batch: from here on its rows are applied. Raises BatchLost."""
        nonces = [*(one.nonce for one in self.staged), *self._misfits()]
        self.lease.decide(nonces, rest=self._station.rest, max_hops=self._station.link.max_hops)

    def _misfits(self) -> list[str]:
        """Staging keys of payloads that do not fit, of any attempt: whether a payload fits does not depend on the
        attempt."""
        return broker_of(self._client).run(nonces(self._keys, self.lease.id, self.lease.epoch, prefix=MISFITS))

    def _check_single(self, counts: dict[int, int]) -> None:
        members = self._members()
        digests = digests_of(one.encode() for one in members).tolist()
        for digest, count in counts.items():
            twice = [one for one, other in zip(members, digests, strict=True) if other == digest]
            if count > len(twice):  # else two ids have one digest
                raise PipelineError(
                    f"station {self._station.queue!r} returned {count} rows for item {twice[0] if twice else '?'} "
                    f"({len(counts)} such items): declare fan_out=True to make items of them, or drop what is double"
                )

    def _check_none_missing(self, found: "np.ndarray[Any, Any]") -> None:
        members = self._members()
        present = np.isin(digests_of(one.encode() for one in members), found)
        missing = [one for one, is_there in zip(members, present.tolist(), strict=True) if not is_there]
        broker, keys = broker_of(self._client), self._keys
        for nonce in self._misfits():
            missing = _without(missing, broker.run(staged_ids(keys, self.lease.id, self.lease.epoch, nonce)))
        are_there = broker.run(still_members(keys, self.lease.root, missing)) if missing else []
        missing = [one for one, is_there in zip(missing, are_there, strict=True) if is_there]
        if missing:
            raise PipelineError(
                f"station {self._station.queue!r} returned no row for {len(missing)} of {self.lease.size} items, "
                f"such as {', '.join(missing[:_NAMED])}: return a row for each, or declare missing='drop'"
            )

    def _members(self) -> list[str]:
        return self.lease.members(0, self.lease.size)

    @property
    def _keys(self) -> Any:
        return keys_of(self._client).queue(self.lease.queue)


def _place_of(client: Client, lease: BatchLease) -> BatchRef:
    return BatchRef(
        url=endpoint_of(client).shared_url(),
        prefix=keys_of(client).prefix,
        queue=lease.queue,
        batch=lease.id,
        epoch=lease.epoch,
        root=lease.root,
        first=lease.first,
        size=lease.size,
        failures=lease.failures,
    )


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
