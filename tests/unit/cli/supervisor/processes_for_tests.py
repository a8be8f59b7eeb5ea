"""Commands for a supervisor that are up in some milliseconds, and the signals it is sent."""

import queue
import sys
from collections.abc import Callable
from pathlib import Path

_PRELUDE = """
import os, signal, sys, time
folder, lifeline = sys.argv[1], int(sys.argv[3])
release = os.path.basename(os.getcwd())
os.chdir(folder)

def note(line):
    with open("said", "a") as file:
        file.write(line + "\\n")

def tell(word):
    os.write(lifeline, f"{word}\\n".encode())

def leave(code=0):
    note(f"end {number}")
    if code == 0:
        tell("over")
    os._exit(code)

def await_file(name):
    while not os.path.exists(name):
        time.sleep(0.005)

def which_start():
    number = 1
    while True:
        try:
            os.mkdir(f"start-{number}")
        except FileExistsError:
            number += 1
        else:
            return number

number = which_start()
signal.signal(signal.SIGTERM, lambda *_: leave())
note(f"start {number}")

def await_notes(word, count):
    while sum(line.startswith(word) for line in open("said")) < count:
        time.sleep(0.005)

def work(worn=False, processes=1):
    note(f"works {number}")
    tell("takes")
    tell("ready")
    if worn:  # last: the supervisor then replaces this process, and all must have noted by then that they work
        await_notes("works", processes)
        tell("due")
    rest()

def rest():
    while True:  # not signal.pause(): a signal that arrives just before it would be handled when it returns
        time.sleep(0.02)
"""


def a_worker(folder: Path, act: str) -> list[str]:
    """A worker process that does what `act` says, with note, tell, leave, work, rest and await_file; `number` is which
    start it is, `release` the name of the folder that it was started in."""
    return [sys.executable, "-I", "-S", "-c", _PRELUDE + act, str(folder)]


class Signals:
    """Replaces the signals that the supervisor handles."""

    def __init__(self) -> None:
        self._known: queue.SimpleQueue[tuple[Callable[[], object], Callable[[], object]]] = queue.SimpleQueue()
        self._actions: tuple[Callable[[], object], Callable[[], object]] | None = None

    def listen(self, stop: Callable[[], object], renew: Callable[[], object]) -> None:
        """Replaces `on_signals`."""
        self._known.put((stop, renew))

    def send_stop(self) -> None:
        """SIGTERM."""
        self._listener()[0]()

    def send_hup(self) -> None:
        """SIGHUP."""
        self._listener()[1]()

    def _listener(self) -> tuple[Callable[[], object], Callable[[], object]]:
        if self._actions is None:
            self._actions = self._known.get(timeout=30)
        return self._actions
