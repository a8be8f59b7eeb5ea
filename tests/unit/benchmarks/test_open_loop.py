"""The schedules of the producers of the open loop."""

import itertools

from benchmarks.open_loop import schedules


def _instants(words: tuple[str, ...]) -> list[int]:
    count, first, gap = map(int, words[2:])
    return [first + number * gap for number in range(count)]


def test_one_producer_sends_a_thousand_tasks_a_second() -> None:
    (words,) = schedules(1_000, 5_000, now_ns=0)

    assert words[:3] == ("due", "stamp", "5000")
    assert words[4] == "1000000"


def test_several_producers_together_are_due_at_a_constant_rate() -> None:
    arguments = schedules(5_000, 1_000, now_ns=0)

    due = sorted(instant for words in arguments for instant in _instants(tuple(words)))
    gaps = {late - early for early, late in itertools.pairwise(due)}
    assert len(arguments) > 1
    assert len(due) == 1_000
    assert gaps == {200_000}
