"""Copies finished and dead tasks from Redis to an archive, window by window, each exactly once across restarts.

A window [from, to) of the server's clock lies in the past, so the set of tasks that ended in it no longer changes. The
window is recorded on the server before its tasks are written. In a folder, the files of a window are in folders with
its name, so a run after a crash adds the tasks of the window that these lack. In a table of a lakehouse a window is one
commit under its name, which exists as a whole or not at all. Invariants:

1. one process at a time writes an archive: it holds a claim on the server and renews it while it works;
2. `done` advances when a whole window is in the archive, and this module deletes no task that ended after `done`;
3. tasks that a queue deleted by its own limits before they were archived are reported as a warning;
4. tasks that the archive already has are not added again, even if the server forgot earlier runs.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from jobrunner.broker.call import command
from jobrunner.broker.calls import archives as archive_calls
from jobrunner.broker.calls import queues
from jobrunner.broker.calls.server import earliest_time
from jobrunner.broker.shards import whole_queue
from jobrunner.client.client import Client, broker_of, endpoint_of, keys_of
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.records import queue_names
from jobrunner.encryption.envelope import STORED
from jobrunner.errors import HistoryTrimmed, JobrunnerError
from jobrunner.retry import seconds
from jobrunner.spark.columns import ITEM_COLUMNS
from jobrunner.spark.data_source import prepare
from jobrunner.spark.failures import error_line, is_of_spark
from jobrunner.spark.history.archive_claim import ArchiveClaim
from jobrunner.spark.history.archive_files import FolderArchive, archive_at, telling_rows
from jobrunner.spark.history.archive_tables import TableArchive
from jobrunner.spark.history.common_columns import utc_day_of, whole_queue_of
from jobrunner.spark.source.history_stream import check_untrimmed, only_score
from jobrunner.spark.source.options import EXACT

LAG_S = 5.0
"""Tasks that ended in the last 5 s are left to the next run: after a failover, the new server's clock differs a little.
"""
_SLICES_AT_ONCE = 4
_TOLD = tuple(name for name in ITEM_COLUMNS if name not in ("_when", "_finished_at"))
SCHEMA = "payload binary, " + ", ".join(
    f"{name} {ITEM_COLUMNS[name].ddl}" for name in ("_when", "_finished_at", *_TOLD)
)
"""Columns read from Redis; an archive has `date`, `queue` and `window` in addition."""
_STATES = (("done", "_finished_at"), ("dead", "_when"))
_DEATH_OR_END = ("_queue", "_id", "_finished_at")
"""Columns that identify an end of a task: a task may die, be requeued and end again in one window."""
Tell = Callable[[str], None]
Watch = Callable[[int], AbstractContextManager[Callable[[int], None] | None]]
"""Takes the number of rows to write; yields a callback for the number written so far, or None to report nothing."""
Trimming = Callable[[], AbstractContextManager[Callable[[int], None]]]
"""Yields a callback for the number of tasks deleted so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """The result of one archive run. `warnings`: one line of text each."""

    path: str
    until: datetime
    rows: dict[str, int]
    """Archived tasks by queue."""
    trimmed: int = 0
    resumed: bool = False
    """Whether an earlier run opened the window and did not finish it."""
    warnings: tuple[str, ...] = field(default=())


class ArchiveWindow(msgspec.Struct, frozen=True):
    """A window as recorded on the server: its name, its end, and its begin for each queue. Unix ms."""

    name: str
    until: float
    begins: dict[str, float]


def archive(
    spark: SparkSession,
    client: Client,
    path: str,
    *,
    likes: Sequence[str] = (),
    trim: bool = False,
    lag_s: float = LAG_S,
    tell: Tell = lambda _: None,
    watch: Watch = lambda _: nullcontext(),
    trimming: Trimming = lambda: nullcontext(lambda _: None),
) -> Archived:
    """Adds the tasks that ended since the last run to the archive at `path`; with `trim`, deletes them from Redis.

    `path`: a folder or URL, or a table: `delta:/lake/history`, `iceberg:catalog.db.history`. `likes`: patterns of
    queue names. `watch` is entered while rows are written, `trimming` while archived tasks are deleted. Raises
    UsageError when another process writes this archive, InvalidOption for a `lag_s` below 0, TableError for an
    unavailable table or a table that does not fit.
    """
    lag_s = seconds(lag_s, option="lag_s")  # a window that ends later would hide what ends before its end
    prepare(spark)
    run = _ArchiveRun(spark, client, archive_at(spark, path), tell, watch)
    with run.claim.held():
        run.check()
        window, resumed = run.window(likes, lag_s)
        warnings = run.gaps(window)
        rows = run.write(window, resumed=resumed)
        warnings += run.shortfall(window, rows)
        warnings += run.references(window) if rows else []
        run.close(window)
        if isinstance(run.place, FolderArchive):
            run.place.remove_left_overs()
        trimmed = run.trim(likes, trimming) if trim else 0
    return Archived(
        path=run.place.where,
        until=datetime.fromtimestamp(window.until / 1000, UTC),
        rows=_by_queue(rows),
        trimmed=trimmed,
        resumed=resumed,
        warnings=tuple(warnings),
    )


def read_history(spark: SparkSession, client: Client, like: str) -> DataFrame:
    """Reads the finished tasks that queues matching a pattern keep in Redis, in the columns `SCHEMA`."""
    prepare(spark)
    options = {"url": endpoint_of(client).shared_url(), "prefix": client.settings.prefix}
    options |= {"history": like, "missingQueues": "ignore"}
    return spark.read.format("jobrunner").options(**options).schema(SCHEMA).load()


class _ArchiveRun:
    """The steps of one archive run, over shared state."""

    def __init__(
        self, spark: SparkSession, client: Client, place: FolderArchive | TableArchive, tell: Tell, watch: Watch
    ) -> None:
        self._spark, self._client, self.place, self._tell, self._watch = spark, client, place, tell, watch
        self._broker, self._keys = broker_of(client), keys_of(client)
        self._digest = hashlib.sha256(place.identity.encode()).hexdigest()[:16]
        self.claim = ArchiveClaim(spark, self._broker, self._keys, self._digest, place.where)

    def check(self) -> None:
        """Raises the error for an archive that takes no rows, before a window is opened."""
        _, done = self._broker.run(archive_calls.state(self._keys, self._digest))
        self.place.check(self._named(self._spark.createDataFrame([], SCHEMA).drop("_when"), ""), done)

    def window(self, likes: Sequence[str], lag_s: float) -> tuple[ArchiveWindow, bool]:
        """Returns the window to write, and whether an earlier run opened it."""
        opened, done = self._broker.run(archive_calls.state(self._keys, self._digest))
        if opened is not None:
            return msgspec.json.decode(opened, type=ArchiveWindow), True
        until = float(round(self._broker.run(earliest_time()) - lag_s * 1000))
        begins = {name: done.get(name, 0.0) for name in self._chosen(likes) if done.get(name, 0.0) < until}
        first = min(begins.values(), default=until)
        window = ArchiveWindow(name=f"{first:.0f}-{until:.0f}", until=until, begins=begins)
        self._broker.run(archive_calls.open_window(self._keys, self._digest, msgspec.json.encode(window)))
        return window, False

    def gaps(self, window: ArchiveWindow) -> list[str]:
        """A warning for each queue that deleted tasks by its own limits before they were archived."""
        found = []
        for name, begins in window.begins.items():
            try:
                check_untrimmed(self._broker, [self._keys.queue(name)], begins or -float("inf"))
            except HistoryTrimmed:
                since = datetime.fromtimestamp(begins / 1000, UTC).isoformat(timespec="seconds")
                found.append(
                    f"queue {name}: some tasks that finished since {since} were deleted by its own limits before they "
                    "were archived; archive more often, or keep history longer"
                )
        return found

    def write(self, window: ArchiveWindow, *, resumed: bool) -> dict[str, tuple[int, int]]:
        """Writes the window. Returns (finished, dead) by queue, as they are in the archive."""
        expected = self._expected(window)
        there = self._archived(window) if resumed else {}
        is_there = self.place.is_atomic and bool(there)
        wanted = {name: counts for name, counts in expected.items() if any(counts) and not is_there}
        if wanted:
            total = sum(map(sum, wanted.values()))
            self._tell(f"writing {total} tasks of {len(set(map(whole_queue, wanted)))} queues")
            self.claim.check()
            held = self.claim.cancellable()
            watched = self._watch(total)
            with self._failing(), held, watched as seen, telling_rows(self._spark, seen, of_table=self.place.is_atomic):
                self._write_files(window, sorted(wanted), adds=bool(there))
            there = self._archived(window)
        return there

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Converts an error of Spark into a JobrunnerError of one line."""
        try:
            yield
        except Exception as error:
            if not is_of_spark(error):
                raise
            raise JobrunnerError(
                f"the archive {self.place.where} was not written ({error_line(error)}); nothing was deleted, "
                "and the next run goes on with this window"
            ) from error

    def shortfall(self, window: ArchiveWindow, rows: dict[str, tuple[int, int]]) -> list[str]:
        """A warning for each queue with tasks that an index still lists and the archive lacks: their hash is damaged or
        was trimmed meanwhile."""
        expected = self._expected(window)
        missing = _lacking(expected, rows)
        if missing and (there := self.place.rows_since(self._firsts(window, list(missing)))) is not None:
            # Counts all rows of this time: windows that the server forgot may have the tasks.
            missing = _lacking({name: expected[name] for name in missing}, _counts_of(there))
        return [
            f"queue {name}: {count} finished or dead tasks could not be read and are not archived"
            for name, count in missing.items()
        ]

    def references(self, window: ArchiveWindow) -> list[str]:
        """A warning for each queue with tasks whose payloads are in the payload store, not in the archive."""
        found = self.place.rows(window.name)
        if found is None or "_encoding" not in found.columns:
            return []
        return [
            f"queue {name}: the payloads of {count} tasks are in the payload store, and the archive has references to "
            "them; they are deleted there a day or later after Redis has deleted the tasks: copy what you need"
            for name, count in sorted(_stored_in(found).items())
        ]

    def close(self, window: ArchiveWindow) -> None:
        """Records that the whole window is in the archive."""
        self.claim.check()
        _, done = self._broker.run(archive_calls.state(self._keys, self._digest))
        done |= dict.fromkeys(window.begins, window.until)
        self._broker.run_many(archive_calls.close_window(self._keys, self._digest, done))

    def trim(self, likes: Sequence[str], trimming: Trimming) -> int:
        """Deletes archived tasks from Redis, in slices. Returns their number."""
        _, done = self._broker.run(archive_calls.state(self._keys, self._digest))
        chosen, total = self._chosen(likes), 0
        with trimming() as deleted:
            for name, before_ms in done.items():
                for state in ("done", "dead") if name in chosen else ():
                    call = queues.delete_archived(self._keys.queue(name), state, before_ms=before_ms)
                    while gone := sum(self._broker.run_many([call] * _SLICES_AT_ONCE)):
                        total += gone
                        deleted(total)
        return total

    def _chosen(self, likes: Sequence[str]) -> list[str]:
        known = run_operation(self._broker, queue_names(self._keys))
        return [name for name in known if not likes or any(fnmatchcase(whole_queue(name), like) for like in likes)]

    def _expected(self, window: ArchiveWindow) -> dict[str, tuple[int, int]]:
        names = list(window.begins)
        counted = self._broker.run_many(
            [
                command("ZCOUNT", key, repr(window.begins[name]), f"({window.until!r}", read=int)
                for name in names
                for key in (self._keys.queue(name).done, self._keys.queue(name).dead)
            ]
        )
        return {name: (counted[2 * at], counted[2 * at + 1]) for at, name in enumerate(names)}

    def _archived(self, window: ArchiveWindow) -> dict[str, tuple[int, int]]:
        found = self.place.rows(window.name)
        return {} if found is None else _counts_of(found)

    def _firsts(self, window: ArchiveWindow, names: Sequence[str]) -> dict[str, float]:
        """Unix ms by queue: a lower bound of the times at which its remaining tasks of the window ended."""
        sets = [key for name in names for key in (self._keys.queue(name).done, self._keys.queue(name).dead)]
        calls = [command("ZRANGE", key, 0, 0, "WITHSCORES", read=only_score) for key in sets]
        scores = [math.inf if score is None else score for score in self._broker.run_many(calls)]
        by_begin: dict[float, float] = {}  # not by queue: each entry is a condition of a query, and queues may be many
        for at, name in enumerate(names):
            begins = window.begins[name]
            first = max(begins, min(scores[2 * at : 2 * at + 2]) - 1)  # columns are whole microseconds
            by_begin[begins] = min(first, by_begin.get(begins, window.until))
        return {name: by_begin[window.begins[name]] for name in names}

    def _write_files(self, window: ArchiveWindow, names: list[str], *, adds: bool = False) -> None:
        """Writes the tasks of these queues that the archive lacks. `adds`: the archive has tasks of the window, which
        must not be overwritten, as the server may have deleted them since."""
        by_begin: dict[float, list[str]] = {}
        for name in names:
            by_begin.setdefault(window.begins[name], []).append(name)
        parts = [self._rows(alike, begins, window.until, of) for begins, alike in by_begin.items() for of in _STATES]
        rows = parts[0]
        for part in parts[1:]:
            rows = rows.unionByName(part)
        named = self._named(rows, window.name)
        there = self.place.rows_since(self._firsts(window, names))
        if there is not None and not there.isEmpty():
            adds = True
            named = named.join(there.select(*_DEATH_OR_END), list(_DEATH_OR_END), "left_anti").select(named.columns)
        self.place.write(named, f"{self._digest}-{window.name}", self.claim.check, adds=adds)

    def _named(self, rows: DataFrame, window: str) -> DataFrame:
        made = {"date": utc_day_of("_finished_at"), "queue": whole_queue_of("_queue"), "window": F.lit(window)}
        return rows.withColumns(made)

    def _rows(self, names: list[str], begins: float, until: float, of: tuple[str, str]) -> DataFrame:
        state, column = of
        settings = self._client.settings
        options = {"url": endpoint_of(self._client).shared_url(), "prefix": settings.prefix, "missingQueues": "ignore"}
        options["filters"] = "server"  # the frame has no other filter than the one below
        options[EXACT] = "true"  # each shard is archived up to an instant of its own
        options |= {"history": ",".join(names)} if state == "done" else {"queue": ",".join(names), "state": state}
        found = self._spark.read.format("jobrunner").options(**options).schema(SCHEMA).load()
        first, last = (F.timestamp_millis(F.lit(round(at))) for at in (begins, until))
        found = found.where((F.col(column) >= first) & (F.col(column) < last))
        return found.withColumn("_finished_at", F.col("_when")).drop("_when")


def _counts_of(rows: DataFrame) -> dict[str, tuple[int, int]]:
    """Counts the rows by queue or shard: (finished, dead)."""
    dead = F.col("_state") == "dead"
    counted = rows.groupBy("_queue").agg(F.count_if(~dead).alias("done"), F.count_if(dead).alias("dead")).collect()
    return {row["_queue"]: (row["done"], row["dead"]) for row in counted}


def _stored_in(rows: DataFrame) -> dict[str, int]:
    """Counts the payloads that are references to a payload store, by queue."""
    found = rows.where(F.col("_encoding").startswith(STORED.decode())).groupBy(whole_queue_of("_queue").alias("queue"))
    return {row["queue"]: row["count"] for row in found.count().collect()}


def _lacking(expected: dict[str, tuple[int, int]], rows: dict[str, tuple[int, int]]) -> dict[str, int]:
    """The number of expected tasks that the rows lack, by queue; without queues that lack none."""
    found = {
        name: sum(max(0, wanted - got) for wanted, got in zip(counts, rows.get(name, (0, 0)), strict=True))
        for name, counts in expected.items()
    }
    return {name: count for name, count in found.items() if count}


def _by_queue(rows: dict[str, tuple[int, int]]) -> dict[str, int]:
    """Sums the rows of shards by queue."""
    found = Counter[str]()
    for name, counts in rows.items():
        found[whole_queue(name)] += sum(counts)
    return dict(found)
