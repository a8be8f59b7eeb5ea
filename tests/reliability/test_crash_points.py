"""There is a crash point for every script that a worker, its keeper and its leader send; each is survived."""

from pathlib import Path

import pytest

from tests.reliability.__main__ import play
from tests.reliability.rows.points import SCRIPTS, enqueue_of_all_kinds, enqueue_untold, life, points
from tests.reliability.stage import Stage
from tests.reliability.ticks import end_ticks

_PAIRS = [(role, script) for role, scripts in SCRIPTS.items() for script in scripts]


@pytest.mark.slow
@pytest.mark.parametrize(("role", "script"), _PAIRS)
def test_a_process_may_die_before_and_after_a_call(role: str, script: str) -> None:
    """MOSQ-02"""
    findings, _, _ = play(points, {"points": f"{role}:before:{script} {role}:after:{script}"})

    assert not findings.broken


@pytest.mark.slow
def test_every_script_that_is_sent_has_a_crash_point(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    try:
        options = life(stage)
        environment = stage.tamper(trace=str(tmp_path / "trace"))
        flow, untold = enqueue_of_all_kinds(stage, 0), enqueue_untold(stage)
        stage.fleet.launch(environment, **options).wait_ready()
        flow.result(timeout=30)
        untold.result(timeout=30)
        stage.drain()
        end_ticks(stage, 1, environment=environment, **options)
    finally:
        stage.close()

    sent = {tuple(line.split()) for line in (tmp_path / "trace").read_text().splitlines()}
    assert sent == set(_PAIRS)
