"""The first job of README and of docs/start/first-job.md, copied as a newcomer would: two files, one worker."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]


def copy_out(page: str, folder: Path) -> None:
    """Writes the files of a page's first job."""
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert [name for name, _ in blocks] == ["tasks.py", "app.py"]
    for name, text in blocks:
        (folder / name).write_text(text)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("page", "printed"),
    [("README.md", ["sent to ada@example.org", "3"]), ("docs/start/first-job.md", ["sent to ada@example.org"])],
)
def test_the_first_job_of_a_page_runs_on_the_embedded_server(page: str, printed: list[str], tmp_path: Path) -> None:
    project = tmp_path
    copy_out(page, project)
    unset = ("JOBRUNNER_URL", "REDIS_URL", "JOBRUNNER_PREFIX")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment["PYTHONPATH"] = str(ROOT)
    log = project / "worker.log"
    with log.open("w") as stderr:
        worker = subprocess.Popen(
            [sys.executable, "-m", "jobrunner", "work", "tasks"], cwd=project, env=environment, stderr=stderr
        )
    try:
        wait_for(lambda: "worker started" in log.read_text() or worker.poll() is not None)
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
        worker.wait(30)
    assert app.stdout.splitlines() == printed, app.stderr + log.read_text()
    assert worker.returncode == 0, log.read_text()
    assert (project / ".jobrunner").is_dir()
