"""The checks at the end of a demo: expected and found values, and a table of them."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.table import Table

MOST_NAMES = 5
"""How many names are shown of those that are missing or too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One condition that must hold."""

    what: str
    expected: str
    found: str
    agrees: bool


def same(what: str, expected: object, found: object) -> Check:
    """Checks for equality."""
    return Check(what=what, expected=str(expected), found=str(found), agrees=expected == found)


def at_least(what: str, least: int, found: int) -> Check:
    """Checks for a minimum."""
    return Check(what=what, expected=f"at least {least}", found=str(found), agrees=found >= least)


def same_names(what: str, expected: AbstractSet[str], found: AbstractSet[str]) -> Check:
    """Checks that exactly these names are there; it shows their number and the first that differ."""
    differing = [f", without {name}" for name in sorted(expected - found)]
    differing += [f", with {name}" for name in sorted(found - expected)]
    more = f" and {len(differing) - MOST_NAMES} more" if len(differing) > MOST_NAMES else ""
    shown = f"{len(found)}{''.join(differing[:MOST_NAMES])}{more}"
    return Check(what=what, expected=str(len(expected)), found=shown, agrees=expected == found)


def write_checks(checks: Sequence[Check], stream: TextIO) -> None:
    """Writes the checks as a table: in colour on a terminal with rich, in plain columns anywhere else."""
    if stream.isatty() and find_spec("rich") is not None:
        from rich.console import Console

        Console(file=stream).print(_table(checks))
        return
    rows = [("check", "expected", "found", "")] + [
        (check.what, check.expected, check.found, _verdict(check)) for check in checks
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[3]]).rstrip(), file=stream)


def _table(checks: Sequence[Check]) -> "Table":
    from rich.table import Table

    table = Table("check", "expected", "found", "")
    for check in checks:
        colour = "green" if check.agrees else "bold red"
        table.add_row(check.what, check.expected, check.found, f"[{colour}]{_verdict(check)}[/]")
    return table


def _verdict(check: Check) -> str:
    return "agrees" if check.agrees else "DIFFERS"
