"""How many types a scrape shows, whatever names tasks have."""

import pytest

from jobrunner.inspector.shards import EndTotals
from jobrunner.metrics.reading import _ended, _measured


def ended(typed: dict[str, int], known: set[str], total: int) -> dict[tuple[str, str, str], int]:
    return _ended("q", EndTotals(typed, {"succeeded": total}), known, 100, begins=True)


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
    sums, *_ = _measured({**totals, "other mail run:1": "2", "- - round_trip:4": "1"}, {"q": {"type-2999"}})

    assert len([type_ for queue, type_ in sums if queue == "q"]) == 101
    assert sums["q", "type-2999"].counts == {"failed": 1}
    assert sums["q", "unknown"].counts == {"failed": 2900}
    assert sums["q", "unknown"].times("run").count == 2900
    assert sums["other", "mail"].times("run").count == 2
    assert ("-", "-") not in sums


@pytest.mark.parametrize(("queues", "types", "shown"), [(50, 150, 100), (500, 12, 10), (1500, 1, 1), (2000, 30, 2)])
def test_many_queues_with_many_types_each_are_bounded_together(queues: int, types: int, shown: int) -> None:
    totals = {f"q{queue} t{type_} run:1": "1" for queue in range(queues) for type_ in range(types)}

    sums, _, most = _measured(totals, {"q1": {"t7"}})

    own = [type_ for queue, type_ in sums if queue == "q1" and type_ != "unknown"]
    assert len(own) == min(most, types) == shown
    assert types == 1 or "t7" in own
    assert sum(one.times("run").count for one in sums.values()) == queues * types


def test_a_queue_with_many_types_keeps_them_beside_many_queues_with_one() -> None:
    totals = {f"q{queue} t run:1": "1" for queue in range(1500)} | {f"main t{n} run:1": "1" for n in range(40)}

    assert _measured(totals, {})[2] == 100
