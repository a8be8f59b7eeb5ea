"""Where figures are collected, and the table of medians, ratios and targets made of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

OURS = "jobrunner"
PEERS = ("dramatiq", "taskiq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What is measured, and what jobrunner should reach: `bound`, or `bound` times the best of `against`."""

    title: str
    digits: int = 0
    bound: float | None = None
    at_least: bool = True
    against: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        if self.bound is None:
            return ""
        return f"{'≥' if self.at_least else '≤'} {self.bound:,g}" + (" ×" if self.against else "")

    def shown(self, figure: float) -> str:
        """A figure with this measure's digits."""
        return f"{figure:,.{self.digits}f}"

    def met(self, reached: float) -> bool:
        """Whether a ratio (with `against`) or a figure (without) is as good as the target."""
        return self.bound is None or (reached >= self.bound if self.at_least else reached <= self.bound)


MEASURES = {
    "drain": Measure(title="drain, tasks/s", bound=4, against=PEERS),
    "round_trips": Measure(title="  round trips/task", digits=4, bound=0.1, at_least=False),
    "script_calls": Measure(title="  script calls/task", digits=4),
    "commands": Measure(title="  commands/task, also in scripts", digits=2),
    "command_us": Measure(title="  server in commands/task, µs", digits=1, bound=8, at_least=False),
    "cpu_us": Measure(title="  server CPU/task in all, µs", digits=1),
    "enqueue": Measure(title="enqueue one by one, tasks/s", bound=0.7, against=("bare script call",)),
    "bulk": Measure(title="enqueue_many, tasks/s", bound=100_000),
    "idle": Measure(title="idle worker, commands/s", digits=2, bound=1, at_least=False),
    "idle_cpu": Measure(title="idle worker, % of a core", digits=2),
    "start": Measure(title="enqueue to start, median ms", digits=2, bound=1.5, at_least=False),
    "start_p99": Measure(title="enqueue to start, p99 ms", digits=2),
}


@dataclass(slots=True)
class Series:
    """The figures of one contender in one measure, one for each round, and why they are void, if they are."""

    values: list[float] = field(default_factory=list)
    void: str | None = None


class Board:
    """All series of a run."""

    def __init__(self) -> None:
        self._series: dict[str, dict[str, Series]] = {name: {} for name in MEASURES}

    def add(self, measure: str, who: str, value: float) -> None:
        self._of(measure, who).values.append(value)

    def void(self, measure: str, who: str, why: str) -> None:
        """Strikes the whole series: a contender that loses tasks has no speed."""
        self._of(measure, who).void = why

    @property
    def voids(self) -> list[str]:
        """One line for each void series."""
        return [
            f"{MEASURES[measure].title.strip()}, {who}: {series.void}"
            for measure, by_name in self._series.items()
            for who, series in by_name.items()
            if series.void
        ]

    def table(self) -> str:
        """The table for people."""
        head = ("measure", "who", "median", "rounds", "jobrunner ÷ it", "target", "")
        rows = [head, *(row for name in MEASURES for row in self._rows(name))]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        return "\n".join(_line(row, widths) for row in rows)

    def as_json(self) -> dict[str, Any]:
        """All figures with their medians, ratios and targets."""
        return {
            name: {
                "target": MEASURES[name].target,
                "figures": {
                    who: {
                        "median": None if series.void else median(series.values),
                        "rounds": series.values,
                        "ratio": self._ratio(name, who),
                        "void": series.void,
                    }
                    for who, series in by_name.items()
                },
            }
            for name, by_name in self._series.items()
            if by_name
        }

    def _of(self, measure: str, who: str) -> Series:
        return self._series[measure].setdefault(who, Series())

    def _medians(self, name: str) -> Mapping[str, float]:
        return {who: median(series.values) for who, series in self._series[name].items() if not series.void}

    def _ratio(self, measure: str, who: str) -> float | None:
        medians = self._medians(measure)
        if who == OURS or who not in medians or OURS not in medians or not medians[who]:
            return None
        return medians[OURS] / medians[who]

    def _rows(self, name: str) -> Iterator[tuple[str, ...]]:
        measure, title = MEASURES[name], MEASURES[name].title
        yardstick = self._judged_against(name)
        for who, series in sorted(self._series[name].items(), key=lambda item: item[0] != OURS):
            ratio = self._ratio(name, who)
            yield (
                title,
                who,
                "VOID" if series.void else measure.shown(median(series.values)),
                " ".join(map(measure.shown, series.values)) if len(series.values) > 1 else "",
                "" if ratio is None else f"{ratio:.3g}",
                measure.target if who == yardstick else "",
                self._verdict(name, who) if who == yardstick else "",
            )
            title = ""

    def _judged_against(self, name: str) -> str | None:
        """Whose row carries the target: jobrunner's own, or that of the best it is measured against."""
        measure, medians = MEASURES[name], self._medians(name)
        if measure.bound is None or not measure.against:
            return None if measure.bound is None else OURS
        present = [who for who in measure.against if who in medians]
        return max(present, key=lambda who: medians[who], default=None)

    def _verdict(self, name: str, who: str) -> str:
        reached = self._medians(name).get(OURS) if who == OURS else self._ratio(name, who)
        return "" if reached is None else "met" if MEASURES[name].met(reached) else "MISSED"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    left_aligned = (0, 1, 3, 6)
    cells = [
        cell.ljust(width) if column in left_aligned else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
