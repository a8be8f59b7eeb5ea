"""From Redis to Parquet: finished and dead tasks, window by window, each exactly once across restarts.

A window [from, to) of the server's clock lies in the past, so the set of tasks that ended in it no longer changes. The
window is recorded on the server before its tasks are written to files, whose last folder has the window's name; so a
run after a crash writes the same window again, over the same files. Invariants:

1. one process at a time writes an archive: it holds a claim on the server and renews it while it works;
2. `done` advances when a whole window is in files, and this module deletes nothing that ended after `done`;
3. tasks that a queue deleted by its own limits before they were archived are reported as a warning.
"""

import hashlib
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from jobrunner.broker.call import command
from jobrunner.broker.calls import queues
from jobrunner.broker.calls.server import server_time
from jobrunner.client.client import Client, broker_of, endpoint_of, keys_of
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.records import queue_names
from jobrunner.errors import HistoryTrimmed, JobrunnerError, UsageError
from jobrunner.spark.columns import ITEM_COLUMNS
from jobrunner.spark.data_source import register
from jobrunner.spark.history import archive_files as archives
from jobrunner.spark.history.archive_files import PARTITIONS, telling_rows
from jobrunner.spark.source.readers import check_untrimmed

LAG_S = 5.0
"""Tasks that ended this lately are left to the next run: after a failover, the new server's clock differs a little."""
_HOLD_MS = 60_000
_SLICES_AT_ONCE = 4
_TOLD = tuple(name for name in ITEM_COLUMNS if name not in ("_when", "_finished_at"))
SCHEMA = "payload binary, _when timestamp, _finished_at timestamp, " + ", ".join(
    f"{name} {ITEM_COLUMNS[name].ddl}" for name in _TOLD
)
"""The columns that are read; the files have `date`, `queue` and `window` in addition."""
Tell = Callable[[str], None]
Watch = Callable[[int], AbstractContextManager[Callable[[int], None] | None]]
"""Takes the number of rows to write; gives a callback for the number written so far, or None to report nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """The result of one run. `warnings`: one line of text each."""

    path: str
    until: datetime
    rows: dict[str, int]
    """By queue."""
    trimmed: int = 0
    resumed: bool = False
    """Whether an earlier run opened the window and did not finish it."""
    warnings: tuple[str, ...] = field(default=())


class ArchiveWindow(msgspec.Struct, frozen=True):
    """One window as recorded on the server: its name, its end, and where it begins for each queue. Unix ms."""

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
) -> Archived:
    """Adds the tasks that ended since the last run to the archive at `path`; with `trim`, deletes them from Redis.

    `likes`: patterns of queues. `watch`: entered while rows are written. Raises UsageError when another process
    writes this archive.
    """
    register(spark)
    path = path if "://" in path else str(Path(path).absolute())
    run = _ArchiveRun(spark, client, path, tell, watch)
    with run.held():
        window, resumed = run.window(likes, lag_s)
        warnings = run.gaps(window)
        rows = run.write(window, resumed=resumed)
        warnings += run.shortfall(window, rows)
        run.close(window)
        trimmed = run.trim(likes) if trim else 0
    return Archived(
        path=path,
        until=datetime.fromtimestamp(window.until / 1000, UTC),
        rows={name: sum(counts) for name, counts in rows.items()},
        trimmed=trimmed,
        resumed=resumed,
        warnings=tuple(warnings),
    )


def read_history(spark: SparkSession, client: Client, like: str) -> DataFrame:
    """The finished tasks that queues like this pattern keep in Redis, with the columns of an archive."""
    register(spark)
    options = {"url": endpoint_of(client).shared_url(), "prefix": client.settings.prefix}
    options |= {"history": like, "missingQueues": "ignore"}
    return spark.read.format("jobrunner").options(**options).schema(SCHEMA).load()


class _ArchiveRun:
    """One run of the archive, as steps over the same state."""

    def __init__(self, spark: SparkSession, client: Client, path: str, tell: Tell, watch: Watch) -> None:
        self._spark, self._client, self._path, self._tell, self._watch = spark, client, path, tell, watch
        self._broker, self._keys = broker_of(client), keys_of(client)
        self._digest = hashlib.sha256(path.rstrip("/").encode()).hexdigest()[:16]
        self._name = secrets.token_hex(8)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Claims the archive for this process. Raises UsageError when another process holds the claim."""
        if not self._broker.run(archives.hold(self._keys, self._digest, self._name, ttl_ms=_HOLD_MS)):
            raise UsageError(
                f"another process writes the archive {self._path}; wait until it ends, or a minute if it has died"
            )
        over = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(over,), daemon=True)
        keeper.start()
        try:
            yield
        finally:
            over.set()
            keeper.join()
            with suppress(JobrunnerError):
                self._check_held()
                self._broker.run(archives.let_go(self._keys, self._digest))

    def window(self, likes: Sequence[str], lag_s: float) -> tuple[ArchiveWindow, bool]:
        """The window to write, and whether an earlier run opened it."""
        opened, done = self._broker.run(archives.state(self._keys, self._digest))
        if opened is not None:
            return msgspec.json.decode(opened, type=ArchiveWindow), True
        until = float(round(self._broker.run(server_time()) - lag_s * 1000))
        begins = {name: done.get(name, 0.0) for name in self._chosen(likes) if done.get(name, 0.0) < until}
        first = min(begins.values(), default=until)
        window = ArchiveWindow(name=f"{first:.0f}-{until:.0f}", until=until, begins=begins)
        self._broker.run(archives.open_window(self._keys, self._digest, msgspec.json.encode(window)))
        return window, False

    def gaps(self, window: ArchiveWindow) -> list[str]:
        """A warning for each queue that deleted tasks by its own limits before they were archived."""
        found = []
        for name, begins in window.begins.items():
            try:
                check_untrimmed(self._broker, self._keys.queue(name), begins or -float("inf"))
            except HistoryTrimmed:
                since = datetime.fromtimestamp(begins / 1000, UTC).isoformat(timespec="seconds")
                found.append(
                    f"queue {name}: some tasks that finished since {since} were deleted by its own limits before they "
                    "were archived; archive more often, or keep history longer"
                )
        return found

    def write(self, window: ArchiveWindow, *, resumed: bool) -> dict[str, tuple[int, int]]:
        """Writes the window's files. Returns (finished, dead) by queue, as they are in the files."""
        expected = self._expected(window)
        there = self._in_files(window) if resumed else {}
        wanted = {
            name: counts
            for name, counts in expected.items()
            if any(counts) and not _covers(there.get(name, (0, 0)), counts)
        }
        if wanted:
            total = sum(map(sum, wanted.values()))
            self._tell(f"writing {total} tasks of {len(wanted)} queues")
            self._check_held()
            with self._watch(total) as seen, telling_rows(self._spark, seen):
                self._write_files(window, sorted(wanted))
            there = self._in_files(window)
        return there

    def shortfall(self, window: ArchiveWindow, rows: dict[str, tuple[int, int]]) -> list[str]:
        """A warning for tasks that an index still names and no file has: their hash is damaged or was trimmed
        meanwhile."""
        found = []
        for name, (finished, _) in self._expected(window).items():
            missing = finished - rows.get(name, (0, 0))[0]
            if missing > 0:
                found.append(f"queue {name}: {missing} finished tasks could not be read and are not archived")
        return found

    def close(self, window: ArchiveWindow) -> None:
        """Records that the whole window is in files."""
        self._check_held()
        _, done = self._broker.run(archives.state(self._keys, self._digest))
        done |= dict.fromkeys(window.begins, window.until)
        self._broker.run_many(archives.close_window(self._keys, self._digest, done))

    def trim(self, likes: Sequence[str]) -> int:
        """Deletes archived tasks from Redis, in slices. Returns how many."""
        _, done = self._broker.run(archives.state(self._keys, self._digest))
        chosen, total = self._chosen(likes), 0
        for name, before_ms in done.items():
            for state in ("done", "dead") if name in chosen else ():
                call = queues.delete_archived(self._keys.queue(name), state, before_ms=before_ms)
                while gone := sum(self._broker.run_many([call] * _SLICES_AT_ONCE)):
                    total += gone
        return total

    def _chosen(self, likes: Sequence[str]) -> list[str]:
        known = run_operation(self._broker, queue_names(self._keys))
        return [name for name in known if not likes or any(fnmatchcase(name, like) for like in likes)]

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

    def _in_files(self, window: ArchiveWindow) -> dict[str, tuple[int, int]]:
        try:
            found = self._spark.read.parquet(self._path).where(F.col("window") == window.name)
        except AnalysisException:
            return {}  # there are no files yet
        dead = F.col("_state") == "dead"
        counted = found.groupBy("_queue").agg(F.count_if(~dead).alias("done"), F.count_if(dead).alias("dead")).collect()
        return {row["_queue"]: (row["done"], row["dead"]) for row in counted}

    def _write_files(self, window: ArchiveWindow, names: list[str]) -> None:
        by_begin: dict[float, list[str]] = {}
        for name in names:
            by_begin.setdefault(window.begins[name], []).append(name)
        parts = [self._rows(alike, begins, window.until, of) for begins, alike in by_begin.items() for of in _STATES]
        rows = parts[0]
        for part in parts[1:]:
            rows = rows.unionByName(part)
        rows = rows.withColumns(
            {"date": F.to_date("_finished_at"), "queue": F.col("_queue"), "window": F.lit(window.name)}
        )
        writer = rows.write.partitionBy(*PARTITIONS).mode("overwrite")
        writer.option("partitionOverwriteMode", "dynamic").parquet(self._path)

    def _rows(self, names: list[str], begins: float, until: float, of: tuple[str, str]) -> DataFrame:
        state, column = of
        settings = self._client.settings
        options = {"url": endpoint_of(self._client).shared_url(), "prefix": settings.prefix, "missingQueues": "ignore"}
        options |= {"history": ",".join(names)} if state == "done" else {"queue": ",".join(names), "state": state}
        found = self._spark.read.format("jobrunner").options(**options).schema(SCHEMA).load()
        first, last = (F.timestamp_millis(F.lit(round(at))) for at in (begins, until))
        found = found.where((F.col(column) >= first) & (F.col(column) < last))
        return found.withColumn("_finished_at", F.col("_when")).drop("_when")

    def _keep(self, over: threading.Event) -> None:
        while not over.wait(_HOLD_MS / 6000):
            with suppress(JobrunnerError):  # tried again soon; the claim outlives several failures
                self._broker.run(archives.keep(self._keys, self._digest, ttl_ms=_HOLD_MS))

    def _check_held(self) -> None:
        if self._broker.run(archives.holder(self._keys, self._digest)) != self._name:
            raise UsageError(
                f"this process lost its claim on the archive {self._path} to another one, as it did not renew it for "
                f"{_HOLD_MS // 1000} s; run the archive again"
            )


_STATES = (("done", "_finished_at"), ("dead", "_when"))


def _covers(there: tuple[int, int], expected: tuple[int, int]) -> bool:
    return there[0] == expected[0] and there[1] >= expected[1]
