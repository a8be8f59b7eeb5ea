"""Another project's package `jobrunner` that was installed over this one: the command says so, and how to repair it."""

import shutil
import subprocess
import sys
from pathlib import Path

import jobrunner


def test_the_command_names_the_package_that_lies_over_this_one(tmp_path: Path) -> None:
    ours, ignored = Path(jobrunner.__file__).parent, shutil.ignore_patterns("static", "lua")
    shutil.copytree(ours, tmp_path / "jobrunner", ignore=ignored)
    (tmp_path / "jobrunner" / "__init__.py").write_text('"""Runs jobs on a grid engine."""\n')

    done = subprocess.run(
        [sys.executable, "-m", "jobrunner", "status"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "Error: another project's package 'jobrunner' was installed over 'jobrunner-queue' in "
        f"{tmp_path / 'jobrunner'}: pip uninstall jobrunner, then pip install --force-reinstall jobrunner-queue\n"
    )
