"""Limits per key and fair turns as users set them."""

from dataclasses import dataclass
from typing import Any

import pytest

from jobrunner import Client, Item, Job, RateLimit, job
from jobrunner.errors import InvalidOption
from jobrunner.jobs.build import key_of


@dataclass
class Place:
    town: str
    number: int


@job(name="keys.report", queue="keyed", partition_by="tenant_id")
class Report(Job):
    tenant_id: int | None
    page: int = 0

    def run(self) -> None: ...


def test_items_with_one_key_take_turns_with_others(way: Any) -> None:
    queue = way.queue("keyed")
    queue.configure(fair=True)
    queue.push_many([Item(n, partition="acme") for n in range(3)])
    queue.push("late", partition="zeta")
    assert [lease.payload for lease in queue.reserve(9)] == [0, "late", 1, 2]
    assert queue.settings().fair is True


def test_a_job_names_the_parameter_that_is_its_key(current: Client) -> None:
    queue = current.queue("keyed")
    rate = RateLimit(max_tokens=2, interval=1, interval_unit="HOURS")
    queue.configure(max_inflight_per_partition=1, rate_per_partition=rate)
    assert (queue.settings().max_inflight_per_partition, queue.settings().rate_per_partition) == (1, rate)
    Report.enqueue_many([Report(tenant_id=7, page=page) for page in range(3)])
    Report(tenant_id=None).enqueue()
    held = sorted(queue.reserve(9), key=lambda lease: bytes(lease.payload))
    assert [lease.payload for lease in held] == [b'{"tenant_id":7,"page":0}', b'{"tenant_id":null,"page":0}']
    held[0].commit()
    (second,) = queue.reserve(9)
    second.commit()
    assert queue.reserve(9) == [], "its two tokens are spent"


@pytest.mark.parametrize(
    ("value", "key"), [("acme", "acme"), (7, "7"), (Place("a", 1), '{"town":"a","number":1}'), (None, None)]
)
def test_a_key_is_the_value_as_text(value: object, key: str | None) -> None:
    assert key_of(value) == key


@pytest.mark.parametrize("value", ["", "x" * 257])
def test_a_value_that_cannot_be_a_key_has_its_digest_for_one(value: str) -> None:
    assert len(key_of(value) or "") == 64


@pytest.mark.parametrize("key", ["", "x" * 257, 7, b"x"], ids=repr)
def test_an_item_with_no_real_key_is_refused(way: Any, key: Any) -> None:
    with pytest.raises(InvalidOption, match="partition="):
        way.queue("keyed").push(1, partition=key)


def test_limit_by_names_a_parameter() -> None:
    def job_of_x(x: int) -> None: ...

    for wrong, told in (("tenant", "partition_by='tenant' is none of its parameters x"), (3, "partition_by=3")):
        with pytest.raises(InvalidOption, match=told):
            job(name="keys.wrong", partition_by=wrong)(job_of_x)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options", [{"fair": 1}, {"max_inflight_per_partition": -1}, {"rate_per_partition": 3}], ids=str
)
def test_a_wrong_setting_is_refused(way: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        way.queue("keyed").configure(**options)
