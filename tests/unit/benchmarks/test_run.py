"""A run with turns that fail, and with peers that cannot be installed."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.contender import Contender
from benchmarks.drain import NotDelivered
from benchmarks.open_loop import TooSlow
from benchmarks.peers.roster import ROSTER
from benchmarks.peers.venvs import NotInstalled, version
from benchmarks.run import Run, _in_turn
from benchmarks.turns import TURNS, Turn


class Server:
    """In the place of the private server."""

    renewed = 0

    def renew(self) -> None:
        self.renewed += 1


def _run(*who: str) -> Run:
    return Run(what=("drain",), who=who, tasks=1_000, rounds=1, venvs=Path("nowhere"))


def _named(name: str) -> Contender:
    return Contender(name=name, produce=[], work=lambda _task, _count: [], left=lambda _server: 0)


def test_a_turn_without_complete_delivery_voids_all_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(*_: object) -> Mapping[str, float | None]:
        raise NotDelivered("1 lost")

    monkeypatch.setitem(TURNS, "drain", Turn(take=take, measures=("drain", "commands")))
    run, server = _run(), Server()
    run.board.add("drain", "rq", 600.0)
    run._take(server, "drain", _named("rq"), 0)  # type: ignore[arg-type]

    assert server.renewed == 1, "no turn has a server that another one used"
    assert run.board.voids == ["drain, tasks/s, rq: 1 lost"]
    assert "VOID" in run.board.table()


def test_a_contender_that_cannot_send_at_the_rate_is_named_and_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def take(*_: object) -> Mapping[str, float | None]:
        raise TooSlow("its producers sent 700 of 1,000 tasks a second")

    monkeypatch.setitem(TURNS, "open1", Turn(take=take, measures=("open1",)))
    run, server = _run(), Server()
    run._take(server, "open1", _named("rq"), 0)  # type: ignore[arg-type]

    assert run.board.absences == ["open1, rq: its producers sent 700 of 1,000 tasks a second"]
    assert run.board.voids == []
    assert not run._takes_part(_named("rq"), "open1")
    assert run._takes_part(_named("rq"), "open5")


def test_one_slow_round_leaves_the_figures_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(*_: object) -> Mapping[str, float | None]:
        raise TooSlow("its producers sent 900 of 1,000 tasks a second")

    monkeypatch.setitem(TURNS, "open1", Turn(take=take, measures=("open1",)))
    run, server = _run(), Server()
    run.board.add("open1", "rq", 2.0)
    run._take(server, "open1", _named("rq"), 1)  # type: ignore[arg-type]

    assert run.board.absences == ["open1, rq, in round 2: its producers sent 900 of 1,000 tasks a second"]
    assert run._takes_part(_named("rq"), "open1")


def test_a_figure_that_is_unknown_here_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = Turn(take=lambda *_: {"idle": 1.0, "idle_cpu": None}, measures=("idle", "idle_cpu"))
    monkeypatch.setitem(TURNS, "idle", turn)
    run, server = _run(), Server()
    run._take(server, "idle", _named("rq"), 0)  # type: ignore[arg-type]

    assert set(run.board.as_json()) == {"idle"}


def test_every_contender_comes_first_once() -> None:
    contenders = [_named(name) for name in "abc"]

    orders = ["".join(one.name for one in _in_turn(contenders, number)) for number in range(4)]

    assert orders == ["abc", "bca", "cab", "abc"]
    assert _in_turn([], 3) == []


def test_a_peer_that_cannot_be_installed_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Path) -> Any:
        raise NotInstalled("no such package")

    monkeypatch.setitem(ROSTER, "rq", fails)

    assert _run("rq").board.absences == ["everything, rq: no such package"]


def test_a_package_that_is_not_there_is_not_installed() -> None:
    with pytest.raises(NotInstalled, match="PackageNotFoundError"):
        version(Path(sys.executable).parent, "no-such-package")
