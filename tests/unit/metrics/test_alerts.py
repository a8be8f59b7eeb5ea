"""The alert rules fire in the cases that one has alerts for, as Prometheus itself evaluates them."""

import shutil
import subprocess
from pathlib import Path

import pytest

ALERTS = Path(__file__).parents[3] / "docs" / "monitoring" / "alerts.yml"
CASES = Path(__file__).with_name("alerts_test.yml")


@pytest.mark.slow
def test_each_rule_fires_in_its_case_and_not_in_a_healthy_one(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool on this machine: apt-get install prometheus")
    cases = tmp_path / "alerts_test.yml"
    cases.write_text(CASES.read_text("utf-8").replace("ALERTS]", f"{ALERTS}]"), "utf-8")

    checked = subprocess.run([promtool, "check", "rules", str(ALERTS)], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tried = subprocess.run([promtool, "test", "rules", str(cases)], capture_output=True, text=True, timeout=60)
    assert tried.returncode == 0, tried.stdout + tried.stderr


def test_rules_cover_what_has_no_series_yet_or_no_longer() -> None:
    """The extended run tries the rules with promtool; these parts of them make the difference."""
    rules = {rule.split()[0]: rule for rule in ALERTS.read_text("utf-8").split("- alert: ")[1:]}

    assert "absent(jobrunner_workers)" in rules["JobrunnerNoWorkers"]
    assert "up{" in rules["JobrunnerNotScraped"]
    assert "offset 10m" in rules["JobrunnerTasksDie"]
    failed = 'max by (queue, type) (rate(jobrunner_tasks_total{outcome="failed"}[10m]))'
    assert f"or {failed} * 0" in rules["JobrunnerManyFailures"]


def test_each_rule_has_a_case() -> None:
    cases = CASES.read_text("utf-8")

    for rule in ALERTS.read_text("utf-8").split("- alert: ")[1:]:
        assert rule.split()[0] in cases or rule.split()[0] == "JobrunnerServerSlow", rule.split()[0]
