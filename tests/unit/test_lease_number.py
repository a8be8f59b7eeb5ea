"""The numbers of a worker's leases."""

from hypothesis import given
from hypothesis import strategies as st

from jobrunner.attempt import mark_in, mark_of
from jobrunner.worker.fetch.reserve_plan import LeaseNumbers

MARKS = st.integers(0, 2**24 - 1).map(lambda number: f"{number:06x}")


@given(MARKS, st.lists(st.integers(1, 5000), min_size=1, max_size=50))
def test_every_number_tells_the_mark_is_exact_and_comes_once(mark: str, counts: list[int]) -> None:
    numbers = LeaseNumbers(f"host.name.12.{mark}")
    taken: set[int] = set()

    for count in counts:
        first = numbers.first_of(count)
        own = range(first, first + count)
        assert {mark_of(own[0]), mark_of(own[-1]), mark_of(float(own[-1]))} == {mark}
        assert own[-1] < 2**52, "a sorted set writes larger ones in another way"
        assert taken.isdisjoint(own)
        taken.update(own)


def test_a_number_stays_with_its_worker_when_the_count_begins_anew() -> None:
    numbers = LeaseNumbers("h.1.00c0de")
    numbers._next = numbers._numbers.stop - 5

    assert mark_of(numbers.first_of(5) + 4) == "00c0de"
    assert mark_of(numbers.first_of(5)) == "00c0de"


def test_a_number_of_a_program_or_a_batch_tells_nothing() -> None:
    assert mark_of(0) == ""
    assert mark_of(2**48 + 5000) == ""
    assert mark_in("host.with.dots.77.a1b2c3") == "a1b2c3"
