"""Gates: checks that keep a worker from taking tasks for a while, because of memory, CPU or the answer of a function.

A closed gate works like the command to be quiet: the worker reserves nothing new, fetched tasks are released, running
tasks go on. A gate opens by itself. A worker without gates runs none of this.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from jobrunner.errors import InvalidOption
from jobrunner.formatting import describe
from jobrunner.logs import SafeLogger

_EVERY_S = 1.0
_OPENS_BELOW = 0.05
"""How far a share must fall below its limit before the gate opens: else it would open and close with each task."""
_LONGEST_REASON = 200
_SHARE = re.compile(r"(memory|cpu)=([0-9]{1,3}(?:\.[0-9]+)?)%")
_log = SafeLogger("jobrunner.worker")


@dataclass(frozen=True, slots=True)
class Gate:
    """One check. `check` returns the reason not to take tasks now; None or '' when the worker may take tasks."""

    name: str
    check: Callable[[], object]


def gate_of(given: Any) -> Gate:
    """The gate of `memory=90%`, `cpu=95%`, `module:function`, or a callable. Raises InvalidOption."""
    if callable(given):
        return Gate(f"{getattr(given, '__module__', '')}:{getattr(given, '__qualname__', type(given).__name__)}", given)
    if not isinstance(given, str):
        raise InvalidOption(f"gate {describe(given)}: give 'memory=90%', 'cpu=95%', 'module:function' or a callable")
    if (found := _SHARE.fullmatch(given.strip())) is not None and 0 < (limit := float(found[2])) <= 100:
        read = memory_share if found[1] == "memory" else CpuShare()
        return Gate(given.strip(), ShareGate(found[1], limit / 100, read))
    module, colon, name = given.partition(":")
    if not (module and colon and name) or "=" in given:
        raise InvalidOption(f"gate {given!r}: write memory=90%, cpu=95% (from above 0 to 100), or module:function")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidOption(f"gate {given!r} cannot be imported: {error}; write module:function") from error
    if not callable(function):
        raise InvalidOption(f"gate {given!r} is {describe(function)}; name a function that returns a reason, or None")
    return Gate(given, function)


class Gates:
    """Checks all gates each second and calls `on_change` with the reason of the first closed gate, '' when all are
    open. Logs once when another gate closes, and once when all are open again. `step` is for a loop."""

    def __init__(self, gates: Sequence[Gate], on_change: Callable[[str], object]) -> None:
        self._gates = gates
        self._on_change = on_change
        self._closed = ""
        self._reason = ""

    def step(self) -> float:
        """Checks all gates; returns the seconds to the next check."""
        name, reason = self._first_closed()
        if name != self._closed:
            if name:
                _log.warning("gate closed: the worker takes no new tasks", gate=name, reason=reason)
            else:
                _log.info("gate open: the worker takes tasks again", gate=self._closed)
        if reason != self._reason:
            self._closed, self._reason = name, reason
            self._on_change(reason)
        return _EVERY_S

    def _first_closed(self) -> tuple[str, str]:
        for gate in self._gates:
            try:
                found = gate.check()
            except Exception as error:  # the checked service may be away: a reason to close, not to fail
                found = f"{type(error).__name__}: {error}"
            if found is None or found == "":
                continue
            if not isinstance(found, str):
                found = f"it returned {describe(found)} and not a reason, or None"
            plain = "".join(one if one.isprintable() else " " for one in found)
            return gate.name, f"{gate.name}: {plain}"[:_LONGEST_REASON]
        return "", ""


class ShareGate:
    """Closed while a share of the machine is in use, until it is five points below that."""

    def __init__(self, what: str, limit: float, read: Callable[[], float]) -> None:
        self._what = what
        self._limit = limit
        self._read = read
        self._is_closed = False
        read()  # raises where the system does not report it

    def __call__(self) -> str | None:
        """The reason while the gate is closed; else None."""
        share = self._read()
        bound = max(self._limit - _OPENS_BELOW, self._limit / 2) if self._is_closed else self._limit
        self._is_closed = share >= bound
        return f"{share:.0%} in use" if self._is_closed else None


def memory_share(root: Path = Path("/")) -> float:
    """The share of memory in use, without what the system can free at once: of the machine or of a control group,
    whichever is greatest. Raises InvalidOption where the system has no /proc/meminfo."""
    try:
        words = (line.split() for line in (root / "proc/meminfo").read_text().splitlines())
        sizes = {word[0]: int(word[1]) for word in words if len(word) > 1}
        share = 1 - sizes["MemAvailable:"] / sizes["MemTotal:"]
    except (OSError, KeyError, ValueError, ZeroDivisionError) as error:
        raise InvalidOption(f"a gate on memory needs /proc/meminfo, as Linux has it: {error}") from error
    return max([share, *_shares_of_groups(root)])


def _shares_of_groups(root: Path) -> Iterator[float]:
    """The share in use of each limit of memory that holds for this process: a container's, a systemd unit's or slice's.

    Of version 1 of control groups only that of its own group counts. Where its path is one of the host, as in some
    containers, the group is the one at the top.
    """
    top = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    own = {kinds: path for _, kinds, path in (line.split(":", 2) for line in lines if line.count(":") > 1)}
    folder = top / own.get("", "/").lstrip("/")
    folder = folder if folder.is_dir() else top
    for group in (folder, *folder.parents):
        if group.is_relative_to(top):
            yield from _share_of_group(group, "memory.max", "memory.current", "inactive_file")
    folder = top / "memory" / own.get("memory", "/").lstrip("/")
    folder = folder if folder.is_dir() else top / "memory"
    yield from _share_of_group(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _share_of_group(group: Path, limit: str, usage: str, cache: str) -> Iterator[float]:
    with suppress(OSError, ValueError, ZeroDivisionError):  # 'max' without a limit; in version 1 a huge number
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        used = int((group / usage).read_text()) - int(stat.get(cache, 0))
        yield used / int((group / limit).read_text())


class CpuShare:
    """The share of processor time that was used since the last call, on all processors of the machine; 0 at first."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._path = root / "proc/stat"
        self._idle = self._total = 0

    def __call__(self) -> float:
        """The share since the last call. Raises InvalidOption on a system without /proc/stat."""
        try:
            ticks = [int(word) for word in self._path.read_text().split("\n", 1)[0].split()[1:9]]
            idle, total = ticks[3] + ticks[4], sum(ticks)
        except (OSError, ValueError, IndexError) as error:
            raise InvalidOption(f"a gate on cpu needs /proc/stat, as Linux has it: {error}") from error
        passed, idled, is_first = total - self._total, idle - self._idle, not self._total
        self._idle, self._total = idle, total
        return 0.0 if is_first or passed <= 0 else 1 - idled / passed
