"""Logs of a process that works."""

import sys
from pathlib import Path

import pytest
import structlog

from jobrunner.logs import log_to_stderr


def test_a_log_that_cannot_be_written_ends_no_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stream = (tmp_path / "log").open("w")
    monkeypatch.setattr(sys, "stderr", stream)
    log_to_stderr("console")
    stream.close()
    structlog.get_logger().warning("nobody reads this")
