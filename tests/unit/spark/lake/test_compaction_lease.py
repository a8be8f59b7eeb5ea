"""One machine compacts a Delta table of an object store at a time, whatever becomes of it."""

from contextlib import ExitStack, suppress

import pytest

from jobrunner.errors import UsageError
from jobrunner.spark.lake import delta_lease
from jobrunner.spark.lake.delta_lease import APPLICATION, LEASE_S, compaction_lease
from jobrunner.spark.lake.services import compact_table
from tests.support.waiting import wait_for
from tests.unit.spark.lake.conftest import part

pytestmark = [pytest.mark.processes, pytest.mark.parametrize("lake", ["delta in a bucket"], indirect=True)]
NOW = 1_800_000_000


@pytest.fixture
def clock(monkeypatch):
    """clock(s): the wall clock of this machine is so many seconds behind a fixed instant."""

    def set_to(seconds):
        monkeypatch.setattr(delta_lease, "unix_ms", lambda: (NOW + seconds) * 1000)

    set_to(0)
    return set_to


def ends(lake):
    from deltalake import DeltaTable

    return DeltaTable(lake.address.where).transaction_version(APPLICATION)


def taken_by_another(lake):
    """Whether it was, as after a long suspension of the process that has it; a renewal may have come in between."""
    with suppress(delta_lease.CommitFailedError):
        delta_lease._write(delta_lease.DeltaTable(lake.address.where), NOW + 999)
    return ends(lake) == NOW + 999


def test_a_lease_that_was_given_back_or_has_ended_keeps_nobody_out(lake, numbers, clock):
    for turn in range(2):
        lake.write(part(f"b{turn}"), numbers(turn))
    held = ExitStack()
    held.enter_context(compaction_lease(lake.address))
    assert ends(lake) == NOW + LEASE_S
    with pytest.raises(UsageError, match=rf"compacts table {lake.table}; wait until it ends, or until 09:00 UTC"):
        compact_table(lake.table)
    held.__exit__(OSError, OSError("the disk is full"), None)
    assert ends(lake) == 0

    delta_lease._take(lake.address)  # by one that died
    clock(LEASE_S - 1)
    with pytest.raises(UsageError, match="compacts table"):
        compact_table(lake.table)
    clock(LEASE_S)
    assert compact_table(lake.table) == 2
    assert lake.column() == [0, 1]


def test_of_two_that_find_it_free_one_has_it(lake, numbers, clock, monkeypatch):
    lake.write(part("a"), numbers(1))
    write, said = delta_lease._write, []

    def meet_another(table, ends):
        monkeypatch.setattr(delta_lease, "_write", write)
        with compaction_lease(lake.address):
            said.append("in")
            write(table, ends)

    monkeypatch.setattr(delta_lease, "_write", meet_another)
    with pytest.raises(UsageError, match="compacts table"), compaction_lease(lake.address):
        said.append("in as well")
    assert said == ["in"]


def test_one_that_goes_on_renews_it_and_one_that_lost_it_leaves_that_of_another(lake, numbers, clock, monkeypatch):
    lake.write(part("a"), numbers(1))
    monkeypatch.setattr(delta_lease, "_RENEWED_S", 0.01)
    with compaction_lease(lake.address):
        clock(50)
        wait_for(lambda: ends(lake) == NOW + 50 + LEASE_S)
        monkeypatch.setattr(delta_lease, "_RENEWED_S", 900)
        wait_for(lambda: taken_by_another(lake))
        clock(70)
    assert ends(lake) == NOW + 999
