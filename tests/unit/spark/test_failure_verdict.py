"""What a failed batch costs: every case of the verdict on it."""

from typing import Any

import pytest

from jobrunner.spark.failures import Cause
from jobrunner.spark.station.failure_history import Evidence, FailureHistory
from jobrunner.spark.station.failure_verdict import FailedBatch, Fate, Pause, Verdict, verdict_on

COUNTED, DIVIDED, RELEASED = Fate.COUNTED, Fate.DIVIDED, Fate.RELEASED
ROWS, ITEMS, CODE = Cause.ROWS, Cause.ITEMS, Cause.CODE
LAST_OF_ONE = {"size": 1, "is_final": True}
OTHERS_WORKED = {"others_worked": True}
NEVER_WORKED = {"has_worked": False}
INDIVISIBLE = {"is_divisible": False}
FAILED_ALONE = {"failed_alone": True}


def many(in_a_row: int, *, is_one_error: bool = True) -> dict[str, Any]:
    return {"in_a_row": in_a_row, "is_one_error": is_one_error}


CASES: list[tuple[str, Cause, dict[str, Any], Fate, Pause]] = [
    ("a row's, others worked", ROWS, OTHERS_WORKED | many(9), COUNTED, Pause.NONE),
    ("of planning, others worked", CODE, OTHERS_WORKED | many(9), COUNTED, Pause.NONE),
    ("of planning, others worked, elsewhere", CODE, OTHERS_WORKED | NEVER_WORKED, COUNTED, Pause.NONE),
    # An error of a row, or of items as far as it can be determined.
    ("a row's, the first", ROWS, many(1), COUNTED, Pause.NONE),
    ("a row's, the first of all", ROWS, NEVER_WORKED, COUNTED, Pause.NONE),
    ("of items, the first", ITEMS, many(1), COUNTED, Pause.NONE),
    ("a row's, the second", ROWS, many(2), COUNTED, Pause.STATION),
    ("of items, the fifth", ITEMS, many(5), COUNTED, Pause.STATION),
    ("a row's, many different", ROWS, many(40, is_one_error=False), COUNTED, Pause.STATION),
    ("a row's, too many alike", ROWS, many(6), DIVIDED, Pause.STATION),
    ("of items, too many alike", ITEMS, many(6) | NEVER_WORKED, DIVIDED, Pause.STATION),
    ("a row's, too many alike, one item", ROWS, many(6) | {"size": 1}, RELEASED, Pause.STATION),
    ("a row's, the last that is searched", ROWS, many(32), DIVIDED, Pause.STATION),
    ("a row's, searched in vain", ROWS, many(33), RELEASED, Pause.STATION),
    ("a row's, the last of one item, others come", ROWS, LAST_OF_ONE, RELEASED, Pause.NONE),
    ("of items, the last of one, others come", ITEMS, LAST_OF_ONE, RELEASED, Pause.NONE),
    ("of items, the last of one, others failed alike", ITEMS, LAST_OF_ONE | many(2), RELEASED, Pause.STATION),
    ("of items, the last of one, others failed otherwise", ITEMS, LAST_OF_ONE | many(2, is_one_error=False), COUNTED,
     Pause.STATION),
    ("of items, the last of one that failed alone", ITEMS, LAST_OF_ONE | FAILED_ALONE, COUNTED, Pause.NONE),
    ("of items, the last of one, too many alike", ITEMS, LAST_OF_ONE | FAILED_ALONE | many(6), RELEASED, Pause.STATION),
    # An error before any row was read.
    ("of planning, never worked", CODE, NEVER_WORKED, RELEASED, Pause.STATION_AT_ONCE),
    ("of planning, never worked, many", CODE, NEVER_WORKED | many(9), RELEASED, Pause.STATION_AT_ONCE),
    ("of planning, the first", CODE, many(1), DIVIDED, Pause.BATCH),
    ("of planning, the first, one item", CODE, {"size": 1}, RELEASED, Pause.BATCH),
    ("of planning, the second", CODE, many(2), DIVIDED, Pause.STATION),
    ("of planning, different ones", CODE, many(9, is_one_error=False), DIVIDED, Pause.STATION),
    ("of planning, searched in vain", CODE, many(33), RELEASED, Pause.STATION),
    ("of a table, the first", CODE, INDIVISIBLE, RELEASED, Pause.BATCH),
    ("of a table, the second", CODE, INDIVISIBLE | many(2), RELEASED, Pause.STATION),
]  # fmt: skip


@pytest.mark.parametrize(("cause", "known", "fate", "pause"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_a_failure_costs_by_its_cause_and_by_what_other_batches_did(
    cause: Cause, known: dict[str, Any], fate: Fate, pause: Pause
) -> None:
    batch: dict[str, Any] = {"cause": cause, "size": 100, "is_final": False, "is_divisible": True}
    others: dict[str, Any] = {
        "has_worked": True, "others_worked": False, "in_a_row": 1, "is_one_error": True, "failed_alone": False,
    }  # fmt: skip
    failed = FailedBatch(**batch | {name: value for name, value in known.items() if name in batch})
    evidence = Evidence(**others | {name: value for name, value in known.items() if name in others})
    assert verdict_on(failed, evidence) == Verdict(fate, pause)


class TestHistory:
    def test_a_success_after_the_first_failure_of_a_batch_proves_that_others_work(self) -> None:
        history = FailureHistory()
        assert history.failed("a", "a", "KeyError: x") == Evidence(False, False, 1, True, False)
        history.succeeded()
        assert history.failed("b", "b", "KeyError: x") == Evidence(True, False, 1, True, False)
        assert history.failed("a", "a", "KeyError: x").others_worked
        assert history.failed("a.1.2", "a", "KeyError: y").others_worked, "it is a part of that batch"
        assert not history.failed("a", "a", "TypeError: x").others_worked, "of another class"

    def test_failures_are_counted_once_a_batch_and_compared_by_their_whole_line(self) -> None:
        history = FailureHistory()
        found = [history.failed(batch, batch, "K: 1").in_a_row for batch in ("a", "a", "b")]
        assert found == [1, 1, 2]
        assert not history.failed("c", "c", "K: 2").is_one_error

    def test_an_error_that_may_pass_is_proven_by_no_success(self) -> None:
        history = FailureHistory()
        history.failed("a", "a", "OSError: x", may_pass=True)
        history.succeeded()
        assert not history.failed("a", "a", "OSError: x", may_pass=True, worked_elsewhere=True).others_worked

    @pytest.mark.parametrize(("one", "other"), [
        ("SlowDown: (Request ID: 4442587FB7D0A2F9; Extended: OO3i6yYS/PuLPBmfZ+Wd0=)",
         "SlowDown: (Request ID: B7D0A2F94442587F; Extended: Qm0aaYS+PuL/PBm9Z+Wd0=)"),
        ("Timeout: at 2026-11-29T09:14:05.123Z from 10.0.0.1:40112",
         "Timeout: at 2026-11-29T10:02:51.4Z from 10.0.0.1:9"),
    ])  # fmt: skip
    def test_an_outage_is_one_error_though_times_and_ids_of_requests_differ(self, one: str, other: str) -> None:
        history = FailureHistory()
        history.failed("a", "a", one, may_pass=True)
        assert history.failed("b", "b", other, may_pass=True).is_one_error
        assert not history.failed("c", "c", "AccessDenied: " + other.partition(": ")[2], may_pass=True).is_one_error

    @pytest.mark.parametrize(("one", "other"), [
        ("2 rows for item 01a2b3-x (5 such items): drop one", "3 rows for item order/ÿ (1 such items): drop one"),
        ("no row for 5 of 9 items, such as a, b-7, c: return one", "no row for 1 of 1 items, such as d: return one"),
        ("99 in column '_priority' of item a: give 0", "7 in column '_priority' of item b: give 0"),
        ('a row without an _id (payload {"n":{}}): keep it', 'a row without an _id (payload "(a)"): keep it'),
    ])  # fmt: skip
    def test_an_error_of_what_a_function_returned_is_one_whichever_item_it_names(self, one: str, other: str) -> None:
        history = FailureHistory()
        history.failed("a", "a", f"PipelineError: station 'x' returned {one}")
        assert history.failed("b", "b", f"PipelineError: station 'x' returned {other}").is_one_error
        assert not history.failed("c", "c", "PipelineError: station 'x' returned 'y' for item a").is_one_error

    def test_errors_of_rows_differ_by_their_numbers(self) -> None:
        history = FailureHistory()
        history.failed("a", "a", "ValueError: 17 is no airport")
        assert not history.failed("b", "b", "ValueError: 18 is no airport").is_one_error

    def test_many_errors_of_rows_from_one_place_in_the_code_are_one_error(self) -> None:
        history = FailureHistory()
        fail = lambda n, place: history.failed(f"{n}", f"{n}", f"ValueError: {n}", place).is_one_error  # noqa: E731
        assert [fail(n, "orders.py:12 price") for n in range(66)] == [True] + [False] * 63 + [True] * 2
        assert not fail(66, "orders.py:15 tax")

    def test_many_errors_of_rows_are_compared_by_their_text_where_no_place_is_known(self) -> None:
        history = FailureHistory()
        assert not [history.failed(f"{n}", f"{n}", f"ValueError: {n}") for n in range(66)][-1].is_one_error

    def test_a_batch_failed_alone_when_another_one_succeeded_or_none_ran_since_it_last_failed(self) -> None:
        history = FailureHistory()
        failed_alone = lambda batch: history.failed(batch, batch, "K: 1", may_pass=True).failed_alone  # noqa: E731
        assert [failed_alone(batch) for batch in ("a", "b", "a", "b")] == [False] * 4
        assert failed_alone("b"), "none ran in between"
        history.succeeded()
        assert failed_alone("a")
        assert [failed_alone(batch) for batch in ("c", "a")] == [False] * 2, "that success is before its last failure"

    def test_a_part_that_worked_elsewhere_proves_it_until_many_have_failed_in_a_row(self) -> None:
        history = FailureHistory()
        found = [history.failed(f"a.{n}", "a", "K: 1", worked_elsewhere=True).others_worked for n in range(65)]
        assert found == [True] * 64 + [False]

    def test_an_earlier_success_proves_nothing_after_many_failures(self) -> None:
        history = FailureHistory()
        history.failed("a", "a", "K: 1")
        history.succeeded()
        assert [history.failed("a", "a", "K: 1").others_worked for _ in range(65)] == [True] * 64 + [False]
