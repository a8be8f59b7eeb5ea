"""The modules that `jobrunner work` imports: none of features that its jobs do not use."""

import subprocess
import sys
from pathlib import Path

from tests.support.server import Server

_WORK = """
import sys
from jobrunner.cli.main import jobrunner
jobrunner(["work", "plain_jobs", "--drain", "--url", sys.argv[1]], standalone_mode=False)
print(*sys.modules)
"""


def test_a_worker_of_plain_jobs_imports_neither_pipelines_nor_what_only_messages_need(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "plain_jobs.py").write_text("from jobrunner import job\n\n\n@job\ndef noop() -> None: ...\n")

    told = subprocess.run(
        [sys.executable, "-c", _WORK, server.url], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.splitlines()

    modules = told[-1].split()
    unwanted = ("jobrunner.etl.", "jobrunner.inspector", "jobrunner.spark", "importlib.metadata", "email", "redis")
    assert "jobrunner.worker.worker" in modules
    assert sorted({one for one in modules if one.startswith(unwanted)} - {"jobrunner.etl.spark_conf"}) == []
