"""The supervisor of `work --processes N`, `work --reload` and `pipeline run`: it runs worker processes and does no work
itself."""

import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from jobrunner.cli.boundary import DONE, MISUSE, NO
from jobrunner.cli.source_files import SourceFiles
from jobrunner.cli.stopping import on_stop_signals
from jobrunner.clock import monotonic, sleep
from jobrunner.errors import ServerError
from jobrunner.logs import OwnLog

_log = OwnLog("jobrunner.supervisor")
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_SETTLED_S = 10.0
_CRASHES = 5
_LOOK_EVERY_S = 1.0
_ASK_EVERY_S = 0.5
_ASK_TWICE = 2


@dataclass(slots=True)
class Slot:
    """The place of one worker process."""

    number: int
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    start_at: float | None = 0.0
    """When it is to be started; None: not."""
    over: bool = False
    """Whether it ended well by itself: its work was done, or it was told to stop."""
    crashes: int = 0
    """In a row, each soon after the start."""
    lifeline: int = field(default=-1, repr=False)


class Supervisor:
    """Keeps worker processes running. Its duties:

    1. starts them, each in a process group of its own, so that Ctrl-C reaches the supervisor alone, and with a pipe
       whose end tells it that the supervisor is no more;
    2. leaves alone what ended well: its work is done, or it was told to stop, by the dashboard or a signal of its own;
    3. starts one that crashed again, after a pause that doubles; one that crashes five times in a row within 10 s of
       its start is given up, and all with it;
    4. passes on what it is asked: once to stop, twice at once; at the third time it kills;
    5. with `watched`, stops them gracefully and starts them again when a source file changes, and only then;
    6. with `until`, stops them gracefully when that answers yes; it is asked twice a second;
    7. ends when they have: 0 when all ended well, 2 when one says that it is misused, else 1.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        *,
        watched: Path | None = None,
        until: Callable[[], bool] | None = None,
    ) -> None:
        self._slots = [Slot(number, command) for number, command in enumerate(commands, 1)]
        self._watched = watched
        self._until = until
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
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
        on_stop_signals(lambda: self._events.put(self._ask_to_stop))
        if self._watched is not None:
            files = SourceFiles(self._watched)
            threading.Thread(target=self._watch, args=(files,), name="jobrunner-reload", daemon=True).start()
        if self._until is not None:
            threading.Thread(target=self._wait_for, args=(self._until,), name="jobrunner-until", daemon=True).start()
        while self._goes_on():
            self._start_due()
            self._take_event()
        return self._code

    def _goes_on(self) -> bool:
        if any(slot.process for slot in self._slots):
            return True
        waits = self._watched is not None or any(slot.start_at is not None for slot in self._slots)
        return waits and not self._asked

    def _start_due(self) -> None:
        for slot in self._slots:
            if slot.start_at is not None and slot.start_at <= monotonic() and not self._asked and not slot.process:
                self._start(slot)

    def _take_event(self) -> None:
        due = [slot.start_at for slot in self._slots if slot.start_at is not None and not slot.process]
        timeout_s = max(min(due) - monotonic(), 0.0) if due and not self._asked else None
        with suppress(queue.Empty):
            self._events.get(timeout=timeout_s)()

    def _start(self, slot: Slot) -> None:
        theirs, slot.lifeline = os.pipe()
        process = subprocess.Popen(  # noqa: S603 - our own program
            [*slot.command, "--lifeline", str(theirs)], pass_fds=[theirs], process_group=0
        )
        os.close(theirs)
        slot.process, slot.began, slot.start_at, slot.over = process, monotonic(), None, False

        def wait() -> None:
            code = process.wait()
            self._events.put(lambda: self._ended(slot, code))

        threading.Thread(target=wait, name=f"jobrunner-process-{slot.number}", daemon=True).start()

    def _ended(self, slot: Slot, code: int) -> None:
        os.close(slot.lifeline)
        slot.process = None
        if slot.start_at is not None and not self._asked:
            return  # it was stopped to be started again
        if code == DONE:
            slot.over = True
            if not self._asked:
                left = sum(not one.over for one in self._slots)
                _log.info("worker ended well and is not started again", process=slot.number, others=left)
            return
        if self._watched is not None and not self._asked:
            _log.warning("worker ended; the next change starts it again", process=slot.number, how=_told(code))
            return
        if self._asked:
            # SIGTERM ends a process that has not come as far as listening for it: it had begun nothing.
            self._code = max(self._code, DONE if code == -signal.SIGTERM else NO)
        elif code == MISUSE:
            self._give_up(MISUSE)
        else:
            self._after_crash(slot, code)

    def _after_crash(self, slot: Slot, code: int) -> None:
        slot.crashes = slot.crashes + 1 if monotonic() - slot.began < _SETTLED_S else 1
        if slot.crashes >= _CRASHES:
            _log.error("worker crashed too often", process=slot.number, how=_told(code), crashes=slot.crashes)
            self._give_up(NO)
            return
        pause = min(_FIRST_PAUSE_S * 2 ** (slot.crashes - 1), _LONGEST_PAUSE_S)
        _log.warning("worker crashed; starting another", process=slot.number, how=_told(code), pause_s=pause)
        slot.start_at = monotonic() + pause

    def _give_up(self, code: int) -> None:
        self._code = max(self._code, code)
        if not self._asked:
            self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        self._asked += 1
        self._signal(signal.SIGTERM if self._asked <= _ASK_TWICE else signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for slot in self._slots:
            if slot.process is not None:
                slot.process.send_signal(number)

    def _watch(self, files: SourceFiles) -> None:
        while True:
            sleep(_LOOK_EVERY_S)
            if paths := files.changed():
                self._events.put(lambda paths=paths: self._begin_again(paths))  # type: ignore[misc]

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
        for slot in self._slots:
            if slot.start_at is None:
                slot.start_at = 0.0
                if slot.process is not None:
                    slot.process.send_signal(signal.SIGTERM)


def _told(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
