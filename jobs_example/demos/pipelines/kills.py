"""Kills each kind of process once, in the middle of its work, and watches for its replacement."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jobs_example.demos.checks import Check, at_least, same
from jobs_example.demos.pipelines.roles import TITLES, Role, RoleProcesses, kill


class Kills(ABC):
    """The kills of a demo, whose `times` says when each is due."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._at_s: dict[Role, float] = {}
        self.done: list[tuple[Role, int]] = []
        """Role and process of each, in order."""
        self.replaced: dict[Role, int] = {}
        """How many of each role were replaced."""

    @abstractmethod
    def times(self, state: Any) -> dict[Role, bool]:
        """Whether the time of each role has come."""

    def since_s(self, role: Role) -> float:
        """Seconds since one of that role was killed; negative infinity when none was."""
        return time.monotonic() - self._at_s.get(role, float("inf"))

    def look(self, state: Any) -> None:
        """Kills processes whose time has come, and reports the replacements of killed ones."""
        for role, has_come in self.times(state).items():
            if role not in self._at_s and has_come:
                self._kill(role, state.processes)
        for role, pid in self.done:
            fresh = [other for other in state.processes.of(role) if other != pid]
            if role not in self.replaced and pid not in state.processes.of(role) and fresh:
                self.replaced[role] = 1
                self._say(f"{TITLES[role]}: process {fresh[-1]} has taken its place, {self.since_s(role):.1f} s after "
                          "the kill")  # fmt: skip

    def _kill(self, role: Role, processes: RoleProcesses) -> None:
        pid = kill(role, processes)
        if pid is not None:
            self._at_s[role] = time.monotonic()
            self.done.append((role, pid))
            self._say(f"{TITLES[role]}, process {pid}, is killed (-9)")


def damage_done(
    roles: Sequence[Role], killed: Sequence[tuple[Role, int]], replaced: Mapping[Role, int]
) -> list[Check]:
    """Whether each kind of process was killed, and another was there in its place."""
    checks = []
    for role in roles:
        title, number = TITLES[role], sum(whose == role for whose, _ in killed)
        checks.append(at_least(f"killed (-9): {title}", 1, number))
        if role != "executor":  # Spark starts one when it has work for it
            checks.append(same(f"replaced: {title}", number, replaced.get(role, 0)))
    return checks
