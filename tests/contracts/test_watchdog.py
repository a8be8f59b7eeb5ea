"""A test that no timeout ends costs a run its name, not its hours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HANGS = """
import time, pytest

@pytest.mark.timeout(0.5)
def test_that_goes_on_after_its_timeout():
    while True:
        try:
            time.sleep(0.01)
        except BaseException:
            pass

def test_beside_it():
    pass
"""

DIES = """
import os, time, pytest

@pytest.mark.parametrize("number", range(30))
def test_one_of_many(number):
    time.sleep(0.05)  # the others are to have ended theirs when it dies
    if number == 17:
        os._exit(1)
"""
BESIDE = """
import pytest

@pytest.mark.parametrize("number", range(30))
def test_beside_it(number):
    pass
"""
ROOT = Path(__file__).parents[2]


@pytest.mark.processes
def test_a_process_that_dies_in_a_test_ends_the_run(tmp_path: Path) -> None:
    """It hung when only few tests were left, which xdist had given to processes that waited for nothing."""
    (tmp_path / "test_dying.py").write_text(DIES)
    (tmp_path / "test_well.py").write_text(BESIDE)

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path),
         "-p", "no:cacheprovider", "-n", "3", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip

    assert ran.returncode == 1
    assert "crashed while running 'test_dying.py::test_one_of_many[17]'" in ran.stdout


@pytest.mark.processes
def test_a_test_that_survives_its_timeout_ends_the_process_with_its_stack(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGS)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 30\n")
    settings = ["-c", str(tmp_path / "pytest.ini"), "--rootdir", str(tmp_path), "-o", "watchdog_grace=0.5"]
    plugins = ["-p", "tests.support.watchdog", "-p", "pytest_timeout", "-p", "xdist", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # other plugins take longer than the test

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *settings, *plugins, "-n", "1", "-q", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, env=environment,
    )  # fmt: skip

    assert ran.returncode == 1
    assert "test_that_goes_on_after_its_timeout" in ran.stdout
    assert "crashed while running" in ran.stdout
    assert "1 failed, 1 passed" in ran.stdout
    assert "test_hanging.py" in ran.stderr  # the stacks of all threads
