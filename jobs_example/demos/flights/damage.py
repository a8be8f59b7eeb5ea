"""Rows that cannot be true, put among the flights on purpose: each must end dead, with the reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

Row = Mapping[str, str]

DAMAGED_ROWS = 36
_BAD_CELLS = {
    "month": "13",
    "day": "0",
    "hour": "noon",
    "time_hour": "yesterday",
    "carrier": "NA",
    "flight": "12½",
    "origin": "LHR",
    "dest": "",
    "distance": "-1",
    "dep_delay": "soon",
    "arr_delay": "99999",
}
"""A cell for each of these columns that no flight can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """A row that is damaged in one column; of some the whole column is missing."""

    id: str
    column: str
    row: Row


class Damage:
    """Damages copies of some rows of so many; the same seed does the same damage to the same rows."""

    def __init__(self, seed: int, among: int) -> None:
        self._random = Random(f"damage {seed}")
        self._places = frozenset(self._random.sample(range(among), DAMAGED_ROWS))
        self._seen = 0
        self.done: list[Damaged] = []

    def of(self, row: Row) -> Damaged | None:
        """A damaged copy of the row, if it is this one's turn; to be called once for each row, in order."""
        self._seen += 1
        if self._seen - 1 not in self._places:
            return None
        column = self._random.choice(sorted(_BAD_CELLS))
        cells = {**row, column: _BAD_CELLS[column]}
        if self._random.random() < 0.2:
            del cells[column]
        self.done.append(Damaged(id=f"damaged-{len(self.done) + 1:02}", column=column, row=cells))
        return self.done[-1]
