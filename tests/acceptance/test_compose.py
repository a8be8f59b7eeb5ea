"""docs/deploy/compose.yml works with the project of the tutorial: its processes start, are healthy, work and stop."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.compose_processes import Deployment
from tests.acceptance.newcomer import ROOT, Newcomer, blocks, with_commands
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

PAGE = (ROOT / "docs" / "start" / "tutorial.md").read_text("utf-8")


@pytest.mark.timeout(240)
def test_the_services_of_the_file_run_the_jobs_of_the_tutorial(tmp_path: Path) -> None:
    environment = with_commands(tmp_path)
    newcomer = Newcomer(tmp_path, environment)
    for block in blocks(PAGE):
        if block.file and not block.file.startswith("tests/"):
            newcomer.write(block)
    shutil.copy(ROOT / "docs" / "deploy" / "compose.yml", tmp_path)
    (tmp_path / ".env").write_text(
        "SERVER_PASSWORD=s3cret\nMETRICS_TOKEN=token-of-metrics\nDASHBOARD_TOKEN=token-of-the-dashboard\n"
    )
    deployed = Deployment(tmp_path, {**environment, "HOME": str(tmp_path)})
    try:
        deployed.up()
        inside = deployed.environment_of("worker-short")
        run = ["jobrunner", "enqueue", "send_welcome", "address=ada@example.org", "--id", "a"]
        subprocess.run(run, cwd=tmp_path, env=inside, check=True, capture_output=True)
        show = ["jobrunner", "tasks", "show", "a", "--queue", "mail", "--json"]
        wait_for(lambda: '"succeeded"' in subprocess.run(show, cwd=tmp_path, env=inside, capture_output=True, text=True,
                                                         check=False).stdout)  # fmt: skip
        assert {name: process.poll() for name, process in deployed.processes.items()} == dict.fromkeys(
            ("server", "worker-short", "worker-long", "dashboard")
        )
    finally:
        codes = deployed.down()

    assert codes["worker-short"] == codes["worker-long"] == 0, codes
