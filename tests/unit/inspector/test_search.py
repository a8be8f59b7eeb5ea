"""Tasks are found by what they hold, page by page, and within the time."""

from typing import Any

import pytest

from jobrunner.client.client import Client
from jobrunner.errors import InvalidOption
from jobrunner.inspector.search import Filter, matching, search
from jobrunner.redaction import Redaction
from jobrunner.task import Task


def fill(client: Client, count: int, *, queue: str = "mail", type_: str = "Send", prefix: str = "t") -> None:
    client.enqueue_many(
        Task(id=f"{prefix}{n}", queue=queue, type=type_, payload=b'{"user":"ann%d","n":%d}' % (n, n))
        for n in range(count)
    )


def test_pages_follow_each_other_without_a_gap(client: Client) -> None:
    fill(client, 120)
    fill(client, 30, queue="other", prefix="o")

    seen: list[str] = []
    after = ""
    while True:
        found = search(client, Filter(), after=after, limit=50)
        seen += [task.id for task in found.tasks]
        if not (after := found.onward):
            break

    assert seen == [f"t{n}" for n in range(120)] + [f"o{n}" for n in range(30)]
    assert (found.searched, found.total, found.timed_out) == (150, 150, False)


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (Filter(type="Send", param="user=ann7"), ["t7"]),
        (Filter(param="n=12"), ["t12", "x12"]),
        (Filter(param='"USER":"ann3"'), ["t3", "x3"]),
        (Filter(queue="other", id="X1"), ["x1", "x10", "x11", "x12", "x13", "x14"]),
        (Filter(type="send"), []),
        (Filter(state="dead"), []),
    ],
)
def test_what_matches_is_found(client: Client, wanted: Filter, ids: list[str]) -> None:
    fill(client, 15)
    fill(client, 15, queue="other", type_="Other", prefix="x")

    assert [task.id for task in search(client, wanted).tasks] == ids


@pytest.mark.parametrize("param", ["hunter2", '"password":"h', "password=hunter2", "pin=77", "77", '"7'])
def test_nothing_is_found_by_what_is_hidden(client: Client, param: str) -> None:
    payloads = (b'{"user":"ada","password":"hunter2","deep":[{"pin":77}]}', b'{"user":"bob"}', b'{"user":"hunt')
    client.enqueue_many(Task(id=f"t{n}", queue="mail", payload=one) for n, one in enumerate(payloads))
    redaction = Redaction(["pin"])

    assert search(client, Filter(param=param), redaction=redaction).tasks == []
    assert list(matching(client, Filter(param=param), redaction)) == [[]]
    assert [task.id for task in search(client, Filter(param="user"), redaction=redaction).tasks] == ["t0", "t1", "t2"]
    assert [task.id for task in search(client, Filter(param="user=ADA"), redaction=redaction).tasks] == ["t0"]


def test_a_payload_too_long_to_be_looked_through_is_not_found_by_what_is_in_it(client: Client) -> None:
    long = b'{"text":"%b","password":"hunter2"}' % (b"x" * 20_000)
    client.enqueue(Task(id="long", queue="mail", payload=long))

    assert search(client, Filter(param="hunter2"), redaction=Redaction()).tasks == []
    assert [task.id for task in search(client, Filter(param="hunter2")).tasks] == ["long"]


def test_an_error_is_found_whatever_its_case_and_the_latest_dead_come_first(client: Client, clock: Any) -> None:
    clock.set()
    for name in ("a", "b"):
        client.enqueue(Task(id=name, queue="mail", payload=b"{}", max_attempts=1))
        client.queue("mail").reserve()[0].rollback(error="Traceback\nKeyError: 'Name'")
        clock.advance(1000)

    assert [task.id for task in search(client, Filter(error="keyerror")).tasks] == ["b", "a"]


@pytest.mark.parametrize("part", ["CAFÉ", "cafÉ", "É"])
def test_what_is_not_ascii_is_found_as_it_is_written(client: Client, part: str) -> None:
    client.queue("mail").push({"name": "CAFÉ"})
    client.queue("mail").reserve()[0].rollback(error="no CAFÉ")

    assert len(search(client, Filter(param=part)).tasks) == 1
    assert len(search(client, Filter(error=part)).tasks) == 1


def test_a_search_that_has_no_time_says_how_far_it_came_and_goes_on(client: Client) -> None:
    fill(client, 1200)

    first = search(client, Filter(id="t1199"), budget_s=0)
    assert (first.tasks, first.timed_out, first.searched, first.total) == ([], True, 500, 1200)
    second = search(client, Filter(id="t1199"), after=first.onward, budget_s=0)
    third = search(client, Filter(id="t1199"), after=second.onward, budget_s=0)
    assert [task.id for task in third.tasks] == ["t1199"]


def test_a_page_costs_few_commands_with_many_queues(client: Client, raw: Any) -> None:
    client.enqueue_many(Task(id="a", queue=f"q{n}", payload=b"{}") for n in range(200))
    script_calls = "cmdstat_evalsha"
    search(client, Filter(type="none"))
    before = raw.info("commandstats")[script_calls]["calls"]

    search(client, Filter(type="none"), budget_s=10)

    assert raw.info("commandstats")[script_calls]["calls"] - before <= 25


def test_damage_and_foreign_cursors_are_no_surprise(client: Client, raw: Any, keys: Any) -> None:
    fill(client, 3)
    raw.delete(keys.queue("mail").task("t1"))

    assert [task.id for task in search(client, Filter()).tasks] == ["t0", "t2"]
    assert search(client, Filter(), after="99.5").tasks == []
    for cursor in ("x", "1", "-1.0", "1.x"):
        with pytest.raises(InvalidOption):
            search(client, Filter(), after=cursor)


def test_everything_that_matches_is_walked_also_while_it_leaves(client: Client) -> None:
    fill(client, 1300)
    seen = []
    for places in matching(client, Filter(queue="mail")):
        seen += [place.id for place in places]
        for place in places:
            client.task(place.id, queue="mail").cancel()

    assert sorted(seen) == sorted(f"t{n}" for n in range(1300))
    assert client.queue("mail").counts()["waiting"] == 0
