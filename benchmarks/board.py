"""Collects the figures of a run and judges them against the targets; builds the table of `python -m benchmarks`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from benchmarks.measures import MEASURES, OURS, Target
from benchmarks.results import Summary, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The result for one target of `measure`. `row`: the contender in whose row of the table it is printed."""

    measure: str
    target: Target
    row: str | None
    reached: float | None

    @property
    def verdict(self) -> str:
        """Met or MISSED; empty when it was not measured."""
        return "" if self.reached is None else self.target.verdict(self.reached)


@dataclass(slots=True)
class Series:
    """The figures of one contender in one measure, one for each round. `void`: the reason why none of them counts."""

    values: list[float] = field(default_factory=list)
    void: str | None = None

    @property
    def summary(self) -> Summary:
        """Raises statistics.StatisticsError when nothing was measured."""
        return Summary.of(self.values)


class Board:
    """All series of a run."""

    def __init__(self) -> None:
        self._series: dict[str, dict[str, Series]] = {name: {} for name in MEASURES}
        self.absences: list[str] = []
        """One line for each measure that a contender takes no part in, with the reason."""

    def add(self, measure: str, who: str, value: float) -> None:
        self._of(measure, who).values.append(value)

    def void(self, measure: str, who: str, why: str) -> None:
        """Voids the whole series: a contender that loses tasks has no speed."""
        self._of(measure, who).void = why

    @property
    def voids(self) -> list[str]:
        """One line for each contender and reason, which begins with the first measure that it voids."""
        first: dict[tuple[str, str], str] = {}
        for measure, by_name in self._series.items():
            for who, series in by_name.items():
                if series.void:
                    first.setdefault((who, series.void), MEASURES[measure].title.strip())
        return [f"{title}, {who}: {why}" for (who, why), title in first.items()]

    def judgements(self) -> Iterator[Judgement]:
        """Every target, in the order of the table."""
        return (self._judge(name, target) for name, measure in MEASURES.items() for target in measure.targets)

    def table(self) -> str:
        """The table of `python -m benchmarks`."""
        titles = ("measure", "who", "median", "rounds", "jobrunner ÷ it", "target", "")
        return Table(titles, (row for name in MEASURES for row in self._rows(name)), left=(0, 1, 3, 6)).text()

    def figures(self, measure: str) -> Mapping[str, Series]:
        """The series of all contenders that took part, by name."""
        return self._series[measure]

    @classmethod
    def from_json(cls, measures: Mapping[str, Any]) -> Self:
        """Restores a board from the result of `as_json`."""
        board = cls()
        for name, measure in measures.items():
            for who, found in measure["figures"].items():
                board._series[name][who] = Series(found["rounds"], found["void"])
        return board

    def as_json(self) -> dict[str, Any]:
        """All figures with their medians, ratios and targets."""
        return {
            name: {
                "target": ", ".join(map(str, MEASURES[name].targets)),
                "figures": {
                    who: {
                        "median": None if series.void else series.summary.median,
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
        return {who: series.summary.median for who, series in self._series[name].items() if not series.void}

    def _ratio(self, measure: str, who: str) -> float | None:
        medians = self._medians(measure)
        if who == OURS or who not in medians or OURS not in medians or not medians[who]:
            return None
        return medians[OURS] / medians[who]

    def _rows(self, name: str) -> Iterator[tuple[str, ...]]:
        measure, title = MEASURES[name], MEASURES[name].title
        judged = [self._judge(name, target) for target in measure.targets]
        for who, series in sorted(self._series[name].items(), key=lambda item: item[0] != OURS):
            ratio = self._ratio(name, who)
            here = [one for one in judged if one.row == who]
            yield (
                title,
                who,
                "VOID" if series.void else measure.format(series.summary.median),
                " ".join(map(measure.format, series.values)) if len(series.values) > 1 else "",
                "" if ratio is None else f"{ratio:.3g}",
                ", ".join(str(one.target) for one in here),
                ", ".join(filter(None, (one.verdict for one in here))),
            )
            title = ""

    def _judge(self, name: str, target: Target) -> Judgement:
        """The row is that of jobrunner, or of the best contender that the target compares it with."""
        medians = self._medians(name)
        row: str | None = target.who
        reached = medians.get(target.who)
        if target.of:
            whole = self._medians(target.of).get(target.who)
            reached = reached / whole if reached is not None and whole else None
        elif target.against:
            best = max if MEASURES[name].most_is_best else min
            row = best((who for who in target.against if who in medians), key=lambda who: medians[who], default=None)
            reached = None if row is None else self._ratio(name, row)
        return Judgement(measure=name, target=target, row=row, reached=reached)
