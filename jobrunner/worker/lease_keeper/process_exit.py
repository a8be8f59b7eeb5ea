"""Detects that a process died, and how, from a process that is not its parent.

Death is seen by a descriptor of the process (pidfd): a pipe may be held open by something it forked. How the process
ended the kernel says at any time from Linux 6.15 on, before that only until the parent has asked.
"""

import fcntl
import os
import select
import signal
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jobrunner.clock import monotonic, sleep

_INFO: Final = struct.Struct("=QQ11Ii")
"""struct pidfd_info: mask of requested and returned fields, cgroup, ids, exit status."""
_GET_INFO = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11
_EXIT = 1 << 3
_LOOK_S = 0.05
_FROM_OUTSIDE = frozenset((signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT))


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How a worker died. `signal` and `code` are 0 where that is not known; `by_itself`: code of its own sent the
    signal, or the kernel did because there was no memory left."""

    signal: int = 0
    code: int | None = None
    by_itself: bool = False

    @property
    def reason(self) -> str:
        """In words."""
        if self.signal:
            return f"its worker died (signal {self.signal}{', sent by itself' if self.by_itself else ''})"
        return "its worker died" if self.code is None else f"its worker died (exit code {self.code})"

    @property
    def is_from_outside(self) -> bool:
        """Whether it was sent from outside, so that nothing it ran is suspected of it."""
        return self.signal in _FROM_OUTSIDE and not self.by_itself


class WatchedProcess:
    """A process whose death is waited for. `has_died` costs no time; `descriptor` may be polled where it is not -1."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.descriptor = -1
        self._killed_for_memory = _killed_for_memory()
        with suppress(AttributeError, OSError):
            self.descriptor = os.pidfd_open(pid)

    @property
    def has_died(self) -> bool:
        """Whether it did; it is our parent."""
        return self._poll(0) or os.getppid() != self.pid

    def wait(self, seconds: float) -> bool:
        """Waits for its death; returns whether it came."""
        ends = monotonic() + seconds
        while not self.has_died and monotonic() < ends:
            self._poll(_LOOK_S)
        return self.has_died

    def _poll(self, seconds: float) -> bool:
        if self.descriptor < 0:
            sleep(seconds)
            return False
        died = select.poll()
        died.register(self.descriptor, select.POLLIN)
        return bool(died.poll(seconds * 1000))

    def refresh(self) -> None:
        """Called now and then while it lives: processes that the kernel kills for memory from now on may be it."""
        self._killed_for_memory = _killed_for_memory()

    def death(self, own_signal: int) -> ProcessExit:
        """How it died. `own_signal`: the last that its own code was seen to send to it, 0 for none."""
        status = self._status()
        if status is None:
            return ProcessExit()
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            by_itself = number == own_signal or (
                number == signal.SIGKILL and _killed_for_memory() != self._killed_for_memory
            )
            return ProcessExit(signal=number, by_itself=by_itself)
        return ProcessExit(code=os.WEXITSTATUS(status))

    def _status(self) -> int | None:
        with suppress(OSError, ValueError):
            state, *fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            if state == "Z":
                return int(fields[-1])
        if self.descriptor >= 0:
            asked = bytearray(_INFO.size)
            struct.pack_into("=Q", asked, 0, _EXIT)
            with suppress(OSError):
                fcntl.ioctl(self.descriptor, _GET_INFO, asked, True)
                given, *_, status = _INFO.unpack(bytes(asked))
                return status if given & _EXIT else None
        return None


def _killed_for_memory() -> int:
    """How many processes the kernel killed so far because memory ran out; 0 where it does not tell."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
