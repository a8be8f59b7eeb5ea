"""A server whose power can be cut: what was not synced is lost with it, as after a crash of its machine.

A kill of the process loses nothing that it wrote: the kernel still writes it to the disk. So each sync of the server
and its children is carried out here (sync_filter.py), on a disk that is modelled: a file is safe up to the size it had
when a sync of it *began*, once that sync is *over*; names are safe as they were when the last sync of their folder
began. Both are exact, for the syncs in the background each second too.

A cut kills the server and leaves of its append-only files what is safe. More may have reached a disk, so two cuts of
three also keep a part of the rest that chance decides, down to half a command, and names that no sync had made safe.
"""

import fcntl
import os
import random
import select
import shutil
import signal
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import redis

from tests.acceptance.fleet import children_of, is_alive
from tests.reliability import sync_filter
from tests.support.server import Server

FOLDER = "appendonlydir"
_RECEIVE, _ANSWER = 0xC0502100, 0xC0182101
_NOTICE = struct.Struct("=QII iIQ 6Q")
_REPLY = struct.Struct("=QqiI")
_LOG = ".incr.aof"
_POLL_MS = 50
_LONGEST_PATH = 4096
_TORN = "the truncated file is not the last file"
_EXACT = 1 / 3
"""The share of cuts that keep nothing beyond what is safe."""
_NUMBERS = {number: name for _, calls in sync_filter.MACHINES.values() for name, number in calls.items()}


@dataclass(frozen=True, slots=True)
class Cut:
    """One power cut, in monotonic time. `synced_at` is when the last completed sync of the log began."""

    at: float
    synced_at: float
    lost_bytes: int
    is_exact: bool
    """Whether nothing was kept beyond what was safe."""


class Disk:
    """What would be left of the files of one run of a server. Answers for its syncs in a thread."""

    def __init__(self, folder: Path, rng: random.Random, *, longest_sync_s: float, is_lying: bool = False) -> None:
        self.socket = folder / "disk"
        self.synced_at = time.monotonic()
        self.syncs = 0
        """Completed ones of the log."""
        self.rewrites = 0
        """Files that were rewritten and synced."""
        self._folder, self._held = folder / FOLDER, folder / "held"
        self._rng, self._longest_sync_s, self._is_lying = rng, longest_sync_s, is_lying
        self._safe: dict[int, int] = {}
        """Bytes of files by inode."""
        self._names: dict[str, int] = {}
        """Safe names in the folder, and their inodes."""
        self._open: list[int] = []
        """A file that is open here keeps its inode number, so no later file is taken for it."""
        self._known = set[int]()
        """Inodes of those."""
        self._lock, self._is_off, self._is_stalled = threading.Lock(), False, False
        self._failure: BaseException | None = None
        shutil.rmtree(self._held, ignore_errors=True)
        self._held.mkdir()
        self._folder.mkdir(exist_ok=True)
        for file in self._folder.iterdir():  # what a cut has left is on the disk
            self._safe[file.stat().st_ino] = file.stat().st_size
        self._names = self._names_now()
        self.socket.unlink(missing_ok=True)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(self.socket))
        self._door.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def stall(self) -> None:
        """No sync ends any more."""
        self._is_stalled = True

    def turn_off(self) -> None:
        """From now on no sync is completed. Raises what went wrong until then."""
        with self._lock:
            self._is_off = True
        if self._failure:
            raise self._failure

    def lose(self, *, is_exact: bool) -> int:
        """Leaves what is safe in the folder, or some more; returns how many bytes are lost. The server must be dead."""
        self._thread.join()
        now = {file.name: file.stat().st_ino for file in self._folder.iterdir()}
        lost = 0
        if is_exact or self._rng.random() < 0.5:  # names that no sync had made safe are gone, the old ones are back
            for name in now:
                (self._folder / name).rename(self._held / f"gone-{name}")
            now = self._names
            for name, inode in now.items():
                os.link(self._held / str(inode), self._folder / name)
        is_short = False
        for name, inode in sorted(now.items(), key=lambda one: _number(one[0])):
            file = self._folder / name
            size = file.stat().st_size
            left = min(self._safe.get(inode, 0), size)
            if not (is_exact or is_short):
                left = self._rng.randint(left, size)
            is_short |= name.endswith(_LOG) and left < size  # what follows was written later
            lost += size - left
            os.truncate(file, left)
        self.close()
        return lost

    def close(self) -> None:
        """Ends all."""
        self._is_off = True
        self._thread.join()
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()
        self._door.close()

    def _serve(self) -> None:
        try:
            self._door.settimeout(20)
            channel, _ = self._door.accept()
            with channel:
                _, (listener, *_), _, _ = socket.recv_fds(channel, 1, 1)
            self._open.append(listener)  # until the server is dead: without a listener its syncs would fail
            self._answer_all(listener)
        except BaseException as error:
            self._failure = error

    def _answer_all(self, listener: int) -> None:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        while not self._is_off:
            for _, event in poll.poll(_POLL_MS):
                if not event & select.POLLIN:
                    return  # nobody is left under the filter
                notice = bytearray(_NOTICE.size)
                with suppress(FileNotFoundError):  # the asker was killed meanwhile
                    fcntl.ioctl(listener, _RECEIVE, notice)
                    call, task, _, number, _, _, *words = _NOTICE.unpack(notice)
                    self._carry_out(_NUMBERS[number], f"/proc/{task}", *words)
                    if self._is_off:  # what is not safe must not be taken for safe
                        return
                    fcntl.ioctl(listener, _ANSWER, bytearray(_REPLY.pack(call, 0, 0, 0)))

    def _carry_out(self, name: str, task: str, first: int, second: int, *_: int) -> None:
        """A system call of that task, on a file that the first argument names or describes."""
        path = f"{task}/cwd/{_text_of(task, first)}" if name == "truncate" else f"{task}/fd/{first}"
        if name in ("truncate", "ftruncate"):
            os.truncate(path, second)
            inode = Path(path).stat().st_ino
            self._safe[inode] = min(self._safe.get(inode, 0), second)
        else:
            self._sync(path)

    def _sync(self, path: str) -> None:
        began, file = time.monotonic(), os.open(path, os.O_RDONLY)
        found = os.fstat(file)
        if found.st_ino in self._known:
            os.close(file)
        else:
            self._known.add(found.st_ino)
            self._open.append(file)
        names = self._names_now() if stat.S_ISDIR(found.st_mode) else None
        time.sleep(self._rng.uniform(0, self._longest_sync_s))  # the disk works; the power may be cut meanwhile
        while self._is_stalled and not self._is_off:
            time.sleep(_POLL_MS / 1000)
        with self._lock:
            if self._is_off:
                return
            if names is not None:
                self._names = names
                return
            name = Path(path).readlink().name
            if self._is_lying and name.endswith(_LOG):  # not about the list of logs: no server starts without it
                return
            self._safe[found.st_ino] = max(self._safe.get(found.st_ino, 0), found.st_size)
            self.rewrites += name.startswith("temp-rewriteaof")
            # That of a log which a rewrite has closed says nothing of its successor, which is written already.
            if name == max((file.name for file in self._folder.glob(f"*{_LOG}")), key=_number, default=""):
                self.synced_at = began
                self.syncs += 1

    def _names_now(self) -> dict[str, int]:
        """The names in the folder. Each file gets a second name, under which it outlives the first."""
        names = {}
        for file in self._folder.iterdir():
            try:
                inode = file.stat().st_ino
                if not (second := self._held / str(inode)).exists():
                    os.link(file, second)
            except FileNotFoundError:  # deleted meanwhile
                continue
            names[file.name] = inode
        return names


class Refused(Exception):
    """The server ended while it started."""


class PoweredServer(Server):
    """A server that appends to its file, with power that can be cut."""

    def __init__(self, seed: int, *, longest_sync_s: float = 0.01, is_lying: bool = False, **options: str) -> None:
        self.rng = random.Random(seed)
        self.cuts: list[Cut] = []
        self.syncs = 0
        self.rewrites = 0
        self.refusals = 0
        self._longest_sync_s, self._is_lying = longest_sync_s, is_lying
        self._disk: Disk | None = None
        super().__init__(appendonly="yes", **options)

    @property
    def disk(self) -> Disk:
        """That of this run of the server."""
        assert self._disk is not None
        return self._disk

    def start(self) -> None:
        """Returns when the server answers. It refuses to start when a log that was not the last one ends within a
        command, after it has cut off this command: it starts the next time, as under any supervisor."""
        try:
            super().start()
        except Refused:
            assert _TORN in (self.folder / "log").read_text(), (self.folder / "log").read_text()
            self.refusals += 1
            self.kill()
            super().start()

    def answers(self, connection: redis.Redis) -> bool:
        """Whether it does. Raises Refused when it has ended."""
        if not is_alive(self.pid):
            raise Refused
        return super().answers(connection)

    def command(self) -> Sequence[str]:
        """The server, started by the filter of its syncs."""
        if self._disk is not None:
            self._disk.close()
        self._disk = Disk(self.folder, self.rng, longest_sync_s=self._longest_sync_s, is_lying=self._is_lying)
        return [sys.executable, "-IS", sync_filter.__file__, str(self._disk.socket), *super().command()]

    def cut(self, *, is_exact: bool | None = None) -> Cut:
        """Kills the server, which loses what is not safe, and no more if `is_exact`. It is away until `start`."""
        self.disk.turn_off()
        if is_exact is None:
            is_exact = self.rng.random() < _EXACT
        for process in (self.pid, *children_of(self.pid)):
            os.kill(process, signal.SIGKILL)
        self.kill()
        at = time.monotonic()
        lost = self.disk.lose(is_exact=is_exact)
        self.cuts.append(Cut(at, self.disk.synced_at, lost, is_exact))
        self.syncs += self.disk.syncs
        self.rewrites += self.disk.rewrites
        return self.cuts[-1]

    def remove(self) -> None:
        """Ends it for good."""
        super().remove()
        if self._disk:
            self._disk.close()


def _number(name: str) -> int:
    """The number in the name of a log, which rises; 0 for another file."""
    return int(name.split(".")[-3]) if name.endswith(_LOG) else 0


def _text_of(task: str, address: int) -> str:
    """A text in the memory of that process."""
    with Path(task, "mem").open("rb", 0) as memory:
        memory.seek(address)
        text: bytes = memory.read(_LONGEST_PATH)
    return os.fsdecode(text.partition(b"\0")[0])
