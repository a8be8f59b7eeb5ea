"""Where time goes: parts of a drain, steps of a start."""

from benchmarks.anatomy import in_parts, steps


def test_the_time_of_scripts_is_what_they_call_and_lua() -> None:
    stats = {
        "cmdstat_evalsha": {"usec": 1_000, "calls": 3},
        "cmdstat_hmget": {"usec": 200, "calls": 100},
        "cmdstat_pexpire": {"usec": 300, "calls": 100},
        "cmdstat_bzpopmin": {"usec": 50, "calls": 1},
        "cmdstat_config|resetstat": {"usec": 50, "calls": 1},
    }

    assert in_parts(stats, 100) == {"scripts in all": 10.0, "Lua alone": 5.0, "HMGET": 2.0, "PEXPIRE": 3.0}


def test_each_step_of_a_start_is_counted_from_the_one_before() -> None:
    """The marks of what was before the first task, and of the task behind, belong to none."""
    marks = {
        "called": [1_000, 11_000],
        "sent": [500, 2_000, 12_000],
        "heard": [4_000, 14_000],
        "begun": [9_000, 19_000],
    }

    assert list(steps(marks).values()) == [1.0, 2.0, 5.0]


def test_a_task_that_was_never_heard_of_is_in_no_later_step() -> None:
    assert list(steps({"called": [1_000], "sent": [2_000], "heard": [], "begun": []}).values()) == [1.0]
