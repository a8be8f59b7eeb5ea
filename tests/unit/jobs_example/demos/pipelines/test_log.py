"""Reads the workers' log while it is written."""

import json
from pathlib import Path

from jobs_example.demos.pipelines.log import BatchDone, Log

BATCH = {"event": "batch done", "queue": "flights/late", "items": 200, "epoch": 2, "take_s": 1.0, "run_s": 2.5}
DONE = BatchDone(station="late", items=200, seconds=3.5, epoch=2)


def test_batches_are_told_once_each(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(json.dumps(BATCH) + "\n")
    log = Log(path)
    log.look()
    log.look()

    assert log.batches == [DONE]


def test_a_line_that_is_not_whole_yet_is_read_when_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log"
    line = json.dumps(BATCH) + "\n"
    path.write_text(line[:20])
    log = Log(path)
    log.look()
    assert log.batches == []
    path.write_text(line)
    log.look()

    assert log.batches == [DONE]


def test_lines_of_others_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("WARNING: Using incubator modules\n7\n{broken\n" + json.dumps(BATCH) + "\n")
    log = Log(path)
    log.look()

    assert log.batches == [DONE]


def test_the_last_error_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    said = [{"level": "error", "error": "first"}, {"level": "error", "error": "second"}, {"level": "info", "error": ""}]
    path.write_text("".join(json.dumps(one) + "\n" for one in said))
    log = Log(path)
    log.look()

    assert log.last_error == "second"
