"""The rows of the reliability table at their short sizes: ``pytest -n 2 -m 'reliability and not slow'``."""

import pytest

from tests.reliability.__main__ import play
from tests.reliability.rows.every import SCENARIOS
from tests.reliability.scenario import Scenario

_EVERYDAY = ("R15",)
"""Rows that take no longer than other tests."""


def _played() -> list[object]:
    short = [one for one in SCENARIOS.values() if one.short is not None]
    marks = {one.row: [] if one.row in _EVERYDAY else [pytest.mark.reliability] for one in short}
    return [pytest.param(one, id=one.row, marks=marks[one.row]) for one in short]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("one", _played())
def test_a_row_of_the_reliability_table_holds(one: Scenario) -> None:
    assert one.short is not None

    findings, _, _ = play(one, one.short)

    assert not findings.broken
    assert findings.checks
