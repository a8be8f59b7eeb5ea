"""The end of the demo: exit code, output and remaining files. The demo itself runs in tests/acceptance."""

import io
import json
from pathlib import Path

import pytest

from jobs_example.demos.checks import Check
from jobs_example.demos.jobs import run
from jobs_example.demos.jobs.run import run_demo

AGREES = Check(what="flights", expected="336776", found="336776", agrees=True)
DIFFERS = Check(what="tasks left in the queues", expected="0", found="2", agrees=False)


@pytest.fixture
def ends_with(monkeypatch: pytest.MonkeyPatch) -> "Ending":
    return Ending(monkeypatch)


class Ending:
    """ends_with(checks): runs the end of a demo that found these."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.places: list[Path] = []

    def __call__(self, *checks: Check, folder: Path | None = None, as_json: bool = False) -> tuple[int, str, str]:
        def found(place: Path, *_: object) -> list[Check]:
            self.places.append(place)
            return list(checks)

        self._monkeypatch.setattr(run, "_run", found)
        out, err = io.StringIO(), io.StringIO()
        code = run_demo(folder=folder, quick=True, as_json=as_json, out=out, talk=err)
        return code, out.getvalue(), err.getvalue()


def test_when_all_agrees_it_returns_0_and_leaves_nothing_behind(ends_with: Ending) -> None:
    code, out, err = ends_with(AGREES)

    assert code == 0
    assert "nothing was lost, and every figure agrees" in out
    assert err == ""
    assert not ends_with.places[0].exists()


def test_when_a_check_differs_it_returns_1_and_keeps_the_folder(ends_with: Ending) -> None:
    code, out, err = ends_with(AGREES, DIFFERS)

    assert code == 1
    assert "1 check differs" in out
    assert str(ends_with.places[0]) in err
    ends_with.places[0].rmdir()


def test_a_folder_of_the_users_own_is_kept(ends_with: Ending, tmp_path: Path) -> None:
    code, _, err = ends_with(AGREES, folder=tmp_path)

    assert (code, ends_with.places) == (0, [tmp_path])
    assert tmp_path.is_dir()
    assert str(tmp_path) in err


def test_a_folder_that_holds_something_is_left_alone(ends_with: Ending, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")

    code, out, err = ends_with(AGREES, folder=tmp_path)

    assert (code, out, ends_with.places) == (2, "", [])
    assert f"the folder {tmp_path} is not empty" in err


def test_json_holds_the_verdict_and_every_check(ends_with: Ending) -> None:
    code, out, _ = ends_with(AGREES, DIFFERS, as_json=True)
    ends_with.places[0].rmdir()

    found = json.loads(out)
    assert code == 1
    assert found["agree"] is False
    assert [check["what"] for check in found["checks"]] == ["flights", "tasks left in the queues"]
    assert found["checks"][1] == {
        "what": "tasks left in the queues",
        "expected": "0",
        "found": "2",
        "agrees": False,
    }
