"""README's first job, copied as a newcomer would: two files, one worker, nothing else set up."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the files of README's first job."""
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert [name for name, _ in blocks] == ["tasks.py", "app.py"]
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_first_job_of_the_readme_runs_on_the_embedded_server(project: Path) -> None:
    unset = ("JOBRUNNER_URL", "REDIS_URL", "JOBRUNNER_PREFIX")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment["PYTHONPATH"] = str(ROOT)
    worker = subprocess.Popen(
        [sys.executable, "-m", "jobrunner", "work", "tasks"], cwd=project, env=environment, stderr=subprocess.PIPE
    )
    try:
        app = subprocess.run(
            [sys.executable, "app.py"],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        worker.send_signal(signal.SIGTERM)
        _, log = worker.communicate(timeout=30)
    assert app.stdout.split("\n") == ["sent to ada@example.org", "3", ""], app.stderr + log.decode()
    assert worker.returncode == 0, log.decode()
    assert (project / ".jobrunner").is_dir()
