"""The checker runs on builds that lose, double and leak: the check for each of these bugs must find it."""

import re
from pathlib import Path

import pytest

from jobrunner.broker import scripts
from tests.reliability.rows import attackers
from tests.reliability.rows.crashes import last_attempts, survived_by_keepers
from tests.reliability.rows.workers import killed
from tests.reliability.scenario import Findings, Scenario, Sizes
from tests.reliability.stage import Stage
from tests.reliability.tampering import FAULTS
from tests.security.conftest import KEY

# A build that hoards is found by the soak: tests/acceptance/test_soak.py.
CAUGHT_BY = {
    "loses": "acknowledged tasks lost",
    "doubles": "attempts beyond one for each task",
    "leaks": "still there",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_fault_replaces_stands_in_a_script(fault: str) -> None:
    right, wrong = FAULTS[fault]
    names = [file.stem for file in (Path(scripts.__file__).parent / "lua").glob("*.lua")]
    assert any(right.encode() in scripts.load(name).source for name in names)
    assert set(re.findall(r"(?<![.\w])(\w+)\(", wrong)) <= {"ipairs"}, "the script may not have that function"


@pytest.mark.reliability
@pytest.mark.parametrize("fault", [None, *CAUGHT_BY])
def test_a_build_with_a_fault_is_caught(fault: str | None, tmp_path: Path) -> None:
    findings = Findings()
    stage = Stage(tmp_path, give_up_s=5)
    stage.fleet.environment |= stage.tamper(fault=fault or "")
    try:
        killed.play(stage, findings, {"tasks": 300, "kills": 2, "workers": 2})
    finally:
        stage.close()

    broken = {check.name for check in findings.broken}
    if fault:
        assert {CAUGHT_BY[fault], "violations in the history"} <= broken, findings
    else:
        assert not broken - {"s until what was orphaned ran again"}, findings


@pytest.mark.reliability
@pytest.mark.parametrize(
    ("fault", "row", "sizes", "caught_by"),
    [
        ("spends", survived_by_keepers, {"kills": 2, "orphaned": 0}, "attempts spent on what had not begun"),
        ("spares", survived_by_keepers, {"kills": 1, "orphaned": 1},
         "entries of a child after its task had begun elsewhere"),
        ("spends", last_attempts, {"tasks": 600, "kills": 2}, "dead and never begun"),
    ],
)  # fmt: skip
def test_a_careless_lease_keeper_is_caught(
    fault: str, row: Scenario, sizes: Sizes, caught_by: str, tmp_path: Path
) -> None:
    findings = Findings()
    stage = Stage(tmp_path, give_up_s=10)
    stage.fleet.environment |= stage.tamper(fault=fault)
    try:
        row.play(stage, findings, sizes)
    finally:
        stage.close()

    assert caught_by in {check.name for check in findings.broken}, findings


@pytest.mark.reliability
def test_workers_that_run_plain_tasks_beside_encrypted_ones_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = Findings()
    monkeypatch.setattr(attackers, "_WORKERS", {"payload_keys": [KEY]})
    stage = Stage(tmp_path)
    try:
        attackers.attacked.play(stage, findings, {"tasks": 60, "rounds": 1})
    finally:
        stage.close()

    wanted = {"runs of what was not enqueued", "runs as what was not enqueued"}
    assert wanted <= {check.name for check in findings.broken}, findings
