"""From outcomes to calls: one script takes a bounded number of reports and bytes, and no report is left out."""

from jobrunner.broker.keys import Keys
from jobrunner.outcome import Failed, Moved, Outcome, Succeeded
from jobrunner.worker.report.report_calls import AT_ONCE, Reporter, report_calls
from tests.unit.worker.attempts import attempt_at


def split(outcomes: list[Outcome]) -> list[int]:
    """How many reports each call makes of these outcomes of tasks of one queue."""
    reports = [(attempt_at("t"), outcome) for outcome in outcomes]
    made = report_calls(Keys("p"), reports)
    assert sorted(id(report) for one in made for report in one.reports) == sorted(map(id, reports))
    return [len(one.reports) for one in made]


def test_large_results_go_a_mib_at_a_time() -> None:
    assert split([Succeeded(b"%d" % n * 400_000) for n in range(5)]) == [2, 2, 1]
    assert split([Succeeded(b"1" * 3_000_000), Succeeded(b"2"), Succeeded(b"3")]) == [1, 2]


def test_large_payloads_of_moves_and_long_errors_do_so_too() -> None:
    assert split([Moved(queue="p/next", payload=b"x" * 400_000) for _ in range(5)]) == [2, 2, 1]
    assert split([Moved(queue="p/next", headers=b"x" * 600_000) for _ in range(2)]) == [1, 1]
    assert split([Failed("x" * 600_000), Failed("x")]) == [2]
    assert split([Failed("x" * 600_000), Failed("x" * 600_000)]) == [1, 1]


def test_many_small_ones_go_together() -> None:
    assert split([Succeeded(b"%d" % n) for n in range(AT_ONCE)]) == [AT_ONCE]
    assert split([Succeeded() for _ in range(AT_ONCE + 1)]) == [AT_ONCE, 1]


def test_a_group_of_errors_is_noted_once_a_second():
    by = Reporter("w", "v1")

    assert [by.notes("a"), by.notes("a"), by.notes("b")] == [True, False, True]


def test_a_failure_of_a_job_that_no_worker_knew_says_that_it_did_not_begin():
    (made,) = report_calls(Keys("p"), [(attempt_at("t"), Failed("x", is_unbegun=True)), (attempt_at("t"), Failed("y"))])

    assert [word for word in made.call.words if word in ("unbegun", "retry")] == ["unbegun", "retry"]
