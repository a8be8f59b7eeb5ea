"""How fields of hashes become columns, page by page."""

import pytest

pytest.importorskip("pyspark")

from jobrunner.spark import columns
from jobrunner.spark.columns import ITEM_COLUMNS, ItemChunk

CONVERTED = columns._whole_numbers


def made(column: str, *values: bytes | None, field: str) -> list[int | None]:
    ids = [b"%d" % place for place in range(len(values))]
    chunk = ItemChunk(queue="mail", state="waiting", ids=ids, scores=ids, values={field: values})
    found: list[int | None] = ITEM_COLUMNS[column].make(chunk).to_pylist()
    return found


@pytest.mark.parametrize(
    ("values", "retries"),
    [
        ((b"0", b"0", b"0"), [0, 0, 0]),
        ((b"0", b"3", None), [0, 3, 0]),
        ((None, None), [0, 0]),
        ((b"2",), [2]),
        ((b"damaged", b"damaged"), [0, 0]),
        ((b"nan", b"1"), [0, 1]),
    ],
)
def test_whole_numbers(values: tuple[bytes | None, ...], retries: list[int]) -> None:
    assert made("_retry_count", *values, field="retry_count") == retries


@pytest.mark.parametrize(
    ("values", "most"),
    [((None, None), [None, None]), ((b"5", b"5"), [5, 5]), ((b"x", b"x"), [None, None]), ((None, b"5"), [None, 5])],
)
def test_whole_numbers_without_a_default(values: tuple[bytes | None, ...], most: list[int | None]) -> None:
    assert made("_max_attempts", *values, field="max_attempts") == most


def test_a_page_whose_items_all_have_one_number_converts_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    converted: list[int] = []
    monkeypatch.setattr(
        columns, "_whole_numbers", lambda values, default: converted.append(len(values)) or CONVERTED(values, default)
    )
    for _ in range(2):
        assert made("_priority", *[b"7"] * 2_000, field="priority") == [7] * 2_000
    assert converted in ([1], [])  # the number is known in this process, or becomes so
