"""Percentiles of delays, and commands counted by MONITOR."""

import pytest

from benchmarks.idle import percentiles, sent_commands


def test_percentiles_lie_between_the_shortest_and_the_longest_delay() -> None:
    delays = percentiles([float(number) for number in range(101)])

    assert (delays.p50, delays.p95, delays.p99) == (50.0, 95.0, 99.0)


def test_one_straggler_does_not_move_the_median() -> None:
    delays = percentiles([1.0] * 99 + [1_000.0])

    assert delays.p50 == delays.p95 == 1.0
    assert 1.0 <= delays.p99 < 1_000.0


def test_percentiles_do_not_mind_the_order() -> None:
    assert percentiles([3.0, 1.0, 2.0]).p50 == pytest.approx(2.0)


def test_commands_that_scripts_call_are_not_commands_that_were_sent() -> None:
    monitored = (
        b"+OK\r\n"
        b'+1700000000.000001 [0 127.0.0.1:5000] "evalsha" "abc" "1" "key"\r\n'
        b'+1700000000.000002 [0 lua] "zadd" "key" "1" "a"\r\n'
        b'+1700000000.000003 [0 127.0.0.1:5000] "blpop" "key" "1"\r\n'
    )

    assert sent_commands(monitored) == 2
