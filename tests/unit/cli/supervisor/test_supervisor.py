"""The supervisor with commands that end at once; with real workers it is tested in tests/acceptance."""

import errno
import itertools
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobrunner.cli import supervisor, worker_processes
from jobrunner.cli.supervisor import Supervisor
from jobrunner.errors import ServerUnavailable
from tests.support.waiting import wait_for
from tests.unit.cli.supervisor.processes_for_tests import Signals, a_worker


@pytest.fixture(autouse=True)
def signals(monkeypatch: pytest.MonkeyPatch) -> Signals:
    """Replaces the signals of the process. No pause is long."""
    stand_in = Signals()
    monkeypatch.setattr(supervisor, "on_signals", stand_in.listen)
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE_S", 0.001)
    return stand_in


def a_script(folder: Path, ending: str) -> list[str]:
    """Notes each start as a line of the file `starts`, then does what `ending` says."""
    return ["sh", "-c", f"echo start >> {folder}/starts; {ending}", "sh"]


def starts(folder: Path) -> int:
    return (folder / "starts").read_text().count("start")


def test_when_all_end_well_so_does_it(tmp_path: Path) -> None:
    assert Supervisor([a_script(tmp_path, "exit 0")] * 3).run() == 0

    assert starts(tmp_path) == 3


def test_one_that_crashes_is_started_again(tmp_path: Path) -> None:
    once = f"test -e {tmp_path}/crashed || {{ touch {tmp_path}/crashed; kill -9 $$; }}"

    assert Supervisor([a_script(tmp_path, once)] * 1).run() == 0

    assert starts(tmp_path) == 2


def test_one_that_crashes_five_times_in_a_row_is_given_up(tmp_path: Path) -> None:
    assert Supervisor([a_script(tmp_path, "exit 7")] * 1).run() == 1

    assert starts(tmp_path) == 5


def test_one_that_tasks_bring_down_is_started_again_however_often(
    tmp_path: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_LONGEST_PAUSE_AFTER_TASKS_S", 0.001)
    brought_down = """
if number < 12:
    tell("takes")
    leave(2 if number % 2 else 139)
work()
"""
    supervised = Supervisor([a_worker(tmp_path, brought_down)])

    assert stopped_when(lambda: works(tmp_path, 1), signals, supervised) == 0
    assert (tmp_path / "start-12").exists()


def test_one_that_a_task_ends_with_exit_code_0_is_started_again(tmp_path: Path, signals: Signals) -> None:
    brought_down = """
if number < 3:
    tell("takes")
    os._exit(0)
work()
"""
    supervised = Supervisor([a_worker(tmp_path, brought_down)])

    assert stopped_when(lambda: works(tmp_path, 1), signals, supervised) == 0
    assert (tmp_path / "start-3").exists()


def test_one_that_a_task_ends_with_exit_code_0_while_it_stops_did_not_end_well(
    tmp_path: Path, signals: Signals
) -> None:
    brought_down = "signal.signal(signal.SIGTERM, lambda *_: os._exit(0))\nwork()"
    supervised = Supervisor([a_worker(tmp_path, brought_down)])

    assert stopped_when(lambda: works(tmp_path, 1), signals, supervised) == 1


def test_failed_starts_count_when_they_stand_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_LONGEST_PAUSE_AFTER_TASKS_S", 0.001)
    monkeypatch.setattr(supervisor, "_LONGEST_PAUSE_S", 0.001)
    now_and_then = 'number in (5, 10) and tell("takes")\nleave(1)'

    assert Supervisor([a_worker(tmp_path, now_and_then)]).run() == 1

    assert (tmp_path / "start-15").exists()
    assert not (tmp_path / "start-16").exists()


def test_misuse_is_not_tried_again(tmp_path: Path) -> None:
    assert Supervisor([a_script(tmp_path, "exit 2")] * 1).run() == 2

    assert starts(tmp_path) == 1


def test_when_one_is_given_up_the_others_are_asked_to_stop(tmp_path: Path) -> None:
    script = f"""
        cd {tmp_path}
        mkdir first 2>/dev/null && {{ until test -e ready; do sleep 0.01; done; exit 2; }}
        trap 'touch asked; exit 0' TERM
        touch ready
        while :; do sleep 0.01; done
    """

    assert Supervisor([a_script(tmp_path, script)] * 2).run() == 2

    assert (tmp_path / "asked").exists()


def test_each_slot_may_have_a_command_of_its_own(tmp_path: Path) -> None:
    first, second = (a_script(tmp_path, f"touch {tmp_path}/{name}") for name in ("one", "two"))

    assert Supervisor([first, second]).run() == 0

    assert (tmp_path / "one").exists()
    assert (tmp_path / "two").exists()


def test_it_ends_when_what_it_waits_for_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_ASK_EVERY_S", 0.001)
    endless = f"trap 'exit 0' TERM; touch {tmp_path}/ready; while :; do sleep 0.01; done"

    def is_over() -> bool:
        if not (tmp_path / "ready").exists():
            raise ServerUnavailable("away for a moment")
        return True

    assert Supervisor([a_script(tmp_path, endless)], until=is_over).run() == 0


def refuse_starts(monkeypatch: pytest.MonkeyPatch, which: Callable[[int], bool]) -> None:
    """Has the system refuse these starts of processes, counted from 1."""
    real, begun = subprocess.Popen, itertools.count(1)

    def start(*args: Any, **options: Any) -> Any:
        if which(next(begun)):
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return real(*args, **options)

    monkeypatch.setattr(worker_processes.subprocess, "Popen", start)


def test_a_start_that_the_system_refuses_is_tried_again_while_the_others_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_starts(monkeypatch, lambda start: start in (3, 4))
    once = f"test -e {tmp_path}/crashed && touch {tmp_path}/again && exit; touch {tmp_path}/crashed; kill -9 $$"
    other = f"until test -e {tmp_path}/again; do sleep 0.01; done"

    assert Supervisor([a_script(tmp_path, once), a_script(tmp_path, other)]).run() == 0

    assert starts(tmp_path) == 3


def test_when_the_system_refuses_five_starts_and_nothing_has_worked_it_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_starts(monkeypatch, lambda _: True)

    assert Supervisor([a_script(tmp_path, "exit 0")]).run() == 1


@pytest.mark.parametrize("which", [1, 2])
def test_a_process_whose_threads_cannot_be_started_is_ended_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    begun = itertools.count(1)
    processes: list[subprocess.Popen[bytes]] = []

    class Process(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            if processes:
                (tmp_path / "second").touch()
            super().__init__(*args, **options)
            processes.append(self)

    class Thread(threading.Thread):
        def start(self) -> None:
            if self.name == "jobrunner-process-1" and next(begun) == which:
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(worker_processes.subprocess, "Popen", Process)
    monkeypatch.setattr(worker_processes.threading, "Thread", Thread)

    assert Supervisor([a_script(tmp_path, f"test -e {tmp_path}/second || exec sleep 60")]).run() == 0
    assert [process.returncode for process in processes] == [-signal.SIGKILL, 0]


def test_a_lifeline_whose_other_end_is_gone_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS does not shut down such a socket."""

    class Lifeline(socket.socket):
        def shutdown(self, how: int) -> None:
            super().shutdown(how)
            raise OSError(errno.ENOTCONN, "Socket is not connected")

    def pair() -> tuple[socket.socket, socket.socket]:
        ours, theirs = real()
        return Lifeline(fileno=ours.detach()), theirs

    real = socket.socketpair
    monkeypatch.setattr(worker_processes.socket, "socketpair", pair)

    assert Supervisor([a_script(tmp_path, "exit 0")]).run() == 0


def test_one_that_ended_well_is_missed_by_nobody(tmp_path: Path) -> None:
    waits = f"until test -e {tmp_path}/looked; do sleep 0.01; done"
    supervised = Supervisor([a_script(tmp_path, "exit 0"), a_script(tmp_path, waits)])
    result: list[tuple[bool, dict[str, object]]] = []

    def look() -> bool:
        if not supervised._slots[0].over:
            return False
        result.append(supervised.health())
        (tmp_path / "looked").touch()
        return True

    supervised._until = look
    assert supervised.run() == 0

    assert result == [(True, {"processes": 2, "running": 1})]
    assert starts(tmp_path) == 2


def stopped_when(fact: Callable[[], object], signals: Signals, supervised: Supervisor, times: int = 1) -> int:
    """The exit code of one that is asked to stop as soon as that is a fact."""

    def ask() -> None:
        wait_for(fact)
        for _ in range(times):
            signals.send_stop()

    asking = threading.Thread(target=ask)
    asking.start()
    code = supervised.run()
    asking.join()
    return code


def works(folder: Path, count: int) -> bool:
    """Whether this many processes have reported that they work."""
    path = folder / "said"
    return path.exists() and path.read_text().count("works") >= count


def test_asked_to_stop_it_ends_well_when_all_did(tmp_path: Path, signals: Signals) -> None:
    supervised = Supervisor([a_worker(tmp_path, "work()")] * 2)

    assert stopped_when(lambda: works(tmp_path, 2), signals, supervised) == 0


def test_a_crash_that_was_made_up_for_does_not_count(tmp_path: Path, signals: Signals) -> None:
    supervised = Supervisor([a_worker(tmp_path, "number == 1 and leave(9)\nwork()")])

    assert stopped_when(lambda: works(tmp_path, 1), signals, supervised) == 0


def test_one_that_crashes_when_it_is_asked_to_stop_counts(tmp_path: Path, signals: Signals) -> None:
    crashes = "signal.signal(signal.SIGTERM, lambda *_: leave(9))\nwork()"
    supervised = Supervisor([a_worker(tmp_path, crashes)])

    assert stopped_when(lambda: works(tmp_path, 1), signals, supervised) == 1


def test_one_that_had_to_be_killed_counts(tmp_path: Path, signals: Signals) -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwork()"
    supervised = Supervisor([a_worker(tmp_path, deaf)])

    assert stopped_when(lambda: works(tmp_path, 1), signals, supervised, times=3) == 1


def test_one_that_waits_for_its_next_start_after_a_crash_counts(
    tmp_path: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE_S", 60.0)
    supervised = Supervisor([a_worker(tmp_path, "leave(9) if number == 1 else work()")] * 2)

    def one_crashed() -> bool:
        return works(tmp_path, 1) and any(slot.crashes for slot in supervised._slots)

    assert stopped_when(one_crashed, signals, supervised) == 1


def test_one_that_worked_before_is_not_given_up_while_others_work(
    tmp_path: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_LONGEST_PAUSE_S", 0.001)
    hears = Supervisor._heard

    def heard(self: Supervisor, slot: Any, process: Any, word: str) -> None:
        hears(self, slot, process, word)
        (tmp_path / f"heard-{word}").touch()

    monkeypatch.setattr(Supervisor, "_heard", heard)
    worked_once = """
if number == 1:
    tell("takes")
    await_file("heard-ready")
    leave(9)
elif 2 < number < 12:
    leave(2)
work()
"""
    supervised = Supervisor([a_worker(tmp_path, worked_once)] * 2)

    assert stopped_when(lambda: works(tmp_path, 2), signals, supervised) == 0
    assert (tmp_path / "start-12").exists()
