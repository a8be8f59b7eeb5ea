"""A suite of its own for each test: its files are written, and pytest runs them with the plugin and nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
JOBS = """
from datetime import timedelta
from jobrunner import Backoff, Cancel, Fail, Job, PeriodicJob, Retry, Snooze, job

ran = []

@job(queue="mail", max_attempts=3, backoff=Backoff(base=60))
class Greet(Job):
    address: str
    wrong: int = 0

    def run(self):
        ran.append((self.address, self.task.attempt))
        if self.task.attempt <= self.wrong:
            raise ConnectionError(f"no route to {self.address}")
        return f"sent to {self.address}"

@job(queue="sums")
def add(x: int, y: int = 0) -> int:
    return x + y

@job(queue="sums")
async def slowly(x: int) -> int:
    return x + 1

@job(every=timedelta(minutes=5), queue="ticks")
class Tick(PeriodicJob):
    def run(self):
        ran.append(self.metadata.increment("ticks"))
"""
Suite = Callable[..., pytest.RunResult]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """suite(source, "-x", passed=3): runs the tests in `source` with a module `jobs_here`, and expects outcomes."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("JOBRUNNER_URL", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # Hypothesis, Django and others take half of the time
    pytester.makepyfile(jobs_here=JOBS)
    # By its module and not by its entry point, so that a repository that was not installed is tested too.
    plugin = ["-p", "jobrunner.testing.plugin", "-p", "no:cacheprovider"]

    def run(source: str, *options: str, **outcomes: int) -> pytest.RunResult:
        pytester.makepyfile(test_suite="from datetime import *\nimport pytest\nfrom jobs_here import *\n" + source)
        result = pytester.runpytest_subprocess(*plugin, *options, timeout=90)
        result.assert_outcomes(**outcomes)
        return result

    return run
