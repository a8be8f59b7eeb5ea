"""Where figures are collected, and the table of medians, ratios and targets made of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Self

from benchmarks.measures import MEASURES, OURS, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What became of a target of `measure`; `row` is whose figure it stands beside."""

    measure: str
    target: Target
    row: str | None
    reached: float | None

    @property
    def word(self) -> str:
        """Met or missed; empty when it was not measured."""
        return "" if self.reached is None else self.target.word(self.reached)


@dataclass(slots=True)
class Series:
    """The figures of one contender in one measure, one for each round, and why they are void, if they are."""

    values: list[float] = field(default_factory=list)
    void: str | None = None


class Board:
    """All series of a run."""

    def __init__(self) -> None:
        self._series: dict[str, dict[str, Series]] = {name: {} for name in MEASURES}
        self.absences: list[str] = []
        """One line for each contender that takes no part in something, and why."""

    def add(self, measure: str, who: str, value: float) -> None:
        self._of(measure, who).values.append(value)

    def void(self, measure: str, who: str, why: str) -> None:
        """Strikes the whole series: a contender that loses tasks has no speed."""
        self._of(measure, who).void = why

    @property
    def voids(self) -> list[str]:
        """One line for each contender and reason, led by the first of the measures that it voids."""
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
        """The table for people."""
        head = ("measure", "who", "median", "rounds", "jobrunner ÷ it", "target", "")
        rows = [head, *(row for name in MEASURES for row in self._rows(name))]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        return "\n".join(_line(row, widths) for row in rows)

    def figures(self, measure: str) -> Mapping[str, Series]:
        """Of all contenders that took part."""
        return self._series[measure]

    @classmethod
    def from_json(cls, measures: Mapping[str, Any]) -> Self:
        """What `as_json` gave."""
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
        judged = [self._judge(name, target) for target in measure.targets]
        for who, series in sorted(self._series[name].items(), key=lambda item: item[0] != OURS):
            ratio = self._ratio(name, who)
            here = [one for one in judged if one.row == who]
            yield (
                title,
                who,
                "VOID" if series.void else measure.shown(median(series.values)),
                " ".join(map(measure.shown, series.values)) if len(series.values) > 1 else "",
                "" if ratio is None else f"{ratio:.3g}",
                ", ".join(str(one.target) for one in here),
                ", ".join(filter(None, (one.word for one in here))),
            )
            title = ""

    def _judge(self, name: str, target: Target) -> Judgement:
        """Beside jobrunner's own figure, or that of the best it is measured against."""
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


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    left_aligned = (0, 1, 3, 6)
    cells = [
        cell.ljust(width) if column in left_aligned else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
