"""The table of the benchmarks: medians, ratios, and the row of each target."""

import re

from benchmarks.board import Board


def _row(board: Board, who: str) -> str:
    rows = (line for line in board.table().splitlines()[1:])
    return next(row for row in rows if who in re.split(r" {2,}", row))


def test_a_row_shows_the_median_every_round_and_what_jobrunner_is_beside_it() -> None:
    board = Board()
    for figure in (40_000, 50_000, 45_000):
        board.add("drain", "jobrunner", figure)
    for figure in (900, 1_000, 1_100):
        board.add("drain", "taskiq", figure)

    assert _row(board, "taskiq").endswith("≥ 8 ×  met")
    assert "1,000" in _row(board, "taskiq")
    assert "900 1,000 1,100" in _row(board, "taskiq")
    assert " 45 " in _row(board, "taskiq")
    assert "45,000" in _row(board, "jobrunner")


def test_the_best_peer_carries_the_target_among_peers_and_the_yardstick_its_own() -> None:
    board = Board()
    figures = {"jobrunner": 50_000.0, "taskiq": 500.0, "dramatiq": 8_000.0, "prototype loop": 80_000.0}
    for who, figure in figures.items():
        board.add("drain", who, figure)

    assert "≥" not in _row(board, "taskiq")
    assert _row(board, "dramatiq").endswith("≥ 8 ×  MISSED")
    assert _row(board, "prototype loop").endswith("≥ 0.6 ×  met")


def test_of_delays_the_shortest_is_the_best() -> None:
    board = Board()
    for who, figure in {"jobrunner": 0.6, "taskiq": 250.0, "dramatiq": 1.0, "bare blocking pop": 0.3}.items():
        board.add("start", who, figure)

    assert _row(board, "dramatiq").endswith("≤ 1 ×  met")
    assert _row(board, "bare blocking pop").endswith("≤ 1.5 ×  MISSED")
    assert "≤" not in _row(board, "taskiq")


def test_a_target_without_a_rival_is_on_jobrunners_row_and_one_against_rivals_needs_them() -> None:
    board = Board()
    board.add("start", "jobrunner", 0.4)
    board.add("idle", "jobrunner", 0.5)

    idle, start = board.table().splitlines()[1:]

    assert idle.endswith("≤ 1  met")
    assert "≤" not in start


def test_a_void_figure_strikes_the_contender_and_names_the_reason_once() -> None:
    board = Board()
    board.add("drain", "jobrunner", 50_000.0)
    board.add("drain", "taskiq", 2_000.0)
    for measure in ("drain", "commands", "cpu_us"):
        board.void(measure, "taskiq", "3 lost, 0 doubled, 0 never enqueued, of 1000")

    assert "VOID" in _row(board, "taskiq")
    assert board.voids == ["drain, tasks/s, taskiq: 3 lost, 0 doubled, 0 never enqueued, of 1000"]
    assert board.as_json()["drain"]["figures"]["taskiq"]["median"] is None


def test_a_lone_contender_has_neither_ratio_nor_verdict() -> None:
    board = Board()
    board.add("drain", "taskiq", 1_500.0)

    assert board.as_json()["drain"]["figures"]["taskiq"]["ratio"] is None
    assert "MISSED" not in board.table()


def test_who_acknowledges_and_who_does_not_each_have_a_target() -> None:
    board = Board()
    for who, figure in {"jobrunner": 50_000.0, "dramatiq": 5_000.0, "huey": 25_000.0}.items():
        board.add("drain", who, figure)

    assert _row(board, "dramatiq").endswith("≥ 8 ×  met")
    assert _row(board, "huey").endswith("≥ 8 ×  MISSED")


def test_a_target_may_be_measured_by_another_measure_of_the_same_contender() -> None:
    board = Board()
    board.add("drain", "jobrunner", 50_000.0)
    board.add("drain2", "jobrunner", 60_000.0)

    found = {one.measure: one for one in board.judgements() if one.target.of}

    assert str(found["drain2"].target) == "≥ 1.4 × drain, tasks/s"
    assert (found["drain2"].reached, found["drain2"].verdict) == (1.2, "MISSED")
    assert (found["start_p99"].reached, found["start_p99"].verdict) == (None, "")


def test_threads_have_a_target_of_their_own() -> None:
    board = Board()
    board.add("waits", "jobrunner", 9_000.0)
    board.add("waits", "jobrunner, threads", 5_000.0)

    assert _row(board, "jobrunner").endswith("≥ 8,500  met")
    assert _row(board, "jobrunner, threads").endswith("≥ 6,000  MISSED")


def test_a_board_that_was_written_is_read_again() -> None:
    board = Board()
    board.add("drain", "jobrunner", 50_000.0)
    board.void("drain", "rq", "1 lost")

    assert Board.from_json(board.as_json()).as_json() == board.as_json()
