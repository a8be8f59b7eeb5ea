"""How worker processes are replaced: one at a time, the new one first. The processes here work at once."""

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.cli import rolling_restart, supervisor, worker_processes
from jobrunner.cli.supervisor import Supervisor
from jobrunner.clock import monotonic
from tests.support.waiting import wait_for
from tests.unit.cli.supervisor.processes_for_tests import Signals, a_worker

SECOND_WAITS = "number == 2 and await_file('go')\nwork()"


class Run:
    """A supervisor in a thread of its own, and what its processes and its log said."""

    def __init__(
        self, folder: Path, signals: Signals, log: list[str], act: str, processes: int, **options: Any
    ) -> None:
        self.signals = signals
        self.log = log
        self.folder = folder
        self.supervisor = Supervisor([a_worker(folder, act)] * processes, **options)
        self.code: int | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def result(self, word: str = "") -> list[str]:
        """The lines of processes that begin so."""
        path = self.folder / "said"
        return [line for line in path.read_text().splitlines() if line.startswith(word)] if path.exists() else []

    def wait_said(self, word: str, count: int) -> None:
        """Returns when `count` such lines were written."""
        wait_for(lambda: len(self.result(word)) >= count)

    def wait_logged(self, event: str, count: int = 1) -> None:
        """Returns when the supervisor has logged that so often."""
        wait_for(lambda: self.log.count(event) >= count)

    def pids(self) -> list[int]:
        """Of the processes that have the places, when all are taken: a process may say that it works before that."""
        slots = self.supervisor._slots
        processes = wait_for(lambda: (found := [slot.process for slot in slots]) and None not in found and found)
        return [process.pid for process in processes]

    def stop(self) -> int | None:
        """Asks it to stop, and returns the exit code."""
        self.signals.send_stop()
        return self.ended()

    def ended(self) -> int | None:
        """The exit code, when it has ended by itself."""
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.code

    def close(self) -> None:
        """Ends it, however."""
        for _ in range(3):
            self.signals.send_stop()
        self._thread.join(30)

    def _run(self) -> None:
        self.code = self.supervisor.run()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Run]]:
    log: list[str] = []
    started: list[Run] = []

    class Log:
        info = warning = error = staticmethod(lambda event, **_: log.append(event))

    signals = Signals()
    monkeypatch.setattr(supervisor, "on_signals", signals.listen)
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE_S", 0.001)
    for module in (supervisor, rolling_restart):
        monkeypatch.setattr(module, "_log", Log)

    def start(act: str, processes: int = 1, **options: Any) -> Run:
        begun = Run(tmp_path, signals, log, act, processes, **options)
        started.append(begun)
        return begun

    yield start
    for one in started:
        one.close()


def test_a_roll_starts_a_new_one_before_the_old_one_ends_and_takes_the_next_after_that(run: Any) -> None:
    rolled = run("work()", processes=2)
    rolled.wait_said("works", 2)

    rolled.signals.send_hup()
    rolled.wait_logged("roll is complete")

    first, second = (line.removeprefix("end ") for line in rolled.result("end"))
    assert rolled.result()[-6:] == ["start 3", "works 3", f"end {first}", "start 4", "works 4", f"end {second}"]
    assert {first, second} == {"1", "2"}
    assert rolled.stop() == 0


def test_a_roll_starts_the_new_ones_in_the_folder_that_a_link_leads_to_by_then(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `current`, in which a deploy puts the next release. Where it leads nowhere, they have the one of the start."""
    current = tmp_path / "current"
    for release in ("one", "two"):
        (tmp_path / release).mkdir()
    current.symlink_to("one")
    monkeypatch.chdir(current)
    monkeypatch.setenv("PWD", str(current))
    rolled = run("note(f'from {release}')\nwork()")
    rolled.wait_said("works", 1)

    current.unlink()
    rolled.signals.send_hup()
    rolled.wait_logged("roll is complete")
    current.symlink_to("two")
    rolled.signals.send_hup()
    rolled.wait_logged("roll is complete", 2)

    assert rolled.result("from") == ["from one", "from one", "from two"]


def test_a_new_one_that_does_not_come_up_stops_the_roll_and_the_old_ones_work_on(run: Any) -> None:
    rolled = run("work() if number <= 2 else leave(2)", processes=2)
    rolled.wait_said("works", 2)
    before = rolled.pids()

    rolled.signals.send_hup()
    rolled.wait_logged("roll is stopped")

    assert "new worker did not come up; the old one works on" in rolled.log
    assert rolled.pids() == before
    assert rolled.stop() == 0
    assert len(rolled.result("start")) == 3, "the second place was not tried"


def test_a_new_one_that_the_system_does_not_start_stops_the_roll_and_the_next_roll_has_its_turn(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rolled = run("work()", processes=2)
    rolled.wait_said("works", 2)
    before = rolled.pids()

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as refusing:
        refusing.setattr(worker_processes.subprocess, "Popen", refuse)
        rolled.signals.send_hup()
        rolled.wait_logged("roll is stopped")
    assert rolled.pids() == before

    rolled.signals.send_hup()
    rolled.wait_logged("roll is complete")
    assert len(rolled.result("end")) == 2
    assert rolled.stop() == 0


def test_a_new_one_that_never_says_that_it_works_is_killed_in_time(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolling_restart, "_READY_S", 0.3)
    rolled = run("work() if number == 1 else (note('hangs'), rest())")
    rolled.wait_said("works", 1)
    before = rolled.pids()

    rolled.signals.send_hup()
    rolled.wait_logged("roll is stopped")

    assert rolled.pids() == before
    assert rolled.stop() == 0


def test_an_old_one_that_does_not_leave_is_killed_in_time(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stubborn = "number == 1 and signal.signal(signal.SIGTERM, lambda *_: note('stays')); work()"
    rolled = run(stubborn, leave_s=600.0)
    rolled.wait_said("works", 1)

    rolled.signals.send_hup()
    rolled.wait_said("stays", 1)
    monkeypatch.setattr(rolling_restart, "monotonic", lambda: monotonic() + 601.0)
    rolled.supervisor._events.put(lambda: None)
    rolled.wait_logged("roll is complete")

    assert rolled.result("stays") == ["stays"]
    assert rolled.stop() == 0, "it was made up for"


def test_asked_again_during_a_roll_another_one_follows_once(run: Any) -> None:
    rolled = run(SECOND_WAITS)
    rolled.wait_said("works", 1)

    for _ in range(3):
        rolled.signals.send_hup()
    rolled.wait_said("start", 2)
    rolled.wait_logged("a roll is on; another one follows", 2)
    (rolled.folder / "go").touch()
    rolled.wait_logged("roll is complete", 2)

    assert rolled.stop() == 0
    assert rolled.result("works") == ["works 1", "works 2", "works 3"]


def test_one_that_is_worn_is_replaced_and_no_other(run: Any) -> None:
    worn = run("work(worn=number == 1, processes=2)", processes=2)

    worn.wait_said("end", 1)
    worn.wait_said("works", 3)

    assert worn.result("end") == ["end 1"]
    assert worn.stop() == 0
    assert len(worn.result("start")) == 3


def test_those_that_are_worn_together_are_replaced_one_after_the_other(run: Any) -> None:
    worn = run("work(worn=number <= 3, processes=3)", processes=3)

    worn.wait_said("end", 3)

    wait_for(lambda: all(slot.predecessor is None for slot in worn.supervisor._slots))
    lines = [line.split()[0] for line in worn.result() if not line.startswith("start")]
    first = lines.index("end")
    assert lines[first:] == ["end", "works", "end", "works", "end"]
    assert worn.stop() == 0


def test_one_that_was_replaced_and_crashes_is_started_again(run: Any) -> None:
    replaced = run("work(worn=number == 1)")
    replaced.wait_said("end", 1)

    os.kill(replaced.pids()[0], signal.SIGKILL)
    replaced.wait_said("works", 3)

    assert replaced.stop() == 0


def test_when_the_old_one_crashes_while_the_new_one_comes_up_that_takes_the_place(run: Any) -> None:
    rolled = run(SECOND_WAITS)
    rolled.wait_said("works", 1)
    old = rolled.pids()[0]

    rolled.signals.send_hup()
    rolled.wait_said("start", 2)
    os.kill(old, signal.SIGKILL)
    rolled.wait_logged("worker crashed; its successor is on the way")
    (rolled.folder / "go").touch()
    rolled.wait_said("works 2", 1)

    assert rolled.stop() == 0
    assert len(rolled.result("start")) == 2


def test_one_that_ended_well_is_not_brought_back_by_a_roll(run: Any) -> None:
    rolled = run("number == 1 and leave()\nwork()", processes=2)
    rolled.wait_said("works", 1)
    wait_for(lambda: any(slot.over for slot in rolled.supervisor._slots))

    rolled.signals.send_hup()
    rolled.wait_logged("roll is complete")

    assert len(rolled.result("start")) == 3
    assert rolled.stop() == 0


def test_a_stop_during_a_roll_ends_old_and_new(run: Any) -> None:
    rolled = run(SECOND_WAITS)
    rolled.wait_said("works", 1)
    rolled.signals.send_hup()
    rolled.wait_said("start", 2)

    assert rolled.stop() == 0
    assert len(rolled.result("end")) == 2


def test_one_that_is_told_to_stop_while_its_successor_comes_up_takes_that_along(run: Any) -> None:
    rolled = run(SECOND_WAITS)
    rolled.wait_said("works", 1)
    rolled.signals.send_hup()
    rolled.wait_said("start", 2)

    os.kill(rolled.pids()[0], signal.SIGTERM)

    assert rolled.ended() == 0
    assert len(rolled.result("end")) == 2


def test_a_successor_that_works_after_all_when_it_was_asked_to_stop_is_not_put_in(run: Any) -> None:
    late = "lambda *_: (tell('ready'), leave())"
    rolled = run(f"number == 2 and (signal.signal(signal.SIGTERM, {late}), note('deaf'), await_file('go'))\nwork()")
    rolled.wait_said("works", 1)
    rolled.signals.send_hup()
    rolled.wait_said("deaf", 1)

    os.kill(rolled.pids()[0], signal.SIGTERM)

    assert rolled.ended() == 0
    assert len(rolled.result("start")) == 2


def test_a_changed_file_during_a_roll_starts_all_again(run: Any) -> None:
    rolled = run(SECOND_WAITS, watched=Path("nothing-here"))
    rolled.wait_said("works", 1)
    rolled.signals.send_hup()
    rolled.wait_said("start", 2)

    rolled.supervisor._events.put(lambda: rolled.supervisor._begin_again(["changed.py"]))
    rolled.wait_said("works 3", 1)

    assert rolled.result("works") == ["works 1", "works 3"]
    assert rolled.stop() == 0


def test_a_roll_gives_those_that_crashed_their_next_start_at_once(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE_S", 60.0)
    rolled = run("number == 1 and leave(9)\nwork()")
    rolled.wait_logged("worker crashed; starting another")

    rolled.signals.send_hup()
    rolled.wait_said("works 2", 1)

    assert rolled.stop() == 0
