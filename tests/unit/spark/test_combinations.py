"""Every combination of faults, with more items than fit in a batch and with two drivers: each item at its right end
once, no key left, and the server's memory as before.

Drivers are stepped from call to call (tests/support/interleaving.py), so a failing seed plays again exactly. All
combinations, by many seeds: `pytest -n 4 -m slow tests/unit/spark/test_combinations.py`.
"""

import itertools
import os
from collections import Counter

import pyarrow as pa
import pytest

from jobrunner.broker.keys import Keys
from jobrunner.client.client import Client, keys_of
from jobrunner.etl.table_sink import address_of
from jobrunner.spark import failures
from jobrunner.spark.lake import commit as lake_commit
from jobrunner.spark.lake import write as lake_write
from jobrunner.spark.lake.commit import TableCommit, commit, discard, open_table, prepare
from jobrunner.spark.lake.files import write_files
from jobrunner.spark.lake.identity import attempt_of
from jobrunner.spark.station.exactly_once import write_folder
from tests.support.clock import Clock
from tests.support.interleaving import CLEAN, LATE, SteppedFolders, World, left_keys, save_ids
from tests.support.plain_sink import rows_in
from tests.support.queue_audit import problems, strays

FAULTS = ("bad record", "misfit", "dies", "suspended", "restart", "forgets")
BATCH, ITEMS = 6, 20
SEEDS = int(os.environ.get("COMBINATION_SEEDS", "4"))
COMBINATIONS = [some for n in range(len(FAULTS) + 1) for some in itertools.combinations(FAULTS, n)]
EVERYDAY = [(some, 1) for some in COMBINATIONS if len(some) in (0, 2, len(FAULTS))]
ONCE_WRONG = [(("forgets",), 10), (("misfit", "forgets"), 18)]
"""Orders of calls in which rows were doubled, or lost, before."""


class FolderSink:
    """`write_batch` without Spark."""

    def __init__(self, root):
        self.root = root

    def __call__(self, driver, batch, ids, check):
        folders = SteppedFolders(self.root, driver)
        write_folder(folders, batch, str(self.root), lambda own: save_ids(folders, ids, check, own))

    def rows(self):
        return rows_in(self.root)

    def rest(self):
        """What no reader needs: nothing but committed batches and the notes should be there."""
        names = [one.name for one in self.root.iterdir() if not one.name.startswith("batch=")]
        notes = [one.name for one in (self.root / "_jobrunner" / "batches").iterdir()]
        return [one for one in names if one != "_jobrunner"] + [
            one for one in notes if not one.endswith((".noted", ".kept", ".suspect"))
        ]


class DeltaSink:
    """`table=` without Spark."""

    def __init__(self, root, monkeypatch):
        self.root, self.address = root, address_of(f"delta:{root}")
        self.driver = None
        monkeypatch.setattr(lake_commit, "_seen", set())
        monkeypatch.setattr(lake_write, "LocalFolders", lambda at: SteppedFolders(at, self.driver))
        monkeypatch.setattr(lake_commit, "sleep", lambda _: None)

    def __call__(self, driver, batch, ids, check):
        rows = pa.table({"id": pa.array(ids, pa.string())})
        ready = prepare(self.address, attempt_of(batch), rows.schema)
        if isinstance(ready, TableCommit):
            return
        self.driver = driver
        driver.at("prepared")
        fenced = lake_write._against_failover(ready, batch, "")
        if fenced is None:
            return
        try:
            check()
            files = list(write_files(fenced.target(), rows.to_batches()))
        except BaseException:
            discard(fenced)
            raise
        driver.at("written")
        commit(fenced, files)
        driver.at("committed")

    def rows(self):
        table = open_table(self.address)
        assert table.load()
        return Counter(table._table.to_pyarrow_table().column("id").to_pylist())

    def rest(self):
        return []


def play(server, sink, combination, seed, monkeypatch):
    """One combination: ITEMS items in two portions, of which some are bad or do not fit, at both stations."""
    monkeypatch.setattr(failures, "is_alive", lambda *_: True)
    clock = Clock()
    clock.set()
    world = World(server, clock, (combination, seed), batch=BATCH, write=sink)
    try:
        world.client.queue(LATE)
        ids = world.ids = world.push(ITEMS)
        chosen = world.rng.sample(ids, 6)
        if "bad record" in combination:
            world.bad = {CLEAN: set(chosen[:2]), LATE: set(chosen[2:3])}
        if "misfit" in combination:
            world.misfits = {CLEAN: set(chosen[3:5]), LATE: set(chosen[5:])}
        world.plan([one for one in combination if one not in ("bad record", "misfit")], within=260)
        for _ in range(2):
            world.start_driver()
        world.run()
        check(world, sink)
        return world
    finally:
        world.close()


def check(world, sink):
    told = "\n".join(world.told)
    dead = {queue: set(world.bad[queue]) | set(world.misfits[queue]) for queue in (CLEAN, LATE)}
    good = [one for one in world.ids if one not in dead[CLEAN] | dead[LATE]]
    assert sink.rows() == Counter(good), told
    for queue in (CLEAN, LATE):
        assert sorted(world.client.queue(queue).ids("dead")) == sorted(dead[queue]), told
        assert problems(world.raw, keys_of(world.client).queue(queue)) == [], told
    of_none = [set(strays(world.raw, keys_of(world.client).queue(queue))) for queue in (CLEAN, LATE)]
    assert of_none[0] & of_none[1] == set(), told
    assert left_keys(world.raw) == [], told
    assert sink.rest() == [], told


@pytest.fixture
def own_server(start_server):
    return start_server(dbfilename="dump.rdb")


@pytest.fixture
def sink_of(tmp_path, monkeypatch):
    return lambda kind, name: (
        FolderSink(tmp_path / name) if kind == "folders" else DeltaSink(tmp_path / name, monkeypatch)
    )


@pytest.mark.parametrize(("combination", "seed"), [*EVERYDAY, *ONCE_WRONG])
def test_each_item_is_at_its_end_once(own_server, sink_of, combination, seed, monkeypatch):
    play(own_server, sink_of("folders", "late"), combination, seed, monkeypatch)


def test_with_the_same_kept_records_the_server_holds_as_much_memory_as_before(own_server, sink_of, monkeypatch, capsys):
    """Dead items and counters stay. Marks of batches stay for a day, so their number differs; all else is the same."""
    held = []
    for round_, combination in enumerate([FAULTS[:2], FAULTS, FAULTS[:2], FAULTS]):
        play(own_server, sink_of("folders", f"late{round_}"), combination, round_, monkeypatch)
        with own_server.connect() as raw:
            dead = sum(raw.zcard(keys.dead) for keys in map(Keys("t").queue, (CLEAN, LATE)))
            raw.delete(*raw.scan_iter(match="t:*:batch:*", count=1000))
            with Client(own_server.url, "t") as client:
                for queue in (CLEAN, LATE):
                    client.queue(queue).purge("dead")
            raw.save()
        own_server.kill()  # a server that starts anew has no scripts and no buffers of connections
        own_server.start()
        with own_server.connect() as raw:
            kept = {key for key in raw.scan_iter(count=1000) if b":sent:" not in key}  # of each push, for a while
            held.append((dead, kept, raw.info("memory")["used_memory"]))
    with capsys.disabled():
        print(f"\nused_memory without faults, with all, without, with all: {[memory for *_, memory in held]}")
    assert {dead for dead, _, _ in held} == {6}
    assert held[0][1] == held[1][1] == held[2][1] == held[3][1]
    assert abs(held[3][2] - held[1][2]) < 20_000


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["folders", "delta"])
@pytest.mark.parametrize("combination", COMBINATIONS, ids="+".join)
def test_each_item_is_at_its_end_once_in_many_orders(own_server, sink_of, combination, kind, monkeypatch):
    for seed in range(SEEDS):
        with own_server.connect() as raw:
            raw.flushall()
        try:
            play(own_server, sink_of(kind, f"late{seed}"), combination, seed, monkeypatch)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
