"""The recorder of a history: wraps the exchanges of this process with the server, and writes a file of JSON lines.

`install` is called from outside in processes whose environment names a folder; without it nothing is wrapped and there
is no cost. Invariants: the call is in the file before it is sent; a line is one write, so a killed process leaves whole
lines; the number of each line reveals missing lines.

A line has its number `n`, the time `t` (the monotonic clock, which all processes of a machine share), and one of

* ``start``: the process, first line of each file;
* ``op`` with ``calls``: an exchange begins in thread ``th``; then ``op`` with ``replies``, or with ``unknown``: no
  reply came, so the calls may have been applied or not, or ``fail``: they were not;
* ``run`` with ``task``, ``lease``: a worker's attempt begins; then ``run`` with ``outcome``;
* ``snapshot``: at the end, the settings of the queues, and for each task the queues and sets that contain it.

`seal.json` closes a history: it names all files and their sizes.
"""

import os
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec

from jobrunner.attempt import Attempt
from jobrunner.broker import notifier
from jobrunner.broker.async_broker import AsyncBroker
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call, command, texts
from jobrunner.broker.keys import Keys
from jobrunner.clock import monotonic, since_boot, sleep
from jobrunner.errors import UsageError
from jobrunner.observers import OBSERVERS
from jobrunner.outcome import Outcome
from jobrunner.soak.history.call_records import of_call, of_reply
from jobrunner.task import Task

FOLDER = "_JOBRUNNER_SOAK_HISTORY"
"""The variable that names the folder."""
FORMAT = 2
SEAL = "seal.json"
_STATES = ("waiting", "scheduled", "pending", "dead")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_QUEUE = re.compile(rb'"(?:queue|to)":("(?:[^"\\]|\\.)*")')
_ENDS_S = 20.0
_START_OF_STAT = 18
"""Index of a field after the state in /proc/PID/stat: the start of the process, in ticks since boot."""
_SITE = '''"""Runs the sitecustomize that this one hides, then records the calls of this process of a soak."""
import os, runpy, sys
here = os.path.dirname(os.path.abspath(__file__))
for folder in sys.path:
    path = os.path.join(folder, "sitecustomize.py")
    if os.path.abspath(folder) != here and os.path.exists(path):
        runpy.run_path(path)
        break
from jobrunner.soak.history import recorder
recorder.install_if_asked()
'''


class CallRecorder:
    """The record file of this process, opened with its first line; a fork begins its own file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        self._pid = self._file = -1
        self._next = self._ops = 0

    def began(self, calls: Sequence[Call[Any]]) -> tuple[int, list[dict[str, Any] | None]] | None:
        """Records that calls are sent now; returns None when none of them is of interest."""
        records = [of_call(call) for call in calls]
        if not any(records):
            return None
        with self._lock:
            self._ops += 1
            op = self._ops
            self._write(op=op, th=threading.get_ident(), calls=[one for one in records if one])
        return op, records

    def ended(self, op: int, records: Sequence[dict[str, Any] | None], replies: Sequence[Any]) -> None:
        """Records the replies."""
        found = [of_reply(record, reply) for record, reply in zip(records, replies, strict=True) if record]
        self._write(op=op, replies=found)

    def broke(self, op: int, error: BaseException) -> None:
        """Records that no reply came. Only a server that is still loading its data certainly applied nothing."""
        text = f"{type(error).__name__}: {error}"[:200]
        self._write(op=op, **{"fail" if type(error).__name__ == "BusyLoadingError" else "unknown": text})

    def run(self, attempt: Attempt, **more: Any) -> int:
        """Records that an attempt begins, or ends with an outcome."""
        with self._lock:
            if "run" not in more:
                self._ops += 1
                more = {"run": self._ops, "th": threading.get_ident(), "task": attempt.id, "lease": int(attempt.token)}
            self._write(**more)
        return int(more["run"])

    def note(self, **record: Any) -> None:
        """Writes a line of another kind."""
        self._write(**record)

    def close(self) -> None:
        """Closes the file; a later line would open another one."""
        if self._pid == os.getpid():
            os.close(self._file)
        self._pid = -1

    def renew(self) -> None:
        """Resets the recorder in a fork, where the lock may be held by a thread that does not exist."""
        self._lock, self._pid = threading.RLock(), -1

    def _write(self, **record: Any) -> None:
        with self._lock:
            if self._pid != os.getpid():
                self._open()
            line = msgspec.json.encode({"n": self._next, "t": monotonic(), **record}) + b"\n"
            self._next += 1
            os.write(self._file, line)

    def _open(self) -> None:
        self._pid, self._next = os.getpid(), 0
        name = f"{self._pid}-{monotonic():.6f}.jsonl"
        self._file = os.open(self.folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        boot = _BOOT.read_text().strip() if _BOOT.exists() else ""
        words = " ".join(sys.orig_argv)[:200]
        self._write(start={"format": FORMAT, "pid": self._pid, "boot": boot, "words": words})


class _AttemptObserver:
    """The observer of attempts (see jobrunner/middleware.py); it adds nothing to tasks."""

    def __init__(self, recorder: CallRecorder) -> None:
        self._recorder = recorder

    def sending(self, tasks: Sequence[Task]) -> AbstractContextManager[Sequence[Task]]:
        return nullcontext(tasks)

    def run(self, attempt: Attempt, work: Callable[[Attempt], Outcome]) -> Outcome:
        with self._noted(attempt) as said:
            said.append(outcome := work(attempt))
        return outcome

    async def run_async(self, attempt: Attempt, work: Callable[[Attempt], Awaitable[Outcome]]) -> Outcome:
        with self._noted(attempt) as said:
            said.append(outcome := await work(attempt))
        return outcome

    def run_batch(self, _queue: str, _batch: str, _size: int, _headers: Any, work: Callable[[], Any]) -> Any:
        return work()

    def current(self) -> str:
        return ""

    def within(self, _traceparent: str, _headers: bytes | None) -> AbstractContextManager[object]:
        return nullcontext()

    @contextmanager
    def _noted(self, attempt: Attempt) -> Iterator[list[Outcome]]:
        run, outcomes = self._recorder.run(attempt), list[Outcome]()
        try:
            yield outcomes
        finally:
            self._recorder.run(attempt, run=run, outcome=type(outcomes[0]).__name__ if outcomes else "raised")


def install(folder: Path) -> Callable[[], None]:
    """Records the calls of this process and its forks from now on; returns a function that ends the recording."""
    recorder = CallRecorder(folder)
    observer = _AttemptObserver(recorder)
    exchange, exchange_async = Broker._exchange, AsyncBroker._exchange  # noqa: SLF001
    wait = notifier._ListeningConnection.wait  # noqa: SLF001

    def recorded(self: Any, connection: Any, calls: Sequence[Call[Any]], *rest: Any) -> Any:
        return _around(recorder, calls, lambda: exchange(self, connection, calls, *rest), lambda replies: replies)

    async def recorded_async(self: Any, connection: Any, calls: Sequence[Call[Any]]) -> list[Any]:
        begun = recorder.began(calls)
        try:
            replies = await exchange_async(self, connection, calls)
        except BaseException as error:
            if begun:
                recorder.broke(begun[0], error)
            raise
        if begun:
            recorder.ended(*begun, replies)
        return replies

    def waited(self: Any, at_most_s: float, calls: Sequence[Call[Any]]) -> Any:
        return _around(recorder, calls, lambda: wait(self, at_most_s, calls), lambda said: said[1])

    def end() -> None:
        Broker._exchange, AsyncBroker._exchange = exchange, exchange_async  # type: ignore[method-assign]  # noqa: SLF001
        notifier._ListeningConnection.wait = wait  # type: ignore[method-assign]  # noqa: SLF001
        OBSERVERS.remove(observer)
        recorder.close()

    Broker._exchange, AsyncBroker._exchange = recorded, recorded_async  # type: ignore[method-assign, assignment]  # noqa: SLF001
    notifier._ListeningConnection.wait = waited  # type: ignore[method-assign]  # noqa: SLF001
    OBSERVERS.append(observer)
    os.register_at_fork(after_in_child=recorder.renew)
    return end


def install_if_asked() -> None:
    """Calls `install`, once, if the environment names a folder."""
    if (folder := os.environ.get(FOLDER)) and not any(isinstance(one, _AttemptObserver) for one in OBSERVERS):
        install(Path(folder))


def environment_for(folder: Path, site: Path) -> dict[str, str]:
    """The environment for new interpreters that should record, with a sitecustomize in the folder `site`, so that lease
    keepers record as well, which load no job module."""
    for made in (folder, site):
        made.mkdir(parents=True, exist_ok=True)
    (site / "sitecustomize.py").write_text(_SITE)
    package = Path(__file__).parents[3]
    known = [word for word in os.environ.get("PYTHONPATH", "").split(os.pathsep) if word]
    return {FOLDER: str(folder), "PYTHONPATH": os.pathsep.join([str(site), *known, str(package)])}


def finish(folder: Path, broker: Broker, keys: Keys) -> None:
    """Ends a history: waits until the recording processes have ended, reads the sets of all queues in one transaction,
    and seals the files. The queues must be at rest. Raises UsageError when a process does not end."""
    _await_ends(folder)
    names = sorted({*broker.run(command("SMEMBERS", keys.queues, read=texts)), *_queues_in(folder)})
    recorder, since = CallRecorder(folder), monotonic()
    reads = [
        read
        for name in names
        for read in (
            *(command("ZRANGE", getattr(keys.queue(name), state), 0, -1, read=bytes) for state in _STATES),
            command("HGETALL", keys.queue(name).settings, read=bytes),
        )
    ]
    words = [("MULTI",), *(read.words for read in reads), ("EXEC",)]
    *_, found = broker.replies([command(*one, read=bytes) for one in words])
    settings, places = dict[str, dict[str, str]](), defaultdict[str, list[tuple[str, str]]](list)
    for name in names:
        for state in _STATES:
            for task in found.pop(0):
                places[task.decode(errors="replace")].append((name, state))
        fields = [word.decode(errors="replace") for word in found.pop(0)]
        settings[name] = dict(zip(fields[::2], fields[1::2], strict=True))
    recorder.note(snapshot={"since": since, "settings": settings, "tasks": places})
    recorder.close()
    sizes = {path.name: path.stat().st_size for path in sorted(folder.glob("*.jsonl"))}
    (folder / SEAL).write_bytes(msgspec.json.encode({"format": FORMAT, "files": sizes}))


def _await_ends(folder: Path) -> None:
    until = monotonic() + _ENDS_S
    while alive := [path for path in folder.glob("*.jsonl") if _is_written(path)]:
        if monotonic() > until:
            pids = sorted(int(path.name.partition("-")[0]) for path in alive)
            raise UsageError(f"the processes {pids} still record into {folder}; end them before the history is sealed")
        sleep(0.02)


def _queues_in(folder: Path) -> Iterator[str]:
    """The queues of all calls, as a queue that only moves enter is not registered."""
    for path in folder.glob("*.jsonl"):
        with path.open("rb") as file:
            for name in {name for line in file for name in _QUEUE.findall(line)}:
                yield msgspec.json.decode(name, type=str)


def _is_written(path: Path) -> bool:
    """Whether the process that opened a file is alive. A process that started later has reused the pid, which happens
    in hours with faults."""
    pid, _, opened_s = path.stem.partition("-")
    if int(pid) == os.getpid():
        return False
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    slept_s = since_boot() - monotonic()  # the start time of a process includes it
    began_s = int(rest[_START_OF_STAT]) / os.sysconf("SC_CLK_TCK") - slept_s
    return state not in "ZX" and began_s <= float(opened_s)


def _around(
    recorder: CallRecorder, calls: Sequence[Call[Any]], send: Callable[[], Any], replies: Callable[[Any], Sequence[Any]]
) -> Any:
    begun = recorder.began(calls)
    if begun is None:
        return send()
    try:
        said = send()
    except BaseException as error:
        recorder.broke(begun[0], error)
        raise
    recorder.ended(*begun, replies(said))
    return said
