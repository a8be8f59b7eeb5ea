"""The supervisor with commands that end at once; with real workers it is tested in tests/acceptance."""

from pathlib import Path

import pytest

from jobrunner.cli import supervisor
from jobrunner.cli.supervisor import Supervisor
from jobrunner.errors import ServerUnavailable


@pytest.fixture(autouse=True)
def _no_signals_no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "on_stop_signals", lambda _: None)
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE_S", 0.001)


def a_script(folder: Path, ending: str) -> list[str]:
    """Notes each start as a line of the file `starts`, then does what `ending` says."""
    return ["sh", "-c", f"echo start >> {folder}/starts; {ending}", "sh"]


def starts(folder: Path) -> int:
    return (folder / "starts").read_text().count("start")


def test_when_all_end_well_so_does_it(tmp_path: Path) -> None:
    assert Supervisor([a_script(tmp_path, "exit 0")] * 3).run() == 0

    assert starts(tmp_path) == 3


def test_one_that_crashes_is_started_again(tmp_path: Path) -> None:
    once = f"test -e {tmp_path}/crashed || {{ touch {tmp_path}/crashed; kill -9 $$; }}"

    assert Supervisor([a_script(tmp_path, once)] * 1).run() == 0

    assert starts(tmp_path) == 2


def test_one_that_crashes_five_times_in_a_row_is_given_up(tmp_path: Path) -> None:
    assert Supervisor([a_script(tmp_path, "exit 7")] * 1).run() == 1

    assert starts(tmp_path) == 5


def test_misuse_is_not_tried_again(tmp_path: Path) -> None:
    assert Supervisor([a_script(tmp_path, "exit 2")] * 1).run() == 2

    assert starts(tmp_path) == 1


def test_when_one_is_given_up_the_others_are_asked_to_stop(tmp_path: Path) -> None:
    script = f"""
        cd {tmp_path}
        mkdir first 2>/dev/null && {{ until test -e ready; do sleep 0.01; done; exit 2; }}
        trap 'touch asked; exit 0' TERM
        touch ready
        while :; do sleep 0.01; done
    """

    assert Supervisor([a_script(tmp_path, script)] * 2).run() == 2

    assert (tmp_path / "asked").exists()


def test_each_slot_may_have_a_command_of_its_own(tmp_path: Path) -> None:
    first, second = (a_script(tmp_path, f"touch {tmp_path}/{name}") for name in ("one", "two"))

    assert Supervisor([first, second]).run() == 0

    assert (tmp_path / "one").exists()
    assert (tmp_path / "two").exists()


def test_it_ends_when_what_it_waits_for_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_ASK_EVERY_S", 0.001)
    endless = f"trap 'exit 0' TERM; touch {tmp_path}/ready; while :; do sleep 0.01; done"

    def is_over() -> bool:
        if not (tmp_path / "ready").exists():
            raise ServerUnavailable("away for a moment")
        return True

    assert Supervisor([a_script(tmp_path, endless)], until=is_over).run() == 0


def test_one_that_ended_well_is_missed_by_nobody(tmp_path: Path) -> None:
    waits = f"until test -e {tmp_path}/looked; do sleep 0.01; done"
    supervised = Supervisor([a_script(tmp_path, "exit 0"), a_script(tmp_path, waits)])
    said: list[tuple[bool, dict[str, object]]] = []

    def look() -> bool:
        if not supervised._slots[0].over:
            return False
        said.append(supervised.health())
        (tmp_path / "looked").touch()
        return True

    supervised._until = look
    assert supervised.run() == 0

    assert said == [(True, {"processes": 2, "running": 1})]
    assert starts(tmp_path) == 2
