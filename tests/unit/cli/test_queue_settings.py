"""Settings of a queue in words."""

import click
import pytest

from jobrunner.cli.queue_settings import LIFTED, at_most, rate, setting_text
from jobrunner.queue_settings import RateLimit
from jobrunner.retry import Backoff


@pytest.mark.parametrize(
    ("text", "tokens", "interval", "unit", "shown"),
    [
        ("1000/1s", 1000, 1, "SECONDS", "1000/1s"),
        ("2000/1m", 2000, 1, "MINUTES", "2000/1m"),
        ("15/1h", 15, 1, "HOURS", "15/1h"),
        (" 15/H ", 15, 1, "HOURS", "15/1h"),
        ("7/30s", 7, 30, "SECONDS", "7/30s"),
    ],
)
def test_a_rate_is_tasks_in_a_time(text: str, tokens: int, interval: int, unit: str, shown: str) -> None:
    """MDQ-15"""
    read = rate(text)

    assert read == RateLimit(max_tokens=tokens, interval=interval, interval_unit=unit)
    assert setting_text(read) == shown


@pytest.mark.parametrize(
    "text", ["", "fast", "10", "0/s", "1/0s", "-1/s", "1.5/s", "1/1.5s", "10/1d", "10/1ms", "1e3/s", "٣/s", "9" * 5000]
)
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no rate; write tasks/interval, such as 1000/1s, 2000/1m or 15/h"):
        rate(text)


@pytest.mark.parametrize(("text", "read"), [("1", 1), (" 10 ", 10), ("0", LIFTED), ("none", LIFTED), ("NONE", LIFTED)])
def test_a_limit_is_a_whole_number_or_none(text: str, read: object) -> None:
    assert at_most(text) == read


@pytest.mark.parametrize("text", ["", "-1", "1.5", "many", "٣", "9" * 5000])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no limit; write a whole number from 1, or none"):
        at_most(text)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "no limit"), (5, "5"), (None, "none"), (0.0, "0s"), (3600.0, "1h"), (True, "yes"), (False, "no"),
        ("orders/late", "orders/late"), (Backoff(base=1, cap=60), "1s, each 2 times longer, at most 1m, jitter 10%"),
    ],
)  # fmt: skip
def test_a_setting_is_shown_to_people(value: object, shown: str) -> None:
    assert setting_text(value) == shown
