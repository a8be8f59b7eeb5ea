"""The damaged rows: known, the same for a seed, and none of them passes the cleaning."""

import pytest

from jobs_example import dataset
from jobs_example.cleaning import BadRow, typed
from jobs_example.demos.flights.damage import DAMAGED_ROWS, Damage, Damaged

FLIGHTS = 400


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    """Some flights."""
    return [row for row, _ in zip(dataset.raw_flights(), range(FLIGHTS), strict=False)]


def damaged(rows: list[dict[str, str]], seed: int) -> list[Damaged]:
    damage = Damage(seed, among=len(rows))
    found = [bad for row in rows if (bad := damage.of(row))]
    assert found == damage.done
    return found


@pytest.mark.parametrize("seed", [1, 2013, 77])
def test_each_damaged_row_is_refused_for_the_column_that_is_damaged(rows: list[dict[str, str]], seed: int) -> None:
    for bad in damaged(rows, seed):
        with pytest.raises(BadRow, match=bad.column):
            typed(bad.row)


def test_there_are_as_many_as_told_and_each_has_an_id_of_its_own(rows: list[dict[str, str]]) -> None:
    assert len({bad.id for bad in damaged(rows, 2013)}) == DAMAGED_ROWS


def test_the_same_seed_does_the_same_damage(rows: list[dict[str, str]]) -> None:
    assert damaged(rows, 5) == damaged(rows, 5)
    assert damaged(rows, 5) != damaged(rows, 6)


def test_the_rows_themselves_are_not_touched(rows: list[dict[str, str]]) -> None:
    before = [dict(row) for row in rows]
    damaged(rows, 2013)
    assert rows == before


def test_some_lack_a_column(rows: list[dict[str, str]]) -> None:
    assert any(bad.column not in bad.row for bad in damaged(rows, 2013))
