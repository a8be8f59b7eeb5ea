"""Errors are one line on stderr, with exit code 2 for misuse and 1 for a negative answer; never a traceback.

Here as a shell sees it; all that can be wrong with words is in tests/unit/cli/test_misuse.py.
"""

from typing import Any

import pytest

JOBS = """
from jobrunner import job

@job(queue="maths")
def add(x: int, y: int = 0) -> int:
    return x + y
"""


@pytest.fixture
def project(shell: Any) -> Any:
    shell.write("jobs_here.py", JOBS)
    shell.write("pyproject.toml", '[tool.jobrunner]\nmodules = ["jobs_here"]\n')
    return shell


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("enqueue", "add", "x=one"), "x of job 'add' is 'one'; it must be int"),
        (("work", "jobs_here", "--concurrency", "0"), "concurrency=0"),
        (("work", "jobs_here", "-q", "maths:2,mail"), "name each queue by itself: -q maths:2 -q mail,"),
        (("work", "jobs_here", "-q", "mail,"), "name each queue by itself: -q mail,"),
        (("work", "jobs_here", "-q", "maths:heavy"), "queue 'maths:heavy': 'heavy' is not a weight; write maths:3"),
    ],
)
def test_misuse_is_told_in_one_line(project: Any, raw: Any, words: tuple[str, ...], told: str) -> None:
    result = project.run(*words)

    assert (result.code, result.out) == (2, "")
    assert result.line.startswith("Error: ")
    assert told in result.line
    assert raw.dbsize() == 0


def test_with_debug_the_traceback_comes_first(project: Any) -> None:
    result = project.run("enqueue", "add", "x=one", "--debug")

    assert result.code == 2
    assert result.err.startswith("Traceback")
    assert result.err.splitlines()[-1].startswith("Error: parameter x")


@pytest.mark.parametrize("words", [("status",), ("enqueue", "add", "x=1"), ("work", "jobs_here")])
def test_a_server_that_is_away_is_a_no(project: Any, words: tuple[str, ...]) -> None:
    result = project.run(*words, "--url", f"unix://{project.folder}/nothing.sock")

    assert (result.code, result.out) == (1, "")
    assert result.line.startswith("Error: no server at unix://")


def test_a_reader_that_goes_away_is_met_in_silence(project: Any) -> None:
    listing = project.start("status", "--json")
    assert listing.stdout is not None
    listing.stdout.close()

    listing.wait(30)

    assert listing.stderr is not None
    assert listing.stderr.read() == ""
