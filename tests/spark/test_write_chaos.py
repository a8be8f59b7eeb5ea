"""300 000 rows written while Python workers are killed: each row once, and nothing staged is left."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROWS, KILLS = 300_000, 3


def workers_below(root: int) -> Iterator[int]:
    """Python workers of Spark among the descendants of a process: those that a daemon of Spark forked."""
    parents, commands = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            commands[int(path.name)] = (path / "cmdline").read_bytes()
    for pid, parent in parents.items():
        above = pid
        while above in parents and above != root:
            above = parents[above]
        if above == root and b"daemon\0pyspark" in commands[pid] and b"daemon\0pyspark" in commands.get(parent, b""):
            yield pid


class Killer(threading.Thread):
    """Kills a worker each time that this many more rows are staged."""

    def __init__(self, raw: Any, pattern: str, every: int) -> None:
        super().__init__(daemon=True)
        self._raw, self._pattern, self._every = raw, pattern, every
        self.over = threading.Event()
        self.killed = 0

    def run(self) -> None:
        while self.killed < KILLS and not self.over.wait(0.05):
            staged = sum(self._raw.llen(key) // 4 for key in self._raw.scan_iter(match=self._pattern, count=10_000))
            if staged > self._every * (self.killed + 1):
                for pid in list(workers_below(os.getpid()))[:1]:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        self.killed += 1


def test_each_of_300_000_rows_is_a_task_once_though_workers_are_killed(
    spark: Any, server: Any, client: Any, raw: Any, keys: Any
) -> None:
    killer = Killer(raw, f"{keys.prefix}:*:rows:*", 40_000)
    killer.start()
    writer = spark.range(0, ROWS, 1, 8).write.format("jobrunner")
    writer.options(url=server.url, prefix=keys.prefix, queue="orders").mode("append").save()
    killer.over.set()
    killer.join()

    assert killer.killed == KILLS
    base = keys.queue("orders")
    ids = raw.zrange(base.waiting, 0, -1)
    found: Counter[int] = Counter()
    for first in range(0, len(ids), 5000):
        pipeline = raw.pipeline(transaction=False)
        for one in ids[first : first + 5000]:
            pipeline.hget(base.tasks + one, "payload")
        found.update(msgspec.json.decode(payload)["id"] for payload in pipeline.execute())
    assert len(found) == ROWS
    assert set(found.values()) == {1}
    left = set(raw.scan_iter(match=f"{keys.prefix}:*:batch:*", count=10_000))
    assert {raw.hget(key, "state") for key in left} == {b"done"}
