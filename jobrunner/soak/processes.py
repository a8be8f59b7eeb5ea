"""Starts, replaces and ends the processes of a soak; their shared settings, and the soak's own server."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from jobrunner.broker.embedded.server import EmbeddedServer
from jobrunner.clock import monotonic, sleep
from jobrunner.soak.jobs import SERVED

SETTINGS = "_JOBRUNNER_SOAK_SETTINGS"
"""The variable that holds the settings as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    """The settings of the producer and the manual consumer."""

    rate: float
    """Tasks per second."""
    keepalive: float
    """Seconds of a lease."""
    task_s: float
    """Mean run time of a task in seconds."""

    def text(self) -> str:
        """The settings as JSON, for the variable."""
        return msgspec.json.encode(asdict(self)).decode()


def settings_here() -> ChildSettings:
    """The settings of this process."""
    return msgspec.json.decode(os.environ[SETTINGS], type=ChildSettings)


def asked_to_stop() -> threading.Event:
    """An event that is set at SIGTERM, and when standard input ends because the parent process is gone."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait() -> None:
        while os.read(0, 1):
            pass
        stop.set()

    threading.Thread(target=wait, name="jobrunner-lifeline", daemon=True).start()
    return stop


_LOOK_S = 0.02
_STARTS_S = 20.0
"""Seconds within which a worker that finds no server ends, also on a busy machine."""


@dataclass(slots=True)
class SoakProcess:
    """One process. `lifeline` is the write end of its standard input, which ends with this process."""

    role: str
    name: str
    process: subprocess.Popen[bytes]
    lifeline: int
    proxied: bool
    began: float = field(default_factory=monotonic)
    is_stopped: bool = False
    leaves_since: float | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def send(self, number: int) -> None:
        """Sends a signal."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


class SoakProcesses:
    """Starts and tracks processes. `urls`: the direct URL and, with a proxy, that of the proxy."""

    def __init__(
        self, urls: Sequence[str], environment: Mapping[str, str], folder: Path, *, concurrency: int, grace_s: float
    ) -> None:
        self.members: list[SoakProcess] = []
        self.lost: list[str] = []
        """Descriptions of processes that ended without being asked to."""
        self.left: list[float] = []
        """Seconds that processes took to end after SIGTERM."""
        self._urls = urls
        self._environment = {**os.environ, **environment}
        self._log = folder / "processes.log"
        self._words = [
            "work", "jobrunner.soak.jobs", *(f"--queue={name}" for name in SERVED), f"--concurrency={concurrency}",
            f"--grace={grace_s:g}", "--heartbeat=2",
        ]  # fmt: skip
        self._count = 0
        self._out_of_reach_until = {"all": 0.0, "proxied": 0.0}

    @property
    def elder(self) -> SoakProcess:
        """The worker that is never killed."""
        return self.members[0]

    def workers(self) -> list[SoakProcess]:
        """The workers that take tasks, the elder first."""
        return [one for one in self.members if one.role == "worker" and one.leaves_since is None]

    def of(self, *roles: str) -> list[SoakProcess]:
        """Processes with these roles that a fault may strike: neither the elder, nor one that is suspended or ending.
        """
        return [
            one for one in self.members[1:] if one.role in roles and not one.is_stopped and one.leaves_since is None
        ]

    def start(self, role: str, *, proxied: bool | None = None) -> SoakProcess:
        """Starts a process: `worker`, `producer` or `manual_consumer`. Every other worker connects through the proxy.
        """
        self._count += 1
        if proxied is None:
            number = sum(one.role == role for one in self.members)
            proxied = len(self._urls) > 1 and (role != "worker" or number % 2 == 0)
        ours, theirs = os.pipe()
        environment = {**self._environment, "JOBRUNNER_URL": self._urls[-1 if proxied else 0]}
        command = [sys.executable, "-m", "jobrunner", *self._words, f"--lifeline={ours}"]
        if role != "worker":
            command = [sys.executable, "-m", "jobrunner.soak.clients", role]
        # Ignored from the start, as a SIGUSR1 before the producer installs its handler would end it.
        before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        with self._log.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - our own program
                command, env=environment, pass_fds=[ours], stdin=ours, stdout=log, stderr=log, process_group=0
            )
        signal.signal(signal.SIGUSR1, before)
        os.close(ours)
        member = SoakProcess(role, f"{role}-{self._count}", process, theirs, proxied)
        self.members.append(member)
        return member

    def replace(self, member: SoakProcess) -> SoakProcess:
        """Removes a process that ended, and starts another of its role."""
        self._forget(member)
        return self.start(member.role, proxied=member.proxied)

    def note_outage(self, whose: str, until: float) -> None:
        """Records that the server is unreachable until `until`, for "all" processes or the "proxied" ones."""
        self._out_of_reach_until[whose] = max(self._out_of_reach_until[whose], until)

    def look(self) -> None:
        """Removes processes that ended on request, and records and replaces processes that ended otherwise."""
        for member in [one for one in self.members if not one.alive]:
            if member.leaves_since is not None:
                self.left.append(monotonic() - member.leaves_since)
                self._forget(member)
                if member.process.returncode not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
                    self.lost.append(f"{member.name} left with {member.process.returncode}")
                continue
            if not self._found_no_server(member):
                self.lost.append(f"{member.name} ended with {member.process.returncode}")
            at = self.members.index(member)
            self.members.insert(at, self.replace(member))
            self.members.pop()

    def _found_no_server(self, member: SoakProcess) -> bool:
        """Whether the process ended because it could not reach its server at the start."""
        until = max(self._out_of_reach_until[whose] for whose in ("all", *["proxied"] * member.proxied))
        return member.process.returncode == 1 and member.began <= until and monotonic() < member.began + _STARTS_S

    def end(self, members: Sequence[SoakProcess], *, patience_s: float) -> None:
        """Ends the members by SIGTERM, or by SIGKILL when that takes longer than `patience_s`."""
        for member in members:
            member.send(signal.SIGCONT)
            member.leaves_since = member.leaves_since or monotonic()
            member.send(signal.SIGTERM)
        until = monotonic() + patience_s
        while any(one.alive for one in members) and monotonic() < until:
            sleep(_LOOK_S)
        for member in members:
            if member.alive:
                self.lost.append(f"{member.name} did not end in {patience_s:g} s")
                member.send(signal.SIGKILL)
                member.process.wait()
        self.look()

    def kill_all(self) -> None:
        """Kills all processes at once."""
        for member in list(self.members):
            member.send(signal.SIGKILL)
            member.process.wait()
            self._forget(member)

    def _forget(self, member: SoakProcess) -> None:
        self.members.remove(member)
        os.close(member.lifeline)


class OwnServer:
    """A private server that syncs its file at every write (AOF always), so that acknowledged writes survive kill -9."""

    def __init__(self, folder: Path) -> None:
        self.url = f"embedded://{folder}"
        self._server = EmbeddedServer(folder, fsync="always")
        self.socket = self._server.acquire()

    def kill(self, away_s: float) -> tuple[float, float]:
        """Kills the server with SIGKILL and starts it after `away_s` seconds, unless a client starts it before. Returns
        the instants of both."""
        pid = self._server.status().pid
        began = monotonic()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        sleep(away_s)
        self._server.ensure()
        return began, monotonic()

    def remove(self) -> None:
        """Stops the server, also while it is in use."""
        with suppress(Exception):
            self._server.stop()
        self._server.release()
