"""task_search: tasks of one state that match, with all their fields, by the instant that the state is sorted by."""

import pytest

from jobrunner.broker.calls import search
from jobrunner.broker.calls.search import Match


def chunk(mail, state, *, count=50, most=50, **options):
    return mail.run(search.search_state(mail.keys, state, count=count, most=most, **options))


def ids(mail, state, since=None, before=None, **options):
    match = Match(since_ms=since, until_ms=before)
    return [one for one, _, _ in chunk(mail, state, match=match, **options).tasks]


def test_each_field_of_a_task_is_returned_as_it_is_stored(mail):
    mail.enqueue("a", type="Send")
    stored = {name: f"the {name}" for name in search.FIELDS}
    mail.raw.hset(mail.keys.task("a"), mapping=stored)

    ((task_id, score, fields),) = chunk(mail, "waiting", payloads=True).tasks

    assert (task_id, score) == ("a", mail.scores("waiting")["a"])
    assert fields == stored
    ((_, _, fields),) = chunk(mail, "waiting").tasks
    assert fields == stored | {"payload": ""}, "the payload is not asked for"


def test_a_field_that_a_task_lacks_is_empty(mail):
    mail.enqueue("a", type="Send")
    ((_, _, fields),) = chunk(mail, "waiting").tasks
    assert (fields["type"], fields["error"], fields["outcome"]) == ("Send", "", "")


def test_only_tasks_of_the_whole_type_are_found(mail):
    mail.enqueue("a", type="Send")
    mail.enqueue("b", type="SendAgain")
    mail.enqueue("c")
    found = chunk(mail, "waiting", match=Match(type="Send")).tasks
    assert [one for one, _, _ in found] == ["a"]


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        (Match(id_part="ne"), ["one"]), (Match(job_part="Mai"), ["two"]), (Match(error_part="boom"), ["three"]),
        (Match(payload_part="needle"), ["two"]), (Match(payload_part="none"), []), (Match(type="Bill"), []),
        (Match(group="g"), ["three"]), (Match(job_part="Send", error_part="late"), ["one"]),
    ],
    ids=str,
)  # fmt: skip
def test_each_condition_leaves_what_meets_it(mail, match, expected):
    mail.enqueue("one", type="SendLetter")
    mail.enqueue("two", type="SendMail", payload=b"hay needle hay")
    mail.enqueue("three", type="Call")
    for name, fields in {"one": {"error": "too late"}, "three": {"error": "E: boom", "group": "g"}}.items():
        mail.raw.hset(mail.keys.task(name), mapping=fields)

    reply = chunk(mail, "waiting", match=match)
    assert [one for one, _, _ in reply.tasks] == expected
    assert (reply.read, reply.is_end) == (3, True)
    assert [one for one, _, _ in chunk(mail, "waiting", match=match, most=1).tasks] == expected, "others do not count"


def test_a_chunk_that_is_as_long_as_it_may_be_is_not_known_to_be_the_last(mail):
    mail.enqueue("a", "b")
    assert not chunk(mail, "waiting", count=2).is_end
    assert chunk(mail, "waiting", count=3).is_end


@pytest.mark.parametrize("newest", [False, True])
def test_a_search_goes_on_behind_a_task_that_is_there(mail, newest):
    """One of the same instant comes before it, and two behind."""
    mail.enqueue("a", "b", "c", "d")
    mail.fail(*mail.reserve(4), fate="dead")
    after = (f"{mail.raw.zscore(mail.keys.dead, 'b'):.0f}", "b")
    found = chunk(mail, "dead", after=after, newest=newest).tasks
    assert [one for one, _, _ in found] == (["a"] if newest else ["c", "d"])


@pytest.fixture
def dead(mail, clock):
    """Three tasks that were enqueued at once, and died 10 s after one another. Returns when the first died."""
    mail.enqueue("a", "b", "c", max_attempts=1)
    clock.advance(10_000)
    for attempt in mail.reserve(3):
        mail.fail(attempt)
        clock.advance(10_000)
    assert mail.ids("dead") == ["a", "b", "c"]
    return mail.scores("dead")["a"]


@pytest.mark.parametrize(
    ("since", "before", "expected"),
    [(10, None, ["b", "c"]), (None, 10, ["a"]), (10, 20, ["b"]), (None, None, ["a", "b", "c"]), (-10, 0, [])],
)
@pytest.mark.parametrize("newest", [False, True])
def test_the_instant_of_the_dead_is_that_of_their_death(mail, dead, since, before, expected, newest):
    at = [None if seconds is None else dead + seconds * 1000 for seconds in (since, before)]
    assert ids(mail, "dead", *at, newest=newest) == (expected[::-1] if newest else expected)


@pytest.mark.parametrize("newest", [False, True])
def test_of_the_dead_only_those_of_the_time_are_read(mail, dead, newest):
    match = Match(since_ms=dead + 5000, until_ms=dead + 15_000)
    reply = chunk(mail, "dead", count=2, match=match, newest=newest)
    assert (reply.read, reply.is_end) == (1, True)


@pytest.mark.parametrize(("since", "before", "expected"), [(0, None, "b"), (None, 1, "a"), (0, 1, "")])
def test_the_instant_of_those_that_wait_is_that_of_enqueueing_and_not_their_place(mail, clock, since, before, expected):
    early = clock.ms
    mail.enqueue("a", priority=0)
    clock.advance(10_000)
    mail.enqueue("b", priority=2)
    assert mail.ids("waiting") == ["b", "a"]

    at = [None if one is None else early + 5000 + one for one in (since, before)]
    assert ids(mail, "waiting", *at) == list(expected)


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("last", "abcdefg")
def test_a_search_goes_on_behind_a_task_that_is_gone(mail, clock, last, newest):
    """Of seven that died in the same ms, by their ids; one died before, and two behind."""
    mail.enqueue(*"0abcdefg89")
    for count in (1, 7, 2):
        mail.fail(*mail.reserve(count), fate="dead")
        clock.advance(1)
    score = mail.raw.zscore(mail.keys.dead, last)
    mail.raw.zrem(mail.keys.dead, last)

    left = "gfedcba0" if newest else "abcdefg89"
    found = chunk(mail, "dead", after=(f"{score:.0f}", last), newest=newest).tasks
    assert [one for one, _, _ in found] == list(left[left.index(last) + 1 :])


@pytest.mark.parametrize("newest", [False, True])
def test_an_id_comes_before_those_that_begin_with_it(mail, newest):
    mail.enqueue("a", "aa", "ab")
    mail.fail(*mail.reserve(3), fate="dead")
    score = mail.raw.zscore(mail.keys.dead, "aa" if newest else "a")
    mail.raw.zrem(mail.keys.dead, "aa" if newest else "a")

    after = (f"{score:.0f}", "aa" if newest else "a")
    found = chunk(mail, "dead", after=after, newest=newest).tasks
    assert [one for one, _, _ in found] == (["a"] if newest else ["aa", "ab"])


def test_a_state_without_tasks_is_at_its_end(mail):
    reply = chunk(mail, "waiting")
    assert (reply.read, reply.last, reply.is_end, reply.tasks) == (0, ("", ""), True, [])


@pytest.mark.parametrize(("most", "read"), [(1, 1), (2, 2), (3, 3)])
def test_a_call_ends_with_as_many_as_it_may_find(mail, most, read):
    mail.enqueue("a", "b", "c")
    reply = chunk(mail, "waiting", most=most)
    assert (reply.read, len(reply.tasks), reply.is_end) == (read, read, read == 3)


@pytest.mark.parametrize("field", ["error", "type"])
def test_long_texts_that_are_searched_end_a_call_early(mail, field):
    mail.enqueue("a", "b", "c", "d")
    for one in "abcd":
        mail.raw.hset(mail.keys.task(one), field, "x" * 300_000)
    wanted = Match(error_part="y") if field == "error" else Match(job_part="y")

    reply = chunk(mail, "waiting", match=wanted)

    assert (reply.read, reply.is_end) == (2, False)
    assert chunk(mail, "waiting").read == 4, "what is not searched is not read"


def test_a_long_error_is_cut(mail):
    mail.enqueue("a")
    mail.raw.hset(mail.keys.task("a"), "error", "x" * 5000)
    ((_, _, fields),) = chunk(mail, "waiting").tasks
    assert fields["error"] == "x" * 4000


def test_tasks_of_other_groups_do_not_count_as_found(mail):
    mail.enqueue("a", "b", type="Send", max_attempts=1)
    for attempt, group in zip(mail.reserve(2), (b"other", b"wanted"), strict=True):
        mail.fail(attempt)
        mail.raw.hset(mail.keys.task(attempt.id), "group", group)

    found = chunk(mail, "dead", most=1, match=Match(group="wanted"))
    assert [one for one, _, _ in found.tasks] == ["b"]
