"""A driver and its sink without Spark: it writes the ids of its items by the protocol of `write_batch`."""

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from jobrunner.client.batches import Batches, BatchLease
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.spark.station import records
from jobrunner.spark.station.exactly_once import write_folder
from jobrunner.spark.station.sink_batch import SinkBatch
from jobrunner.spark.station.sink_folders import LocalFolders

QUEUE = "flights/late"
LEASE_S = 30.0


class PlainSink:
    """A driver and its sink, which writes the ids of the items it gets to each of its `roots`."""

    def __init__(self, url: str, *roots: Path, retry_timeout_s: float = 2.0) -> None:
        self.client = Client(url, "t", retry_timeout=retry_timeout_s)
        self.queue = self.client.queue(QUEUE)
        self.batches = Batches(broker_of(self.client), keys_of(self.client).queue(QUEUE))
        self.roots = roots
        self.calls = 0
        records._views.clear()  # a process of its own

    def take(self, n: int) -> BatchLease | None:
        """Opens a batch of up to `n` items."""
        return self.batches.take(n, lease_s=LEASE_S)

    def write(self, lease: BatchLease, *, renew: Callable[[], None] | None = None) -> None:
        """Runs the function of the sink as a station does."""
        ids = [one for one in lease.members(0, lease.size) if self.client.task(one).state is not None]
        larger, name = [], lease.id
        while name != lease.root:
            name = name.rpartition(".")[0]
            larger.append(name)
        batch = SinkBatch(id=lease.id, supersedes=tuple(larger), epoch=lease.epoch, size=lease.size, lease=lease,
                          renew=renew or lease.renew)  # fmt: skip
        self._call(batch, ids)
        while batch.left_out.next_run():
            self._call(batch, [one for one in ids if one not in batch.left_out.members])

    def _call(self, batch: SinkBatch, ids: list[str]) -> None:
        self.calls += 1
        for root in self.roots:
            folders = LocalFolders(root)
            write_folder(folders, batch, str(root), partial(self._save, folders, ids))

    def _save(self, folders: LocalFolders, ids: list[str], own: str) -> None:
        folders.write(f"{own}/rows", json.dumps(ids).encode())

    def end(self, lease: BatchLease) -> None:
        """Reports the items of a batch as succeeded."""
        lease.decide([], rest="succeeded")
        while not lease.advance().done:
            pass

    def drain(self, n: int) -> None:
        """Writes batch after batch until nothing waits."""
        while lease := self.take(n):
            self.write(lease)
            self.end(lease)


def rows_in(root: Path) -> Counter[str]:
    """The number of times that a reader finds each id."""
    return Counter(one for file in root.glob("batch=*/rows") for one in json.loads(file.read_text()))


def left_of(sink: PlainSink) -> int:
    """Items in any state but finished."""
    counts = sink.queue.counts()
    return sum(counts[state] for state in ("waiting", "scheduled", "pending", "dead"))
