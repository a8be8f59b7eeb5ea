"""Processes that write a table are killed at random instants: each row is there once, and clean-up leaves no orphan.

The long runs are marked slow: ``pytest -n 0 -m slow tests/unit/spark/lake/test_kills.py``, minutes for each format.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

import pytest
from pyiceberg.catalog import Config

from jobrunner.spark.lake.services import clean_up_table, compact_table

NURSERY = '''
"""Forks a writer for each connection, as the imports take seconds. A writer writes batch after batch of the jobs that
come, as parts where their names say so, and answers each."""
import json, os, signal, socket, sys
import pyarrow as pa
from tests.unit.spark.lake.conftest import Lake, part
from jobrunner.errors import BatchLost
from jobrunner.spark.lake import delta, iceberg

def serve(connection, table):
    lake = Lake(table)
    connection.sendall(f"{os.getpid()}\\n".encode())
    for line in connection.makefile():
        batch, epoch, values = json.loads(line)
        rows = pa.table({"n": pa.array(values, pa.int64()), "day": pa.array([str(n % 2) for n in values])})
        try:
            lake.write(part(batch, epoch), rows, partition_by=["day"])
            connection.sendall(b"written\\n")
        except BatchLost:
            connection.sendall(b"lost\\n")
        except Exception as error:
            connection.sendall(repr(error).replace(chr(10), " ").encode() + b"\\n")

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[2])
listening.listen()
print("ready", flush=True)
while True:
    connection, _ = listening.accept()
    if os.fork() == 0:
        listening.close()
        serve(connection, sys.argv[1])
        os._exit(0)
    connection.close()
'''
PER_BATCH = 6


class Writer:
    """A process that writes batches, one after the other."""

    def __init__(self, path):
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(path)
        self.lines = self.connection.makefile()
        self.pid = int(self.lines.readline())

    def ask(self, batch, epoch, values):
        self.connection.sendall(json.dumps([batch, epoch, values]).encode() + b"\n")

    def answer(self):
        """What became of the batch; nothing when the writer died."""
        try:
            return self.lines.readline().strip()
        except ConnectionError:
            return ""

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def end(self):
        self.lines.close()
        self.connection.close()


@pytest.fixture
def new_writer(lake, tmp_path, monkeypatch):
    """Starts a writer of the table, which finds the catalog in its environment."""
    path = str(tmp_path / "s")
    if lake.address.format == "iceberg":
        for name, value in Config().get_catalog_config("lake").items():
            written = name.upper().replace(".", "__").replace("-", "_")
            monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{written}", value)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.getcwd(), *sys.path]))  # noqa: PTH109
    nursery = subprocess.Popen([sys.executable, "-c", NURSERY, lake.table, path], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)  # fmt: skip
    assert nursery.stdout.readline() == "ready\n"
    yield lambda: Writer(path)
    nursery.kill()
    nursery.wait()
    nursery.stdout.close()


def split(batch, values):
    """The two parts of a batch, by the rule of the server."""
    half = len(values) // 2
    return [(f"{batch}.1", values[:half]), (f"{batch}.2", values[half:])]


class Killing:
    """Writes batches with two writers, of which one dies now and then: a batch that lost its writer comes again, or in
    parts while a zombie writes the whole."""

    def __init__(self, new_writer, seed):
        self.new_writer = new_writer
        self.rng = random.Random(seed)
        self.writers = [new_writer(), new_writer()]
        self.work = []
        self.batches = 0
        self.took = 0.3

    def next_jobs(self):
        if not self.work:
            values = list(range(self.batches * PER_BATCH, (self.batches + 1) * PER_BATCH))
            self.work.append((f"b{self.batches}", 1, values))
            self.batches += 1
        batch, epoch, values = self.work.pop(0)
        if epoch == 1 or len(values) == 1 or self.rng.random() < 0.5:
            return [(batch, epoch, values)]
        (first, some), (second, others) = split(batch, values)
        self.work += [(first, 2, some), (second, 1, others)]
        return [(batch, epoch, values), (first, 1, some)]

    def run(self, *, kills):
        """One round. Returns how many writers it killed."""
        jobs, began = self.next_jobs(), time.monotonic()
        for writer, job in zip(self.writers, jobs, strict=False):
            writer.ask(*job)
        victim = self.rng.randrange(len(jobs)) if kills else None
        if victim is not None:
            time.sleep(self.rng.uniform(0, self.took * 1.2))
            self.writers[victim].kill()
        answers = [writer.answer() for writer, _ in zip(self.writers, jobs, strict=False)]
        assert all(answer in ("written", "lost") or place == victim for place, answer in enumerate(answers)), answers
        if all(answers):
            self.took = 0.7 * self.took + 0.3 * (time.monotonic() - began)
        if victim is None:
            return 0
        self.writers[victim].end()
        self.writers[victim] = self.new_writer()
        if not answers[victim] and len(jobs) == 1:
            batch, epoch, values = jobs[0]
            self.work.insert(0, (batch, epoch + 1, values))
        return 1


def run(new_writer, kills, seed):
    """Returns the number of batches that were written while so many writers were killed."""
    killing, killed = Killing(new_writer, seed), 0
    while killed < kills or killing.work:
        killed += killing.run(kills=killed < kills)
    for writer in killing.writers:
        writer.end()
    return killing.batches


def check(lake, batches):
    found = lake.column()
    assert len(found) == len(set(found)), "rows are doubled"
    assert found == list(range(batches * PER_BATCH)), "rows are missing"
    clean_up_table(lake.table)
    named = lake.named_files()
    left = [name for name in lake.data_files() if name not in named]
    assert left == [], "files of no version are left"
    compact_table(lake.table)
    assert lake.column() == found


@pytest.mark.processes
def test_a_few_kills(lake, new_writer):
    check(lake, run(new_writer, kills=5, seed=5))


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_two_hundred_kills(lake, new_writer):
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    check(lake, run(new_writer, kills=200, seed=seed))
