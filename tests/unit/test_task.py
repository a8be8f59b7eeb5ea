"""Ids, due times and priorities."""

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone

import pytest

from jobrunner import task as task_module
from jobrunner.broker.keys import Keys, check_id, split_queue, tag_of_id
from jobrunner.clock import from_ms
from jobrunner.errors import InvalidName, InvalidOption, NaiveDatetime
from jobrunner.task import check_priority, derived_id, due, new_id
from jobrunner.task_record import read_record


def make_ids(count: int) -> list[str]:
    return [new_id("mail") for _ in range(count)]


def test_ids_sort_in_the_order_they_were_made_and_carry_their_tag() -> None:
    ids = make_ids(10_000)
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert {tag_of_id(one) for one in ids} == {"mail"}


def test_a_forked_child_makes_other_ids_than_its_parent() -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        made = [set(ids) for ids in [make_ids(2000), *pool.map(make_ids, [2000, 2000])]]
    assert len(set.union(*made)) == 6000


def test_a_thread_that_loses_the_processor_while_it_makes_an_id_gets_one_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns = task_module.time_ns() + 3_600_000_000_000  # a millisecond in which no id was made yet
    interrupted, go_on = threading.Event(), threading.Event()

    def clock() -> int:
        if threading.current_thread() is not threading.main_thread() and not interrupted.is_set():
            interrupted.set()
            go_on.wait(30)
        return now_ns

    monkeypatch.setattr(task_module, "_ids", task_module._IdSource())
    monkeypatch.setattr(task_module, "time_ns", clock)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(make_ids, 3)
        assert interrupted.wait(30)
        ids = make_ids(3)
        go_on.set()
        ids += other.result()
    assert len(set(ids)) == 6


def test_a_signal_handler_that_makes_an_id_gets_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns, of_handler = task_module.time_ns() + 3_600_000_000_000, list[str]()

    def clock() -> int:
        if not of_handler:
            of_handler.append("")
            of_handler[:] = make_ids(2)
        return now_ns

    monkeypatch.setattr(task_module, "_ids", task_module._IdSource())
    monkeypatch.setattr(task_module, "time_ns", clock)
    ids = make_ids(2)
    assert len({*ids, *of_handler}) == 4


def test_an_id_of_the_users_own_has_no_tag() -> None:
    assert tag_of_id("order-17") is None


@pytest.mark.parametrize("bad", ["", "a b", "x" * 129, "{a}", "a\x00b", "a\r\nb", "a/b", None, 5, "ü"])
def test_what_cannot_be_an_id_or_a_queue_is_refused(bad: object) -> None:
    with pytest.raises(InvalidName) as raised:
        check_id(bad)
    assert len(str(raised.value)) < 200
    if bad != "a/b":
        with pytest.raises(InvalidName):
            split_queue(bad)


def test_all_keys_of_a_queue_share_its_hash_tag() -> None:
    raw = Keys("p").queue("orders/raw")
    assert raw.waiting == b"p:{orders}:raw:waiting"
    assert raw.task("x") == b"p:{orders}:task:x"
    assert Keys("p").queue("mail").pending == b"p:{mail}:mail:pending"


@pytest.mark.parametrize("reserved", ["task", "task:x", "a/b/c", "/x", "x/"])
def test_names_whose_keys_would_clash_are_refused(reserved: str) -> None:
    with pytest.raises(InvalidName):
        split_queue(reserved)


def test_a_delay_and_an_instant_exclude_each_other() -> None:
    with pytest.raises(InvalidOption, match="both in_=5 and at="):
        due(5, datetime.now(UTC))


def test_a_naive_datetime_is_refused_with_the_remedy() -> None:
    with pytest.raises(NaiveDatetime, match="tzinfo=UTC"):
        due(None, datetime(2026, 1, 1))


@pytest.mark.parametrize("bad", ["tomorrow", float("nan"), float("inf"), True])
def test_what_is_no_time_is_refused(bad: object) -> None:
    with pytest.raises(InvalidOption):
        due(None, bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption):
        due(bad, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("past", [0, -5, timedelta(days=-1)])
def test_a_delay_of_nothing_or_less_means_now(past: timedelta | float) -> None:
    assert due(past, None) == (0.0, None)


@pytest.mark.parametrize(
    "never", [datetime.max.replace(tzinfo=zone) for zone in (UTC, timezone(timedelta(hours=-9)))] + [253_402_300_799]
)
def test_the_last_instant_of_a_datetime_can_be_read_again(never: datetime | float) -> None:
    _, at_ms = due(None, never)

    assert from_ms(at_ms or 0) == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_times_become_milliseconds() -> None:
    assert due(timedelta(seconds=1.5), None) == (1500.0, None)
    assert due(None, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == (None, 1000.0)


@pytest.mark.parametrize("bad", [3, -1, 1.5, True, "1"])
def test_only_0_1_and_2_are_priorities(bad: object) -> None:
    with pytest.raises(InvalidOption, match="higher goes first"):
        check_priority(bad)


@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "1e308", "x", ""])
def test_a_damaged_number_of_a_record_counts_as_missing(number: str) -> None:
    names = ("retry_count", "attempts", "priority", "enqueue_time")
    record = read_record("dead", number, dict.fromkeys(names, number.encode()) | {"id": b"a"})
    assert record is not None
    if number != "1e308":
        assert (record.retry_count, record.attempts, record.priority) == (0, 0, 1)
    assert (record.when, record.enqueue_time) == (None, from_ms(0))


@pytest.mark.parametrize("line", ["1e300\t1\tfailed\t\tx", "nan\t1\tfailed\t\tx", "1\tinf\tfailed\t\tx", "1\t1", "x"])
def test_a_damaged_line_of_failures_is_left_out(line: str) -> None:
    told = "1700000000000\t2\texpired\tw\tno word of it"
    record = read_record("dead", "0", {"id": b"a", "failures": f"{line}\n{told}".encode()})
    assert record is not None
    (failure,) = record.failures
    assert (failure.attempt, failure.what, failure.error) == (2, "expired", "no word of it")


@pytest.mark.parametrize("parent", [f"{'01' * 14}-orders", "a user's own id", "0123456789abcdef0123456789ab"])
def test_a_derived_id_is_always_the_same_and_has_the_shape_of_a_made_one(parent: str) -> None:
    ids = [derived_id(parent, ordinal, "orders") for ordinal in range(10_000)]

    assert len(set(ids)) == len(ids)
    assert derived_id(parent, 7, "orders") == ids[7]
    assert {tag_of_id(one) for one in ids} == {"orders"}
    assert derived_id(parent, "key of a row", "orders") not in ids


def test_a_derived_id_keeps_the_time_of_its_parent() -> None:
    parent = new_id("orders")

    child = derived_id(parent, 0, "orders")

    assert child[:16] == parent[:16]
    assert derived_id(child, 0, "orders") != child


def test_a_derived_id_is_the_same_in_every_version() -> None:
    """Retries may run under another version of this package than the first try did."""
    assert derived_id("0123456789abcdef0123456789ab-orders", 1, "orders") == "0123456789abcdefb7e1d6e7bced-orders"
    assert derived_id("mine", 0, "orders") == "22f2324523e39ba9278728ab8c72-orders"


@pytest.mark.parametrize(("stored", "read"), [({}, None), ({"result": b""}, None), ({"result": b"3"}, b"3")])
def test_a_record_without_a_result_has_none_as_with_inline(stored: dict[str, bytes], read: bytes | None) -> None:
    """Scripts end a cancelled task with an empty one."""
    record = read_record("cancelled", "0", {"id": b"1-mail"} | stored)

    assert record is not None
    assert record.result == read
