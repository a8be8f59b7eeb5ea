"""Kills each kind of process once, in the middle of its work, and watches for its replacement."""

import time
from collections.abc import Callable

from jobs_example.demos.flights.crew import TITLES, Crew, Role, kill
from jobs_example.demos.flights.glance import Glance

_REST_S = 2.0
"""After the executor's Python, before the driver: time for the Spark task to begin anew."""


class Kills:
    """Kills a Python worker early, a Python of the executor as soon as Spark has a batch in hand, then the driver.

    The driver is killed once `driver_at` (0 to 1) of the items have come past the station on Spark.
    """

    def __init__(self, say: Callable[[str], None], driver_at: float) -> None:
        self._say = say
        self._driver_at = driver_at
        self._at_s: dict[Role, float] = {}
        self.done: list[tuple[Role, int]] = []
        """Role and process of each, in order."""
        self.replaced: dict[Role, int] = {}
        """How many of each role were replaced."""

    def look(self, glance: Glance) -> None:
        """Kills processes whose time has come, and reports the replacements of killed ones."""
        for role, has_come in self._times(glance).items():
            if role not in self._at_s and has_come:
                self._kill(role, glance.crew)
        for role, pid in self.done:
            fresh = [other for other in glance.crew.of(role) if other != pid]
            if role not in self.replaced and pid not in glance.crew.of(role) and fresh:
                self.replaced[role] = 1
                after_s = time.monotonic() - self._at_s[role]
                self._say(f"{TITLES[role]}: process {fresh[-1]} has taken its place, {after_s:.1f} s after the kill")

    def _times(self, glance: Glance) -> dict[Role, bool]:
        raw, departed = glance.station("raw"), glance.station("departed")
        cleaned = raw.totals.get("moved_out", 0)
        enriched = departed.totals.get("moved_out", 0)
        on_spark = sum(one.pending for one in glance.pipeline.stations if one.kind.startswith("spark"))
        rested = time.monotonic() - self._at_s.get("executor", float("inf")) > _REST_S
        return {
            "worker": raw.pending > 0 and cleaned > 0.1 * glance.planned,
            "executor": departed.pending > 0,
            "driver": rested and on_spark > 0 and enriched >= self._driver_at * glance.planned,
        }

    def _kill(self, role: Role, crew: Crew) -> None:
        pid = kill(role, crew)
        if pid is not None:
            self._at_s[role] = time.monotonic()
            self.done.append((role, pid))
            self._say(f"{TITLES[role]}, process {pid}, is killed (-9)")
