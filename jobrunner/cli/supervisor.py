"""The supervisor of `work --processes N`, `work --reload` and `pipeline run`: it runs worker processes and does no work
itself."""

import atexit
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from jobrunner.broker.embedded.server import EmbeddedServer
from jobrunner.cli.options import say_started
from jobrunner.cli.output import DONE, MISUSE, NO
from jobrunner.cli.rolling_restart import RollingRestart
from jobrunner.cli.signals import SERVES, STARTED, USES, folder_of_start, on_signals, report_to_service_manager
from jobrunner.cli.source_files import SourceFiles
from jobrunner.cli.worker_processes import ENDED, WorkerProcess, WorkerSlot, told
from jobrunner.clock import monotonic, sleep
from jobrunner.errors import EmbeddedServerError, ServerError
from jobrunner.logs import SafeLogger
from jobrunner.worker.process_guard import ignore_signals
from jobrunner.worker.recycling import DUE, OVER, READY, TAKES

_log = SafeLogger("jobrunner.supervisor")
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_LONGEST_PAUSE_AFTER_TASKS_S = 5.0
_MOST_DOUBLINGS = 10
_SETTLED_S = 10.0
_FAILED_STARTS = 5
_LEAVE_S = 120.0
_ASK_EVERY_S = 0.5


class Supervisor:
    """Keeps worker processes running. Its duties:

    1. starts them (see WorkerProcess);
    2. does not restart a worker that ended well: its work is done, or the dashboard or a signal of its own stopped it;
    3. restarts a worker that crashed, after a pause that doubles. If a worker exits five times in a row before it takes
       a task, or exits with a usage error, the supervisor stops everything, unless that worker took tasks before and
       others do now. It always retries later crashes: a task may cause them, and its attempts run out. A start that
       the system refuses, as it has no memory or no process left, is retried in the same way, and counts only while
       nothing works or has worked;
    4. replaces them one after the other at SIGHUP, and one that is due for recycling (see RollingRestart);
    5. passes on what it is asked: once to stop, twice at once; at the third time it kills;
    6. with `watched`, stops them gracefully and starts them again when a source file changes, and only then;
    7. with `until`, stops them gracefully when that answers yes; it is asked twice a second;
    8. uses the embedded server of its workers as long as it runs: that does not stop while no worker runs;
    9. ends when all workers have ended. The exit code is 0 when all ended well, 2 after a usage error, else 1: a worker
       was given up, waited for its next start after a crash, or did not end well when it was asked to stop. A crash
       that a successful restart followed does not affect it.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        *,
        watched: Path | None = None,
        until: Callable[[], bool] | None = None,
        leave_s: float = _LEAVE_S,
    ) -> None:
        self._slots = [WorkerSlot(number, command) for number, command in enumerate(commands, 1)]
        self._folder = folder_of_start()
        self._watched = watched
        self._until = until
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._replacing = RollingRestart(self._slots, self._launch, leave_s)
        self.on_client: Callable[[str, str], object] | None = None
        """Called with the URL and the prefix that workers serve, once and whenever others are reported."""
        self._reported = ""
        self._servers: dict[str, EmbeddedServer] = {}
        self._asked = 0
        self._code = DONE

    def health(self) -> tuple[bool, dict[str, object]]:
        """Whether all processes run that should, and what to say of that. For any thread."""
        wanted = [slot for slot in self._slots if not slot.over]
        running = sum(slot.process is not None for slot in wanted)
        said: dict[str, object] = {"processes": len(self._slots), "running": running}
        if self._asked:
            said["problem"] = "stopping"
        elif running < len(wanted):
            said["problem"] = "a worker process does not run"
        return "problem" not in said, said

    def run(self) -> int:
        """Supervises in the calling thread, which must be the main one; returns the exit code."""
        atexit.register(ignore_signals)  # the last one, as it is the first: a supervisor loads no modules with jobs
        on_signals(stop=lambda: self._events.put(self._ask_to_stop), renew=lambda: self._events.put(self._roll))
        # Alive also while a process does not run: a restart of the whole would end the tasks of the others.
        report_to_service_manager(lambda: any(slot.works for slot in self._slots), lambda: True)
        if self._watched is not None:
            files = SourceFiles(self._watched)
            threading.Thread(target=self._watch, args=(files,), name="jobrunner-reload", daemon=True).start()
        if self._until is not None:
            threading.Thread(target=self._wait_for, args=(self._until,), name="jobrunner-until", daemon=True).start()
        try:
            while self._goes_on():
                if not self._asked:
                    self._start_due()
                    self._replacing.step()
                self._take_event()
        finally:
            for server in self._servers.values():
                server.release()
        return self._code

    def _goes_on(self) -> bool:
        if any(one for slot in self._slots for one in slot):
            return True
        waits = self._watched is not None or any(slot.start_at is not None for slot in self._slots)
        return waits and not self._asked

    def _start_due(self) -> None:
        for slot in self._slots:
            if slot.start_at is not None and slot.start_at <= monotonic() and not slot.process:
                slot.process, slot.start_at, slot.over = self._launch(slot), None, False
                if slot.process is None:
                    self._start_refused(slot)

    def _start_refused(self, slot: WorkerSlot) -> None:
        slot.crashes += 1
        if slot.crashes >= _FAILED_STARTS and not any(one.process or one.has_worked for one in self._slots):
            self._events.put(partial(self._give_up, NO))  # nothing else may happen that `run` could wait for
        else:
            slot.start_at = monotonic() + _pause_s(slot.crashes, _LONGEST_PAUSE_S)

    def _take_event(self) -> None:
        due = [slot.start_at for slot in self._slots if slot.start_at is not None and not slot.process]
        pause_s = max(min([*due, self._replacing.deadline]) - monotonic(), 0.0)
        with suppress(queue.Empty):
            self._events.get(timeout=None if self._asked else min(pause_s, threading.TIMEOUT_MAX))()

    def _launch(self, slot: WorkerSlot) -> WorkerProcess | None:
        def hear(process: WorkerProcess, word: str) -> None:
            self._events.put(lambda: self._heard(slot, process, word))

        folder = self._folder if self._folder.is_dir() else None
        try:
            return WorkerProcess(slot.command, f"process-{slot.number}", hear, folder)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread
            _log.error("a worker process cannot be started", process=slot.number, error=str(error))
            return None

    def _heard(self, slot: WorkerSlot, process: WorkerProcess, word: str) -> None:
        if word == ENDED:
            self._ended(slot, process)
        elif word == TAKES:
            process.took = slot.has_worked = True
        elif word == READY:
            process.works = True
            if process is slot.successor and process.is_wanted:
                self._replacing.successor_ready(slot)
        elif word == OVER:
            process.is_over = True
        elif word == DUE and process is slot.process and not self._asked:
            self._replacing.add(slot)
        elif word.startswith(SERVES):
            self._report_client(word)
        elif word.startswith((USES, STARTED)):
            self._hold_server(word)

    def _report_client(self, word: str) -> None:
        if self.on_client is not None and word != self._reported:
            self._reported = word
            self.on_client(*map(unquote, word.split()[1:]))

    def _hold_server(self, word: str) -> None:
        verb, _, folder = word.partition(" ")
        if folder in self._servers:
            return
        if verb == STARTED:
            say_started(Path(unquote(folder)))
        try:
            server = self._servers[folder] = EmbeddedServer(Path(unquote(folder)))
            server.acquire()
        except EmbeddedServerError as error:  # the worker says so, too, and ends
            _log.warning("the embedded server cannot be held", error=str(error))

    def _ended(self, slot: WorkerSlot, process: WorkerProcess) -> None:
        process.close()
        was_successor, was_predecessor = process is slot.successor, process is slot.predecessor
        slot.forget(process)
        if self._asked:
            self._code = max(self._code, DONE if process.ended_well else NO)
        elif was_successor:
            self._replacing.failed(slot, process)
        elif was_predecessor:
            self._replacing.predecessor_ended(slot, process)
        elif slot.start_at is None:  # else it was stopped to be started again
            self._process_ended(slot, process)

    def _process_ended(self, slot: WorkerSlot, process: WorkerProcess) -> None:
        code = process.code
        if process.ended_well:
            slot.over = True
            if slot.successor is not None:
                slot.successor.ask()
            left = sum(not one.over for one in self._slots)
            _log.info("worker ended well and is not started again", process=slot.number, others=left)
        elif self._watched is not None:
            _log.warning("worker ended; the next change starts it again", process=slot.number, how=told(code))
        elif slot.successor is not None:
            _log.warning("worker crashed; its successor is on the way", process=slot.number, how=told(code))
            self._replacing.promote_successor(slot)
        else:
            self._after_crash(slot, process)

    def _after_crash(self, slot: WorkerSlot, process: WorkerProcess) -> None:
        how = told(process.code)
        slot.crashes = slot.crashes + 1 if monotonic() - process.began < _SETTLED_S else 1
        slot.failed_starts = 0 if process.took else slot.failed_starts + 1
        is_hopeless = slot.failed_starts >= _FAILED_STARTS or (process.code == MISUSE and not process.took)
        if is_hopeless and not (slot.has_worked and any(one.works for one in self._slots)):
            _log.error("worker not restarted after crashes", process=slot.number, how=how, crashes=slot.crashes)
            self._give_up(MISUSE if process.code == MISUSE else NO)
            return
        longest = _LONGEST_PAUSE_AFTER_TASKS_S if process.took else _LONGEST_PAUSE_S
        pause = longest if is_hopeless else _pause_s(slot.crashes, longest)
        say = _log.error if is_hopeless else _log.warning
        say("worker crashed; starting another", process=slot.number, how=how, pause_s=pause)
        slot.start_at = monotonic() + pause

    def _give_up(self, code: int) -> None:
        self._code = max(self._code, code)
        if not self._asked:
            self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        self._asked += 1
        if self._asked == 1:
            self._replacing.cancel()
            if any(slot.crashes and slot.process is None for slot in self._slots):
                self._code = max(self._code, NO)
        for slot in self._slots:
            for process in slot:
                process.ask(self._asked)

    def _roll(self) -> None:
        if not self._asked:
            self._replacing.roll()

    def _watch(self, files: SourceFiles) -> None:
        while True:
            self._events.put(partial(self._begin_again, files.await_changes()))

    def _wait_for(self, over: Callable[[], bool]) -> None:
        while True:
            sleep(_ASK_EVERY_S)
            with suppress(ServerError):
                if over():
                    self._events.put(self._ask_to_stop)
                    return

    def _begin_again(self, paths: list[str]) -> None:
        if self._asked:
            return
        _log.info("starting again", changed=paths[0], files=len(paths))
        self._replacing.cancel()
        for slot in self._slots:
            if slot.start_at is None:
                slot.start_at = 0.0
                if slot.process is not None:
                    slot.process.ask()


def _pause_s(crashes: int, longest_s: float) -> float:
    doubled: float = _FIRST_PAUSE_S * 2 ** min(crashes - 1, _MOST_DOUBLINGS)
    return min(doubled, longest_s)
