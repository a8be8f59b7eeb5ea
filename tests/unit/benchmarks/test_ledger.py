"""The ledger of the benchmarks: an entry for each run, from any process."""

import multiprocessing
import os
from pathlib import Path

import pytest

from benchmarks.ledger import VARIABLE, Ledger, recorder


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    ledger = Ledger(tmp_path / "ledger", capacity=100)
    monkeypatch.setenv(VARIABLE, ledger.environment[VARIABLE])
    return ledger


def _record(numbers: range) -> None:
    record = recorder()
    for number in numbers:
        record(number)


def test_entries_are_seen_at_once_in_their_order(ledger: Ledger) -> None:
    _record(range(3))

    assert len(ledger) == 3
    assert ledger.numbers() == [0, 1, 2]
    assert ledger.complaint(3) is None


def test_processes_have_files_of_their_own_and_are_counted_together(ledger: Ledger) -> None:
    spawn = multiprocessing.get_context("spawn")
    others = [spawn.Process(target=_record, args=(range(start, start + 2),)) for start in (0, 2)]
    for other in others:
        other.start()
    for other in others:
        other.join()

    assert len(ledger) == 4
    assert ledger.complaint(4) is None


def test_a_forked_process_does_not_write_over_its_parents_entries(ledger: Ledger) -> None:
    record = recorder()
    record(0)
    child = os.fork()
    if not child:
        record(1)
        os._exit(0)
    os.waitpid(child, 0)
    record(2)

    assert ledger.complaint(3) is None


def test_a_task_that_is_lost_doubled_or_unknown_is_a_complaint(ledger: Ledger) -> None:
    _record(range(1, 3))
    _record(range(2, 4))

    assert ledger.complaint(3) == "1 lost, 1 doubled, 1 never enqueued, of 3"


def test_entries_that_were_seen_outlive_the_folder(ledger: Ledger, tmp_path: Path) -> None:
    _record(range(2))
    assert len(ledger) == 2
    for path in (tmp_path / "ledger").iterdir():
        path.unlink()
    (tmp_path / "ledger").rmdir()

    assert ledger.complaint(2) is None


def test_without_a_ledger_entering_a_number_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)

    with pytest.raises(RuntimeError, match="cannot record 7"):
        recorder()(7)
