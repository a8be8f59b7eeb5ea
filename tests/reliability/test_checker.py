"""The checker is shown builds that lose, double and leak: each must be caught, by the check that is made for it."""

from pathlib import Path

import pytest

from tests.reliability.rows.workers import killed
from tests.reliability.scenario import Findings
from tests.reliability.stage import Stage

# What is hoarded is for the soak to find: tests/acceptance/test_soak.py.
CAUGHT_BY = {
    "loses": "acknowledged tasks lost",
    "doubles": "attempts beyond one for each task",
    "leaks": "still there",
}


@pytest.mark.reliability
@pytest.mark.parametrize("fault", [None, *CAUGHT_BY])
def test_a_build_with_a_fault_is_caught(fault: str | None, tmp_path: Path) -> None:
    findings = Findings()
    stage = Stage(tmp_path, patience_s=5)
    stage.fleet.environment |= stage.tamper(fault=fault or "")
    try:
        killed.play(stage, findings, {"tasks": 300, "kills": 2, "workers": 2})
    finally:
        stage.close()

    broken = {check.name for check in findings.broken}
    if fault:
        assert CAUGHT_BY[fault] in broken, findings
    else:
        assert not broken - {"s until what was orphaned ran again"}, findings
