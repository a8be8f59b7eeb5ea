"""The arguments of one script call are bounded in bytes and in number."""

from jobrunner.broker.call import SLICE_BYTES, in_slices, sliced


def test_slices_end_at_a_mib_or_at_the_number() -> None:
    half = SLICE_BYTES // 2
    assert list(sliced([half, half, 1, half, half - 1, 1], int, most=500)) == [[half, half], [1, half, half - 1], [1]]
    assert list(sliced([1, 2, 3, 4, 5], int, most=2)) == [[1, 2], [3, 4], [5]]
    assert list(sliced([], int, most=2)) == []


def test_what_is_larger_goes_alone() -> None:
    large = SLICE_BYTES + 1
    assert list(sliced([1, large, large, 1], int, most=500)) == [[1], [large], [large], [1]]


def test_slices_keep_the_order_and_the_last_one_may_be_short() -> None:
    assert list(in_slices([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]
    assert list(in_slices((), 2)) == []
