"""`push` takes an Item as `push_many` does, and nothing that the Item says is lost."""

from typing import Any

import pytest

from jobrunner.client.client import Client
from jobrunner.client.item import Item
from jobrunner.errors import InvalidOption, UnknownOption
from jobrunner.etl import Pipeline


def test_push_takes_an_item_with_all_that_it_says(way: Any) -> None:
    queue = way.queue("mail")
    whole = Item({"n": 1}, id="mine", priority=2, keepalive=9, max_attempts=2, headers={"a": "b"}, partition="tenant")

    assert queue.push(whole) == "mine"
    record = queue.tasks("waiting")[0]
    (lease,) = queue.reserve()
    assert (lease.id, lease.payload, lease.headers, lease.keepalive_ms) == ("mine", {"n": 1}, {"a": "b"}, 9000)
    assert (record.priority, record.fields["key"], record.fields["max_attempts"]) == (2, b"tenant", b"2")
    assert queue.push(Item("later", in_=60)) in queue.ids("scheduled")


def test_options_beside_an_item_add_to_it(way: Any) -> None:
    queue = way.queue("mail")

    assert queue.push(Item("a", id="mine"), priority=2, id="mine", partition=None) == "mine"
    assert queue.tasks("waiting")[0].priority == 2


@pytest.mark.parametrize(
    ("item", "options", "told"),
    [
        (Item(1, id="a"), {"id": "b"}, "id='b' contradicts the Item, which has id='a'"),
        (Item(1, priority=0), {"priority": 2}, "priority=2 contradicts the Item, which has priority=0"),
        (Item(1, in_=5), {"at": 2e9}, "both in_=5 and at="),
    ],
)
def test_options_that_contradict_the_item_are_an_error(
    way: Any, item: Item, options: dict[str, Any], told: str
) -> None:
    queue = way.queue("mail")

    with pytest.raises(InvalidOption) as refused:
        queue.push(item, **options)
    assert told in str(refused.value)
    with pytest.raises(UnknownOption, match="'priority'"):
        queue.push(item, prioriti=1)
    assert queue.counts()["waiting"] == 0


@pytest.mark.parametrize("key", ["", "k" * 257, "\udce1", 7, b"k"])
def test_a_key_that_cannot_be_stored_is_an_error_that_names_it(way: Any, key: Any) -> None:
    queue = way.queue("mail")

    with pytest.raises(InvalidOption, match=r"partition=.*give a text of 1 to 256 characters"):
        queue.push(1, partition=key)
    assert queue.counts()["waiting"] == 0


def test_an_item_is_never_stored_as_a_payload(way: Any) -> None:
    queue = way.queue("line/a")
    queue.push_many([Item("b", id="b"), "c"])
    lease = queue.reserve()[0]

    with pytest.raises(InvalidOption, match="give its payload"):
        Item(Item(1))
    with pytest.raises(InvalidOption, match="where a payload belongs"):
        lease.move("b", payload=Item("d"))
    assert lease.commit()


def test_pipelines_take_items_too(client: Client) -> None:
    line = Pipeline("items", client)
    line.sink("raw")(lambda item: None)

    assert line.push("raw", Item({"n": 1}, id="mine", priority=2)) == "mine"
    assert line.push("raw", Item("x"), id="yours") == "yours"
    line.push_many("raw", [Item("y", id="his"), "z"])
    assert [lease.payload for lease in line.queue("raw").reserve(9)] == [{"n": 1}, "x", "y", "z"]
