"""Tasks are found by what they hold, page by page, and within the time."""

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest
import redis

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.calls.queues import register
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.item import Item
from jobrunner.errors import InvalidOption, ServerRefused
from jobrunner.inspector import search as search_module
from jobrunner.inspector.search import latest, matching, search
from jobrunner.inspector.search_filter import Filter
from jobrunner.redaction import Redaction
from jobrunner.task import Task

NUMBERS = ("retry_count", "attempts", "expiries", "started_at", "enqueue_time", "run_ms")


def cursor_of(*parts: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


def fill(client: Client, count: int, *, queue: str = "mail", type_: str = "Send", prefix: str = "t") -> None:
    client.enqueue_many(
        Task(id=f"{prefix}{n}", queue=queue, type=type_, payload=b'{"user":"ann%d","n":%d}' % (n, n))
        for n in range(count)
    )


def test_a_part_is_looked_for_in_what_is_there_alone(client: Client) -> None:
    client.enqueue(Task(id="a", queue="mail", payload=b"{}"))
    for wanted in (Filter(error="_"), Filter(job="_"), Filter(param="x=_")):
        assert search(client, wanted).tasks == []
    (found,) = search(client, Filter(), limit=5).tasks
    assert (found.type, found.error) == ("", "")


@pytest.mark.parametrize("number", ["inf", "nan", "-1e999", "x"])
def test_damaged_numbers_count_as_missing_beside_sound_tasks(client: Client, raw: redis.Redis, number: str) -> None:
    """The page of finished tasks failed for all that it lists."""
    queue = client.queue("mail")
    queue.configure(history=60)
    queue.push_many([Item("x", id="a"), Item("x", id="b")])
    queue.commit_many(queue.reserve(2))
    raw.hset(keys_of(client).queue("mail").task("a"), mapping=dict.fromkeys(NUMBERS, number))

    done = search(client, Filter(state="done"), limit=5).tasks

    assert {(one.id, one.attempt, one.lost) for one in done} == {("a", 1, 0), ("b", 1, 0)}


def test_thousands_of_queues_are_counted_in_portions(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other clients of the server wait for one of them, and so does the socket's time-out."""
    sent: list[list[Any]] = []

    def run_each(broker: Broker, calls: Sequence[Call[Any]]) -> list[Any]:
        sent.append([call.words[0] for call in calls])  # a script for each queue takes the server ten times as long
        return as_before(broker, calls)

    broker_of(client).run_many(register(keys_of(client), [f"queue-{n}" for n in range(1, 620)]))
    fill(client, 1, queue="queue-600")
    as_before = Broker.run_each
    monkeypatch.setattr(Broker, "run_each", run_each)

    found = search(client, Filter(), limit=5)

    assert ([one.queue for one in found.tasks], found.total) == (["queue-600"], 1)
    assert ([len(some) for some in sent], {word for some in sent for word in some}) == ([2000, 476], {"ZCARD"})


@pytest.mark.parametrize("queues", [1, 5])
def test_tasks_that_maintenance_has_not_moved_yet_are_found(client: Client, clock: Any, queues: int) -> None:
    """A due task, and one whose worker died, while no worker is at work: of several queues they were found nowhere."""
    clock.set()
    client.enqueue_many(Task(id=f"later{n}", queue=f"q{n}", payload=b"{}", delay_ms=1000) for n in range(queues))
    client.enqueue_many(Task(id=f"held{n}", queue=f"q{n}", payload=b"{}") for n in range(queues))
    for n in range(queues):
        client.queue(f"q{n}").reserve(keepalive=5)
    clock.advance(60_000)
    each = sorted(f"{name}{n}" for n in range(queues) for name in ("later", "held"))

    for wanted in (Filter(), Filter(id="e")):
        assert sorted(row.id for row in search(client, wanted).tasks) == each
        assert sorted(place.id for some in matching(client, wanted) for place in some) == each


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
        (Filter(type="Oth"), []),
        (Filter(job="oTHe", param="n=12"), ["x12"]),
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


@pytest.mark.parametrize(
    ("error", "count"),
    [("password='h", 0), ("hunter2", 0), ("hunter", 0), ("LOGIN", 1), ("the end", 1), ("password=", 1), ("É", 0)],
)
def test_nothing_is_found_by_what_is_hidden_in_its_error(client: Client, error: str, count: int) -> None:
    """A user who may not see it could guess it letter by letter."""
    client.enqueue(Task(id="t", queue="mail", payload=b'{"a":1}', max_attempts=1))
    text = f"login failed: password='hunter2'\n{'x' * 7_000} the end"
    client.queue("mail").reserve()[0].rollback(error=text)

    for wanted in (Filter(error=error), Filter(error=error, param="a=1", state="dead")):
        assert len(search(client, wanted, redaction=Redaction()).tasks) == count
        assert len(list(latest(client, replace(wanted, state="dead"), redaction=Redaction()))) == count
        assert sum(map(len, matching(client, wanted, Redaction()))) == count


def test_a_row_has_no_line_of_a_hidden_value(client: Client) -> None:
    """The line that tells an error was taken first, and its value had lost its name."""
    client.enqueue(Task(id="t", queue="mail", payload=b"{}", max_attempts=1))
    client.queue("mail").reserve()[0].rollback(error="Traceback (most recent call last):\nE: password=\n  hunter2")

    (row,) = search(client, Filter(state="dead"), redaction=Redaction()).tasks

    assert "hunter2" not in row.error


VALUES = [17, 170, 1700, 17.5, "17", "17b", "b17", 18, True, "x,17", None, 'a"b', "two\nlines", "", "17\\"]


@pytest.mark.parametrize(
    ("param", "values"),
    [
        ("customer=17", [17, "17"]),
        ("customer=17.5", [17.5]),
        ("customer=17b", ["17b"]),
        ("customer=1", []),
        ("customer=true", [True]),
        ("Customer = TRUE", [True]),
        ("customer=null", [None]),
        ('customer=a"b', ['a"b']),
        ("customer=two\nlines", ["two\nlines"]),
        ("customer=", [""]),
        ("customer=17\\", ["17\\"]),
        ('"customer":17', [17, 170, 1700, 17.5]),
        ("two\nlines", ["two\nlines"]),
        ("no\n17", []),
        ('customer="x', []),
        ('customer="17"', ["17"]),
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_a_value_by_name_is_the_whole_value(client: Client, param: str, values: list[Any], last: bool) -> None:
    """A command that cancelled customer=17 cancelled 170 and 17b, too."""
    after = {} if last else {"z": 1}
    client.queue("mail").push_many([{"customer": one, **after} for one in VALUES])

    for redaction in (None, Redaction(["z"])):
        found = [task.params for task in search(client, Filter(param=param), redaction=redaction).tasks]
        kept = list(matching(client, Filter(param=param), redaction))
        assert len(found) == len(values) == len(kept[0])
    ids = [task.id for task in search(client, Filter(param=param)).tasks]
    assert [json.loads(client.task(one).record().payload)["customer"] for one in ids] == values


def test_nothing_is_found_by_what_is_encrypted(client: Client) -> None:
    key = base64.b64encode(bytes(32)).decode()
    with Client(client.settings.url, client.settings.prefix, payload_keys=[key]) as secret:
        secret.enqueue(Task(id="secret", queue="mail", type="Send", payload=b'{"user":"ada"}'))
        client.enqueue(Task(id="plain", queue="mail", type="Send", payload=b'{"user":"ada"}'))

        assert [task.id for task in search(secret, Filter(param="user=ada")).tasks] == ["plain"]
        assert [task.id for task in search(client, Filter(param="ada")).tasks] == ["plain"]
        assert [task.id for task in search(client, Filter(type="Send")).tasks] == ["secret", "plain"]


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


def test_the_latest_dead_are_those_of_all_queues_and_no_more_is_read_than_asked_for(client: Client, clock: Any) -> None:
    clock.set()
    for number in range(60):
        queue = client.queue(f"q{number % 3 % 2}")
        client.enqueue(Task(id=f"t{number}", queue=queue.name, payload=b"{}", type="Send", max_attempts=1))
        queue.reserve()[0].rollback(error="late" if number % 2 else "early")
        clock.advance(1000)
    examined: list[int] = []

    some = list(islice(latest(client, Filter(state="dead"), examined=examined.append), 5))
    late = [row.id for row in latest(client, Filter(state="dead", error="LATE"))]

    assert [row.id for row in some] == [f"t{number}" for number in range(59, 54, -1)]
    assert len(examined) == 2
    assert late == [f"t{number}" for number in range(59, 0, -2)]


@pytest.mark.parametrize("part", ["CAFÉ", "cafÉ", "É"])
def test_what_is_not_ascii_is_found_as_it_is_written(client: Client, part: str) -> None:
    client.queue("mail").push({"name": "CAFÉ"})
    client.queue("mail").reserve()[0].rollback(error="no CAFÉ")

    assert len(search(client, Filter(param=part)).tasks) == 1
    assert len(search(client, Filter(error=part)).tasks) == 1


def test_a_search_that_has_no_time_says_how_far_it_came_and_goes_on(client: Client) -> None:
    fill(client, 1200)

    first = search(client, Filter(id="t1199"), budget_s=0)
    assert (first.tasks, first.timed_out, first.searched, first.total) == ([], True, 250, 1200)
    found = pages(client, Filter(id="t1199"), budget_s=0)
    assert found == ["t1199"]


def test_the_time_of_a_search_is_not_that_of_counting_queues(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(client, 1200)
    passed = [0.0]

    def slowly(*args: Any) -> Any:
        passed[0] += 1.0
        return counted(*args)

    counted = search_module._counted
    monkeypatch.setattr(search_module, "_counted", slowly)
    monkeypatch.setattr(search_module, "perf_counter", lambda: passed[0])

    assert search(client, Filter(id="none"), budget_s=0.1).searched == 1200


@pytest.mark.parametrize(("wanted", "first"), [(Filter(), 50), (Filter(type="Send"), 50), (Filter(type="none"), 0)])
def test_one_round_trip_reads_a_page_of_many_queues(client: Client, wanted: Filter, first: int) -> None:
    """A queue for each customer: a server 20 ms away gave a page of four tasks."""
    client.enqueue_many(Task(id="a", queue=f"q{n:03}", type="Send", payload=b"{}") for n in range(120))

    page = search(client, wanted, budget_s=0)

    assert [task.queue for task in page.tasks] == [f"q{n:03}" for n in range(first)]
    assert (page.searched, page.timed_out) == (first or 100, not first)
    rest = search(client, wanted, budget_s=10, after=page.onward, limit=100)
    assert (len(rest.tasks), rest.onward) == (70 if first else 0, "")


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_lines_that_fill_no_page_are_read_with_those_behind_them(client: Client, order: str) -> None:
    ids = []
    for n, size in enumerate([1, 2, 30, 300, 1, 60, 3]):
        fill(client, size, queue=f"q{n}", prefix=f"{n}-")
        made = [f"{n}-{at}" for at in range(size)]
        ids += made if order == "oldest" else made[::-1]

    for wanted in (Filter(), Filter(type="Send")):
        assert pages(client, wanted, order=order, limit=50, budget_s=0) == ids


def test_damage_and_foreign_cursors_are_no_surprise(client: Client, raw: Any, keys: Any) -> None:
    fill(client, 3)
    raw.delete(keys.queue("mail").task("t1"))

    assert [task.id for task in search(client, Filter()).tasks] == ["t0", "t2"]
    foreign = [cursor_of(*parts) for parts in (("gone", "mail", 1, "1", "t0"), ("dead", "mail", 1, "x", "t0"))]
    for cursor in ("x", "1", "99.5", "W10=", *foreign, cursor_of("waiting", "mail", -1, "1", "t0")):
        with pytest.raises(InvalidOption):
            search(client, Filter(), after=cursor)


def test_a_queue_that_cannot_be_counted_keeps_nobody_from_the_others(client: Client, raw: Any, keys: Any) -> None:
    fill(client, 2)
    fill(client, 1, queue="other", prefix="o")
    for damaged in (keys.queue("other").waiting, keys.queue("other").dead):
        raw.delete(damaged)
        raw.set(damaged, "damage")
    told: dict[str, str] = {}

    found = search(client, Filter(state="waiting"))

    assert [row.queue for row in found.tasks] == ["mail", "mail"]
    assert dict(found.problems).keys() == {"other"}
    assert list(latest(client, Filter(state="dead"), unread=told.update)) == []
    assert told.keys() == {"other"}
    with pytest.raises(ServerRefused):
        search(client, Filter(state="waiting", queue="other"))


def test_a_shard_that_cannot_be_counted_is_named_by_its_queue_and_keeps_nobody_from_the_other_shards(
    client: Client, raw: Any, keys: Any
) -> None:
    client.queue("mail").configure(partitions=3)
    client.enqueue_many(Task(id=f"t{n}", queue="mail", payload=b"{}") for n in range(30))
    others = sum(raw.zcard(keys.queue(name).waiting) for name in ("mail", "mail@2"))
    raw.delete(keys.queue("mail@1").waiting)
    raw.set(keys.queue("mail@1").waiting, "damage")

    found = search(client, Filter(), limit=50)

    assert dict(found.problems).keys() == {"mail"}
    assert len(found.tasks) == others


def test_everything_that_matches_is_walked_also_while_it_leaves(client: Client) -> None:
    fill(client, 1300)
    seen = []
    for places in matching(client, Filter(queue="mail")):
        seen += [place.id for place in places]
        for place in places:
            client.task(place.id, queue="mail").cancel()

    assert sorted(seen) == sorted(f"t{n}" for n in range(1300))
    assert client.queue("mail").counts()["waiting"] == 0


def pages(client: Client, wanted: Filter, between: Any = lambda page: None, **options: Any) -> list[str]:
    """Ids of all pages; `between` runs after each."""
    seen: list[str] = []
    after = ""
    while True:
        page = search(client, wanted, after=after, **options)
        seen += [task.id for task in page.tasks]
        if not (after := page.onward):
            return seen
        between(page)


def test_tasks_that_leave_between_two_pages_hide_no_others(client: Client) -> None:
    fill(client, 300)

    def cancel(page: Any) -> None:
        for task in page.tasks:
            client.task(task.id, queue="mail").cancel()

    assert pages(client, Filter(), cancel) == [f"t{n}" for n in range(300)]


def test_tasks_due_at_the_same_instant_are_each_found_once_though_the_last_of_a_page_leaves(client: Client) -> None:
    at_ms = 4_000_000_000_000
    names = sorted(f"{'abc'[n % 3]}{n // 3}" for n in range(1300))
    client.enqueue_many(Task(id=name, queue="mail", payload=b"{}", at_ms=at_ms) for name in names)

    def cancel_last(page: Any) -> None:
        client.task(page.tasks[-1].id, queue="mail").cancel()

    assert pages(client, Filter(state="scheduled"), cancel_last, limit=7) == names
    rest = pages(client, Filter(state="scheduled"), order="newest")
    assert rest == sorted(rest, reverse=True)
    assert len(rest) == 1300 - 1300 // 7


def test_deaths_between_two_pages_come_into_no_later_page(client: Client, clock: Any) -> None:
    clock.set()

    def die(name: str) -> None:
        client.enqueue(Task(id=name, queue="mail", payload=b"{}", max_attempts=1))
        client.queue("mail").reserve()[0].rollback(error="no")
        clock.advance(10)

    for n in range(10):
        die(f"t{n}")
    extra = iter(range(100))

    found = pages(client, Filter(state="dead"), lambda page: die(f"x{next(extra)}"), limit=3)
    assert found == [f"t{n}" for n in range(9, -1, -1)]


def test_a_search_that_went_through_nothing_but_others_is_not_finished_and_the_dead_come_before_the_backlog(
    client: Client,
) -> None:
    client.enqueue(Task(id="sick", queue="zoo", type="Other", payload=b"{}", max_attempts=1))
    client.queue("zoo").reserve()[0].rollback(error="KeyError")
    fill(client, 1200)

    first = search(client, Filter(error="keyerror"), budget_s=0)
    assert ([task.id for task in first.tasks], first.timed_out) == (["sick"], True)
    last = search(client, Filter(error="keyerror"), after=first.onward, budget_s=10)
    assert (last.tasks, last.timed_out, last.searched, last.total) == ([], False, 1201, 1201)


def test_a_line_that_became_empty_meanwhile_ends_no_search(client: Client) -> None:
    fill(client, 60, queue="a", prefix="a")
    fill(client, 60, queue="b", prefix="b")

    first = search(client, Filter(), limit=50)
    client.queue("a").purge("waiting")

    rest = search(client, Filter(), after=first.onward, limit=100)
    assert [task.id for task in rest.tasks] == [f"b{n}" for n in range(60)]


def test_a_time_is_that_of_death_or_of_enqueueing(client: Client, clock: Any) -> None:
    clock.set()
    began = datetime.fromtimestamp(clock.set() / 1000, UTC)
    for n in range(6):
        client.enqueue(Task(id=f"d{n}", queue="mail", payload=b"{}", max_attempts=1))
        client.queue("mail").reserve()[0].rollback(error="no")
        clock.advance(60_000)
    for n in range(3):
        client.enqueue(Task(id=f"w{n}", queue="mail", payload=b"{}"))
        clock.advance(60_000)

    def minutes(since: int | None, until: int | None, **more: Any) -> list[str]:
        at = [None if one is None else began + timedelta(minutes=one) for one in (since, until)]
        return pages(client, Filter(since=at[0], until=at[1], **more), limit=2)

    assert minutes(1, 4) == ["d3", "d2", "d1"]
    assert minutes(4, 8) == ["d5", "d4", "w0", "w1"]
    assert minutes(None, 2) == ["d1", "d0"]
    assert minutes(7, None) == ["w1", "w2"]
    assert minutes(1, 3, state="dead", queue="mail") == ["d2", "d1"]
    found = search(client, Filter(state="dead", queue="mail", since=began + timedelta(minutes=4)))
    assert (found.searched, found.total) == (2, 2)  # only these are examined
    oldest = Filter(state="dead", since=began + timedelta(minutes=4))
    assert [task.id for task in search(client, oldest, order="oldest").tasks] == ["d4", "d5"]


def test_rows_have_parameters_without_what_is_hidden(client: Client) -> None:
    payloads = [
        b'{"user":"ada","password":"x","n":[1,2]}', b'"%b"' % (b"y" * 400), b"\xff\x00", b'{"a":"%b"}' % (b"z" * 20000),
    ]  # fmt: skip
    client.enqueue_many(
        Task(id=f"t{n}", queue="mail", payload=one, encoding="" if n == 2 else "json") for n, one in enumerate(payloads)
    )

    lines = [task.params for task in search(client, Filter()).tasks]
    assert lines[0] == 'user="ada" password="••••••" n=[1, 2]'
    assert (len(lines[1]), lines[1][-1]) == (200, "…")
    assert "bytes" in lines[2]
    assert lines[3] == "(above 16 KiB: open the task)"


def test_large_payloads_end_a_call_early_and_none_is_left_out(client: Client) -> None:
    large = b'{"text":"%b"}' % (b"x" * 300_000)
    client.enqueue_many(Task(id=f"t{n}", queue="mail", payload=large) for n in range(12))

    first = search(client, Filter(param="nowhere"), budget_s=0)
    assert (first.searched, first.timed_out) == (2, True)
    assert len(pages(client, Filter(param="xxx"))) == 12


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_a_queue_is_sorted_by_time_both_ways(client: Client, order: str) -> None:
    fill(client, 120)
    names = [f"t{n}" for n in range(120)]

    assert pages(client, Filter(state="waiting"), order=order) == (names if order == "oldest" else names[::-1])
    with pytest.raises(InvalidOption, match="order='name'"):
        search(client, Filter(), order="name")
