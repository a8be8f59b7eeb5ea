"""Two drivers of two stations without Spark, stepped from one call of the server, or of a file system, to the next.

Every driver is a thread that stops before each such call until the world lets it go on, so a seed names an order of the
calls and faults. A driver that dies is never let go on: as after `kill -9` nothing of it runs any more, no clean-up
either.
"""

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from jobrunner.broker.calls.batch_reads import still_members
from jobrunner.client.batches import Batches, BatchLease
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.errors import BatchLost, JobrunnerError, ServerError
from jobrunner.etl import Pipeline
from jobrunner.spark.failures import SparkTaskError
from jobrunner.spark.station import records
from jobrunner.spark.station.batch_failures import BatchFailures
from jobrunner.spark.station.batch_reports import BatchReports
from jobrunner.spark.station.batch_run import BatchRun
from jobrunner.spark.station.members import MISFITS
from jobrunner.spark.station.sink_batch import SinkBatch
from jobrunner.spark.station.sink_folders import LocalFolders
from jobrunner.spark.station.staging import StagedRows
from tests.support.clock import Clock
from tests.support.server import Server

CLEAN, LATE = "flights/clean", "flights/late"
PREFIX = "t"
LEASE_S = 30.0
_STEP_S = 60
_STUCK = 4000


class _Ended(BaseException):
    """Ends the thread of a driver when the test is over: raised at its present or next point."""


class Writes(Protocol):
    """Writes the rows of these items for a batch, as a sink's function does."""

    def __call__(self, driver: "Driver", batch: SinkBatch, ids: list[str]) -> None: ...


class Driver:
    """A process that serves both stations: batches of clean move on to late, those of late are written by a sink."""

    def __init__(self, world: "World", name: str) -> None:
        self.name, self.world = name, world
        self.point, self.is_idle, self.paused = "begin", False, 0
        self.views: dict[Any, Any] = {}
        self.lease: BatchLease | None = None
        self._go, self._is_over = threading.Event(), False
        self.client = Client(world.server.url, PREFIX, now_ms=world.clock)
        self.broker = broker_of(self.client)
        inner = self.broker._replies
        self.broker._replies = partial(self._replies, inner)  # type: ignore[method-assign]
        pipeline = world.declare(self.client)
        keys = keys_of(self.client)
        self.plans: dict[str, Any] = {
            queue: SimpleNamespace(station=station, rest=station.rest)
            for queue, station in pipeline.spark_stations.items()
        }
        self.batches = {queue: Batches(self.broker, keys.queue(queue)) for queue in (CLEAN, LATE)}
        self.failures = {
            queue: BatchFailures(
                queue,
                BatchReports(
                    pipeline.spark_stations[queue], self.broker, keys.queue(queue), lambda _: None, _Stopping(self)
                ),
                _Stopping(self),
            )
            for queue in (CLEAN, LATE)
        }
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def at(self, point: str) -> None:
        """Waits at this point until the world lets the driver continue."""
        if threading.current_thread() is not self._thread:
            return  # the world itself asks
        if self._is_over:
            raise _Ended  # out of a clean-up
        self.point = point
        self.world.stands.set()
        self._go.wait()
        self._go.clear()
        if self._is_over:
            raise _Ended

    def step(self) -> None:
        """Lets the driver run to its next point."""
        self.world.stands.clear()
        self._go.set()
        assert self.world.stands.wait(_STEP_S), f"{self.name} hangs behind {self.point}"

    def end(self) -> None:
        """Ends the thread after the test."""
        self._is_over = True
        self._go.set()
        self._thread.join(30)
        self.client.close()

    def _replies(self, inner: Callable[..., Any], calls: Any, meanwhile: Any = None) -> Any:
        self.at(f"server: {getattr(calls[0], 'name', '')}")
        replies = inner(calls, meanwhile)
        self.at("behind it")
        return replies

    def _live(self) -> None:
        with suppress(_Ended):
            self.at("begin")
            while True:
                self.is_idle = not any([self._turn(CLEAN), self._turn(LATE)])
                self.at("idle" if self.is_idle else "turn")

    def _turn(self, queue: str) -> bool:
        try:
            self.lease = lease = self.batches[queue].take(self.world.batch, lease_s=LEASE_S)
            if lease is None:
                return False
            self.is_idle = False
            if lease.state == "open":
                try:
                    self._run(queue, lease)
                except JobrunnerError as error:
                    self._set_back(queue, lease, error)
                    return True
                except SparkTaskError as error:
                    self._set_back(queue, lease, error)
                    return True
                self.failures[queue].succeeded()
            while not lease.advance().done:
                pass
        except (BatchLost, ServerError) as error:
            self.world.told.append(f"{self.name}: {type(error).__name__}: {error}")
        finally:
            self.lease = None
        return True

    def _set_back(self, queue: str, lease: BatchLease, error: Exception) -> None:
        self.world.told.append(f"{self.name}: {lease.id}: {error}")
        cause = self.failures[queue].cause_of(None, lease, error)  # type: ignore[arg-type]
        self.failures[queue].set_back(None, lease, error, cause, 0.0)  # type: ignore[arg-type]

    def _run(self, queue: str, lease: BatchLease) -> None:
        """As `BatchRun` does: rows of items that do not fit are staged while members are read, the others follow."""
        run = BatchRun(None, self.plans[queue], lease)  # type: ignore[arg-type]
        run.note_server()
        ids = lease.members(0, lease.size)
        present = self.broker.run(still_members(lease.batches.keys, lease.root, ids))
        ids = [one for one, is_there in zip(ids, present, strict=True) if is_there]
        misfits = [one for one in ids if one in self.world.misfits[queue]]
        if misfits:
            words = [word for one in misfits for word in (one, "", "no such column", "")]
            lease.stage_all(f"{MISFITS}{self.name}", words, after=0)
        good = [one for one in ids if one not in misfits]
        if queue == CLEAN:
            self._raise_for(queue, good)
            lease.stage_all("rows", [word for one in good for word in (one, "late", b"1", "")], after=0)
            run.staged = [StagedRows("rows", len(good), b"")]
        else:
            self._write(queue, lease, good)
        run.decide()

    def _raise_for(self, queue: str, ids: list[str]) -> None:
        if not self.world.bad[queue].isdisjoint(ids):
            raise SparkTaskError("Traceback (most recent call last):\n  File x\nValueError: bad\n")

    def _write(self, queue: str, lease: BatchLease, ids: list[str]) -> None:
        larger, name = [], lease.id
        while name != lease.root:
            name = name.rpartition(".")[0]
            larger.append(name)
        batch = SinkBatch(id=lease.id, supersedes=tuple(larger), epoch=lease.epoch, size=lease.size, lease=lease,
                          renew=lease.renew)  # fmt: skip
        self._write_some(queue, batch, ids)
        while batch.left_out.next_run():
            self._write_some(queue, batch, [one for one in ids if one not in batch.left_out.members])

    def _write_some(self, queue: str, batch: SinkBatch, ids: list[str]) -> None:
        """Spark evaluates the rows, and meets the bad ones, while it writes."""
        self.world.write(self, batch, ids, lambda: self._raise_for(queue, ids))


class _Stopping(threading.Event):
    """The stop event of a driver: other drivers take steps while it waits."""

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self._driver = driver

    def wait(self, timeout: float | None = None) -> bool:
        for _ in range(3):
            self._driver.at("pause")
        return False


class SteppedFolders(LocalFolders):
    """Stops its driver before every step on the file system."""

    def __init__(self, root: Path, driver: Driver) -> None:
        super().__init__(root)
        self._driver = driver

    def names(self, folder: str = "") -> list[str]:
        self._driver.at("names")
        return super().names(folder)

    def exists(self, name: str) -> bool:
        self._driver.at("exists")
        return super().exists(name)

    def remove(self, name: str) -> None:
        self._driver.at("remove")
        super().remove(name)

    def rename(self, name: str, to: str) -> None:
        self._driver.at("rename")
        super().rename(name, to)

    def move(self, name: str, to: str) -> bool:
        self._driver.at("move")
        return super().move(name, to)

    def read(self, name: str) -> bytes | None:
        self._driver.at("read")
        return super().read(name)

    def write(self, name: str, content: bytes) -> None:
        self._driver.at("write")
        super().write(name, content)

    def sync(self, name: str) -> None:
        self._driver.at("sync")

    sync_all = sync

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """A lock of a process that died is free; one of a process that is suspended is not."""
        locks = self._driver.world.locks
        self._driver.at("lock")
        while locks.get(name) in self._driver.world.drivers:
            self._driver.at("waits for the lock")
        locks[name] = self._driver
        try:
            yield
        finally:
            locks.pop(name)


class World:
    """The server, its clock, the drivers, and the faults that come between their steps."""

    def __init__(self, server: Server, clock: Clock, seed: object, *, batch: int, write: Any) -> None:
        self.server, self.clock, self.batch, self.write = server, clock, batch, write
        self.rng = random.Random(repr(seed))
        self.stands = threading.Event()
        self.locks: dict[str, Driver] = {}
        self.told: list[str] = []
        self.bad: dict[str, Collection[str]] = {CLEAN: set(), LATE: set()}
        self.misfits: dict[str, Collection[str]] = {CLEAN: set(), LATE: set()}
        self.client = Client(server.url, PREFIX, now_ms=clock)
        self.raw = server.connect()
        self.started, self.steps = 0, 0
        self.ids: list[str] = []
        self.gone: list[Driver] = []
        self.drivers: list[Driver] = []
        self.due: list[tuple[int, str]] = []
        self.fired: Counter[str] = Counter()

    def declare(self, client: Client) -> Pipeline:
        pipeline = Pipeline("flights", client)
        pipeline.spark_station("clean", to="late", quarantine=True)(lambda df, spark: df)
        pipeline.spark_sink("late", quarantine=True)(lambda df, spark, batch: None)
        return pipeline

    def start_driver(self) -> None:
        self.started += 1
        self.drivers.append(Driver(self, f"d{self.started}"))
        assert self.stands.wait(_STEP_S)

    def plan(self, faults: Collection[str], within: int) -> None:
        """Plans each fault at a random step. For `forgets` the server saves its data some steps before, and then loses
        the writes since."""
        for fault in faults:
            at = self.rng.randrange(3, within)
            if fault == "forgets":
                self.due.append((max(at - self.rng.randrange(1, 60), 1), "save"))
            self.due.append((at, fault))
        self.due.sort()

    def run(self, most: int = 30_000) -> None:
        """Steps the drivers until nothing is left to do."""
        idle, stuck_at = 0, _STUCK
        while not (self._is_over() if idle >= 6 else False):
            if self.steps > stuck_at:  # what is left are bad records with one error, of which a driver saw no success
                stuck_at = self.steps + _STUCK
                self.ids += self.push(self.batch)
            assert self.steps < most, f"not done after {most} steps: {self.told[-20:]}"
            if self.due and (self.steps >= self.due[0][0] or idle > 6):
                self._fire(self.due.pop(0)[1])
            awake = [one for one in self.drivers if not one.paused]
            driver = self.rng.choice(awake)
            self.steps += 1
            records._views = driver.views
            for one in self.drivers:
                one.paused = max(one.paused - 1, 0)
            driver.step()
            idle = idle + 1 if all(one.is_idle for one in self.drivers) else 0
            if idle == 6:
                self.clock.advance((LEASE_S + 1) * 1000)

    def _is_over(self) -> bool:
        if self.due or any(one.paused for one in self.drivers):
            return False
        for queue in (CLEAN, LATE):
            counts = self.client.queue(queue).counts()
            keys = keys_of(self.client).queue(queue)
            if counts["waiting"] + counts["pending"] + counts["scheduled"]:
                return False
            if self.raw.zcard(keys.batches) + self.raw.zcard(keys.finishing):
                return False
        return True

    def _fire(self, fault: str) -> None:
        self.fired[fault] += 1
        victim = self.rng.choice(self.drivers)
        self.told.append(f"--- {self.steps}: {fault} ({victim.name} at {victim.point})")
        match fault:
            case "save":
                self.raw.save()
            case "dies":
                self.drivers.remove(victim)
                self.gone.append(victim)
                self.start_driver()
            case "suspended":
                victim.paused = self.rng.randrange(40, 250)
                for _ in range(3):
                    self.clock.advance((LEASE_S + 3) * 1000 / 3)
                    self._renew_all_but(victim)
            case "restart":
                self.raw.save()
                self._restart()
            case "forgets":
                self._restart()

    def _renew_all_but(self, victim: Driver) -> None:
        for one in self.drivers:
            if one is not victim and (lease := one.lease) is not None and lease.id:
                with suppress(JobrunnerError):
                    lease.renew()

    def _restart(self) -> None:
        self.server.kill()
        self.server.start()

    def push(self, count: int) -> list[str]:
        """Pushes items, has the server write them to its disk, and returns their ids."""
        ids = self.client.queue(CLEAN).push_many(range(count))
        self.raw.save()
        return ids

    def close(self) -> None:
        for one in [*self.drivers, *self.gone]:
            one.end()
        self.client.close()
        self.raw.close()


def left_keys(raw: Any) -> list[str]:
    """Keys of batches that should be deleted. A finished batch keeps one key, its mark, for a day."""
    found = []
    for key in raw.scan_iter(match=f"{PREFIX}:*:batch:*", count=1000):
        is_mark = raw.type(key) == b"hash" and raw.hget(key, "state") in (b"done", b"split")
        if not is_mark or raw.ttl(key) <= 0:
            found.append(f"{key.decode()} {raw.hgetall(key) if raw.type(key) == b'hash' else ''}")
    return found


def save_ids(folders: LocalFolders, ids: list[str], check: Callable[[], None], own: str) -> None:
    """Writes the ids as the rows of a folder; bad ones show in the middle of it."""
    folders.write(f"{own}/part", b"")
    check()
    folders.write(f"{own}/rows", json.dumps(ids).encode())
