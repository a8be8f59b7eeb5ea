"""The progress of a soak as lines of text: one every ten seconds while it runs, and the verdict at its end."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from jobrunner.formatting import clock, duration, size
from jobrunner.soak.checks import SoakCheck
from jobrunner.soak.run import Soak
from jobrunner.soak.samples import SoakSample

_EVERY_S = 10.0
_MARKS = {True: "ok ", False: "NOT", None: " - "}


class SoakReporter(Protocol):
    """Shows the progress of a soak to a person."""

    def show(self, soak: Soak) -> None:
        """Called after each poll."""

    def say(self, text: str) -> None:
        """Prints a line about an event."""


class LineReporter:
    """Prints a line every ten seconds, and one when the phase changes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self._phase = ""
        self._next_s = 0.0

    def show(self, soak: Soak) -> None:
        """Called after each poll."""
        if soak.phase != self._phase:
            self._phase = soak.phase
            self.say(f"{clock(soak.elapsed_s)}  {self._phase}")
            self._next_s = soak.elapsed_s + _EVERY_S
        elif soak.elapsed_s >= self._next_s and soak.samples:
            self._next_s = soak.elapsed_s + _EVERY_S
            self.say(line_of(soak.elapsed_s, soak.samples[-1]) if soak.phase == "works" else _left(soak))


def line_of(at_s: float, sample: SoakSample) -> str:
    """A sample as one line."""
    memory = max(sample.memory.values(), default=0)
    keys = "?" if sample.keys is None else f"{sample.keys:,}"
    return (
        f"{clock(at_s)}  {sample.finished:,} done, {sample.per_s:,.0f}/s, {sample.open:,} open, "
        f"p50 {wait_text(sample.p50_ms)}, p99 {wait_text(sample.p99_ms)}, oldest {duration(sample.oldest_s)}, "
        f"{sample.retries:,} retries, {sample.extra:,} begun again, {sum(sample.faults.values()):,} faults, "
        f"{size(memory)}, {keys} keys"
    )


def verdict_lines(checks: Sequence[SoakCheck], faults: Mapping[str, int], extra: int) -> list[str]:
    """The checks, each in a line; the faults; and the verdict."""
    lines = [f"{_MARKS[check.holds]} {check.name}: {check.value} ({check.bound})" for check in checks]
    struck = ", ".join(f"{count:,} {kind}" for kind, count in faults.items()) or "none"
    broken = sum(check.holds is False for check in checks)
    lines += ["", f"faults: {struck}; {extra:,} tasks began again because of them"]
    return [*lines, f"NOT HELD: {broken} of {len(checks)} checks" if broken else "HELD: nothing was lost"]


def wait_text(wait_ms: float | None) -> str:
    """A percentile of the waits; `-` before the first."""
    return "-" if wait_ms is None else duration(wait_ms / 1000)


def _left(soak: Soak) -> str:
    return f"{clock(soak.elapsed_s)}  {len(soak.tally.open):,} open, {soak.tally.totals.finished:,} done"
