"""A row of the reliability table as a function of its size; its guarantees are checks, which keep their figures."""

from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import getdoc
from typing import Any

from tests.reliability.stage import Stage

Sizes = dict[str, Any]
"""The parameters of a scenario by name."""


@dataclass(frozen=True, slots=True)
class Check:
    """One guarantee: its name, the figure found, its bound as text, and whether it holds."""

    name: str
    value: Any
    bound: str
    holds: bool


@dataclass(slots=True)
class Findings:
    """The results of a run: checks, and figures without a bound."""

    checks: list[Check] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def equals(self, name: str, value: Any, wanted: Any) -> None:
        """The figure must be exactly that."""
        self.checks.append(Check(name, value, f"= {wanted}", bool(value == wanted)))

    def at_most(self, name: str, value: float, most: float) -> None:
        """The figure must not be above that."""
        self.checks.append(Check(name, value, f"≤ {most:g}", value <= most))

    def at_least(self, name: str, value: float, least: float) -> None:
        """The figure must not be below that: a fault that did not happen proves nothing."""
        self.checks.append(Check(name, value, f"≥ {least:g}", value >= least))

    def note(self, name: str, value: Any) -> None:
        """A figure without a bound."""
        self.figures[name] = value

    @property
    def broken(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if not check.holds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One row. `short` is its size for every CI run, None for a row that has none; `full` that of the document.

    `server` are options of its server that survive a restart.
    """

    row: str
    run: Callable[..., None]
    short: Sizes | None
    full: Sizes
    server: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The events of the scenario, in a sentence."""
        return (getdoc(self.run) or "").partition("\n")[0].rstrip(".")

    @property
    def promise(self) -> str:
        """The guarantees under test."""
        return " ".join((getdoc(self.run) or "").partition("\n")[2].split())

    def play(self, stage: Stage, findings: Findings, sizes: Sizes) -> None:
        """Runs it. Raises errors of the harness itself."""
        self.run(stage, findings, **sizes)


def scenario(
    row: str, *, short: Sizes | None, full: Sizes, server: dict[str, str] | None = None
) -> Callable[[Callable[..., None]], Scenario]:
    """Makes a scenario of ``run(stage, findings, **sizes)``; its docstring is title and promise."""
    return lambda run: Scenario(row=row, run=run, short=short, full=full, server=server or {})
