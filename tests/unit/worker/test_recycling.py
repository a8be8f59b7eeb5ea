"""The point at which a worker is due for recycling, and its report to the supervisor."""

from typing import Any

import pytest

from jobrunner.errors import InvalidOption
from jobrunner.worker import recycling
from jobrunner.worker.recycling import DUE, MIB, READY, TAKES, Recycling
from jobrunner.worker.settings import WorkerSettings


class Process:
    """The time and memory of this process as recycling reads them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.memory = 50 * MIB
        self.said: list[str] = []
        monkeypatch.setattr(recycling, "monotonic", lambda: self.now)
        monkeypatch.setattr(recycling, "resident_bytes", lambda: self.memory)

    def alone(self, **settings: Any) -> Recycling:
        """Recycling without a supervisor that replaces the process."""
        return self._begun(Recycling(WorkerSettings(**settings)))

    def supervised(self, **settings: Any) -> Recycling:
        """Recycling with a supervisor that replaces the process."""
        return self._begun(Recycling(WorkerSettings(**settings), self.said.append))

    def _begun(self, begun: Recycling) -> Recycling:
        begun.check()
        begun.begin()
        return begun

    def later(self, seconds: float) -> None:
        """Time goes by."""
        self.now += seconds


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(monkeypatch)


def test_without_limits_nothing_wears(process: Process) -> None:
    unlimited = process.alone()
    process.memory = 10**12

    assert not unlimited.is_over(10**9)
    assert unlimited.look_s > 60


def test_a_supervised_worker_says_that_it_takes_tasks_and_a_lone_one_talks_to_nobody(process: Process) -> None:
    process.supervised().take()
    process.alone().take()

    assert process.said == [READY, TAKES]


def test_alone_it_is_over_after_exactly_so_many_tasks(process: Process) -> None:
    limited = process.alone(max_tasks=7)

    assert limited.exact_tasks == 7
    assert [limited.is_over(finished) for finished in (6, 7)] == [False, True]


def test_alone_it_is_over_soon_after_it_takes_too_much_memory(process: Process) -> None:
    limited = process.alone(max_memory=100 * MIB)
    assert not limited.is_over(1)

    process.memory = 101 * MIB
    process.later(limited.look_s)

    assert limited.is_over(1)


def test_supervised_it_says_that_it_is_worn_and_works_on(process: Process) -> None:
    limited = process.supervised(max_memory=100 * MIB)
    process.memory = 101 * MIB

    assert not limited.is_over(1)

    assert process.said == [READY, DUE]


def test_supervised_it_says_so_again_each_minute(process: Process) -> None:
    limited = process.supervised(max_tasks=5)

    for _ in range(121):
        limited.is_over(9)
        process.later(1)

    assert process.said == [READY, DUE, DUE, DUE]


def test_supervised_those_that_began_together_are_worn_at_different_counts(process: Process) -> None:
    def worn_at() -> int:
        limited, before = process.supervised(max_tasks=1000), process.said.count(DUE)
        assert limited.exact_tasks == 0, "it takes tasks until it is stopped"
        for finished in range(900, 1200):
            process.later(1)
            limited.is_over(finished)
            if process.said.count(DUE) > before:
                return finished
        return 0

    counts = {worn_at() for _ in range(20)}

    assert len(counts) > 5
    assert 1000 <= min(counts) <= max(counts) <= 1100


def test_a_limit_that_is_reached_before_any_work_is_refused(process: Process) -> None:
    too_little = r"max_memory is 40\.0 MiB, and the process takes 50\.0 MiB before any work"
    with pytest.raises(InvalidOption, match=too_little):
        process.supervised(max_memory=40 * MIB)

    assert process.said == []
