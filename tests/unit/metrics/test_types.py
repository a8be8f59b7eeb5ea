"""How many types a scrape shows, whatever names tasks have."""

from jobrunner.inspector.shards import EndTotals
from jobrunner.metrics.reading import _ended, _measured


def ended(typed: dict[str, int], known: set[str], total: int) -> dict[tuple[str, str, str], int]:
    return _ended("q", EndTotals(typed, {"succeeded": total}), known, begins=True)


def test_types_that_workers_know_have_series_before_their_first_task_ended() -> None:
    found = ended({}, {"mail"}, 0)
    assert found[("q", "mail", "dead")] == found[("q", "mail", "failed")] == 0


def test_types_without_end_are_shown_as_one() -> None:
    typed = {f"type-{n:04} succeeded": 1 for n in range(3000)}
    found = ended(typed, {"type-2999"}, 3000)
    assert len({type_ for _, type_, _ in found}) == 101
    assert found[("q", "type-2999", "succeeded")] == 1
    assert found[("q", "unknown", "succeeded")] == 2900


def test_times_and_retries_of_types_without_end_are_shown_as_one() -> None:
    totals = {f"q type-{n:04} {what}": "1" for n in range(3000) for what in ("failed", "run:3", "run_us")}
    sums, _ = _measured({**totals, "other mail run:1": "2", "- - round_trip:4": "1"}, {"q": {"type-2999"}})

    assert len([type_ for queue, type_ in sums if queue == "q"]) == 101
    assert sums["q", "type-2999"].counts == {"failed": 1}
    assert sums["q", "unknown"].counts == {"failed": 2900}
    assert sums["q", "unknown"].times("run").count == 2900
    assert sums["other", "mail"].times("run").count == 2
    assert ("-", "-") not in sums
