"""The clock of tests.acceptance.first_hour: what it counts, and when a limit is missed."""

from pathlib import Path

import pytest

from tests.acceptance.first_hour import COPIES_S, Hour, table
from tests.acceptance.newcomer import Block, with_commands


@pytest.fixture
def hour(tmp_path: Path) -> Hour:
    """A reader without a virtual environment."""
    made = Hour(tmp_path)
    made.reader.environment.update(with_commands(tmp_path))
    return made


def test_reading_typing_and_copying_take_time_at_the_stated_rates(hour: Hour) -> None:
    hour.read("word " * 200)
    assert hour.reader_s == pytest.approx(60)
    hour.follow(Block("sh", "echo " + "a" * 195 + "  # not typed\n", 0))
    assert hour.reader_s == pytest.approx(60 + 60)
    hour.follow(Block("python", "# a.py\nprint(1)\n", 0))
    assert hour.reader_s == pytest.approx(120 + COPIES_S)
    assert 0 < hour.machine_s < 60


def test_a_limit_that_is_missed_is_in_the_table(hour: Hour) -> None:
    hour.machine_s, hour.reader_s = 10.0, 100.0
    hour.reach("install", 20, only_machine=True)
    hour.reach("first job", 109)

    kept, missed = table(hour.milestones).splitlines()[1:3]
    assert kept.endswith("20s  ok")
    assert missed.endswith("109s  MISSED")


def test_a_command_that_fails_ends_the_hour(hour: Hour) -> None:
    with pytest.raises(AssertionError, match="no such thing"):
        hour.follow(Block("sh", "echo no such thing; exit 3\n", 0))
