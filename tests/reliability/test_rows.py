"""The rows of the reliability table at their short sizes: ``pytest -n 3 -m 'reliability and not slow'``."""

import pytest

from tests.reliability import sync_filter
from tests.reliability.__main__ import play
from tests.reliability.rows.every import SCENARIOS
from tests.reliability.scenario import Scenario

_EVERYDAY = ("R15",)
"""Rows that take no longer than other tests."""
_OF_TOPOLOGIES = ("R21", "R22", "R35")
_OF_POWER_CUTS = ("R43",)


def _played() -> list[object]:
    short = [one for one in SCENARIOS.values() if one.short is not None]
    return [pytest.param(one, id=one.row, marks=_marks(one.row)) for one in short]


def _marks(row: str) -> list[pytest.MarkDecorator]:
    if row in _EVERYDAY:
        return []
    if row in _OF_POWER_CUTS:
        why = sync_filter.unsupported()
        return [pytest.mark.reliability, pytest.mark.skipif(bool(why), reason=why)]
    return [pytest.mark.topology if row in _OF_TOPOLOGIES else pytest.mark.reliability]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("one", _played())
def test_a_row_of_the_reliability_table_holds(one: Scenario) -> None:
    assert one.short is not None

    findings, _, _ = play(one, one.short)

    assert not findings.broken
    assert findings.checks
