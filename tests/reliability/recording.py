"""Histories of rows: each call of the producer, the workers and their lease keepers, judged by a program of its own."""

import shutil

from jobrunner.client.client import broker_of, keys_of
from jobrunner.soak.history.__main__ import violations
from jobrunner.soak.history.reader import NotJudged, read
from jobrunner.soak.history.recorder import finish
from tests.reliability.scenario import Findings
from tests.reliability.stage import Stage


def judge_history(stage: Stage, findings: Findings) -> None:
    """Ends the workers and the recording that `Stage.record_history` began, and checks what was recorded."""
    stage.stop_workers()
    folder = stage.end_recording()
    finish(folder, broker_of(stage.client), keys_of(stage.client))
    if stage.histories is not None:
        shutil.copytree(folder, stage.histories, dirs_exist_ok=True)
    try:
        history = read(folder)
    except NotJudged as refused:
        findings.equals("history", f"not judged: {refused}", "judged")
        return
    found = list(violations(history))
    findings.equals("violations in the history", [" ".join(one) for one in found[:3]], [])
    findings.at_least("attempts in the history", len(history.runs), 1)
    findings.note("tasks in the history", len(history.tasks))
    findings.note("reserves without a reply", len(history.lost_reserves))
