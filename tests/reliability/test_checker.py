"""The checker runs on builds that lose, double and leak: the check for each of these bugs must find it."""

import re
from pathlib import Path

import pytest

from jobrunner.broker import scripts
from tests.acceptance.ledger import Entry
from tests.reliability import sync_filter
from tests.reliability.power import Cut
from tests.reliability.rows import attackers
from tests.reliability.rows.crashes import last_attempts, survived_by_keepers
from tests.reliability.rows.power import doubled, play_part
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


_POWER_IS_CUT = pytest.mark.skipif(bool(sync_filter.unsupported()), reason=sync_filter.unsupported())


@_POWER_IS_CUT
@pytest.mark.reliability
def test_an_enqueue_that_returns_before_the_sync_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it did with the word of the server alone."""
    monkeypatch.setattr("jobrunner.broker.broker.waits_for_disk", lambda _calls: False)

    assert play_part(tmp_path, Findings(), "hasty", "fsync", "everysec", cuts=4, seed=1) > 0


@_POWER_IS_CUT
@pytest.mark.reliability
def test_a_disk_that_loses_what_it_synced_is_caught(tmp_path: Path) -> None:
    assert play_part(tmp_path, Findings(), "lying", "none", "always", cuts=2, seed=1, is_lying=True) > 0


@_POWER_IS_CUT
@pytest.mark.reliability
def test_places_that_leak_beside_power_cuts_are_caught(tmp_path: Path) -> None:
    findings = Findings()
    play_part(tmp_path, findings, "leaky", "none", "always", cuts=1, seed=1, fault="leaks", give_up_s=2)

    broken = {check.name for check in findings.broken}
    assert broken >= {"leaky, queue t: still there", "leaky: places that are free in the end"}, findings


_CUT = Cut(at=100, synced_at=99, lost_bytes=1, is_exact=True)


@pytest.mark.parametrize(
    ("events", "cuts", "found"),
    [
        ("start 99.4, end 99.5, start 100.5", [_CUT], []),  # its end was lost
        ("start 99.4, start 100.5", [_CUT], []),  # its lease was
        ("start 100.1, end 100.2, start 100.5", [_CUT], []),  # a worker had it in hand when it was
        ("start 90, fail 91, start 92", [], []),
        ("start 99.4, end 99.5, start 99.9", [_CUT], ["a"]),
        ("start 90, end 91, start 100.5", [_CUT], ["a"]),  # its end was synced
        ("start 110, end 111, start 112", [_CUT], ["a"]),
        ("start 110, start 112", [_CUT], ["a"]),
    ],
)
def test_a_start_is_doubled_if_no_cut_explains_it(events: str, cuts: list[Cut], found: list[str]) -> None:
    entries = [Entry(event, "a", 1, 7, float(at), "-") for event, at in map(str.split, events.split(", "))]

    assert doubled(entries, cuts) == found
