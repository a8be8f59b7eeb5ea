"""Workers where each file system is read-only, as in a container with `readOnlyRootFilesystem`: they write no files."""

import shutil
import subprocess
import sys
from typing import Any

import pytest

from jobrunner.client.client import Client

pytestmark = pytest.mark.processes

JOBS = """
import tempfile
from jobrunner import job

@job(queue="files")
def write() -> str:
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return "nowhere"
"""
READ_ONLY = """
while read -r _ at _; do
  case $at in /proc*|/sys*|/dev*) ;; *) mount -o remount,bind,ro "$at" || exit 77 ;; esac
done < /proc/self/mounts
exec "$@"
"""
_REFUSED = 77


@pytest.mark.parametrize("options", ["--executor threads", "--executor processes", "--executor async", "--processes 2"])
def test_a_worker_writes_no_files(shell: Any, client: Client, options: str) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    shell.write("jobs_here.py", JOBS)
    task = shell.run("enqueue", "jobs_here.write").out.strip()

    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", READ_ONLY, "sh"]
    command = [sys.executable, "-m", "jobrunner", "work", "jobs_here", "--drain", "--metrics-port", "0"]
    ended = subprocess.run(
        [*words, *command, *options.split()], cwd=shell.folder, env=shell.environment, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    if ended.returncode == _REFUSED or ended.stderr.startswith("unshare: "):
        pytest.skip("this system lets nobody remount file systems in a namespace")

    assert ended.returncode == 0, ended.stderr
    assert client.task(task).result(timeout=0) == "nowhere"
