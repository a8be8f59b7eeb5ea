"""join_collect: the results of a large join are assembled in slices, by any caller and however often it is called."""

import json

import pytest

from jobrunner.broker.calls import flows, tasks
from jobrunner.client.flow_results import receive
from jobrunner.jobs.running_task import NOT_KEPT
from tests.lua.test_join_arrive import FAR, arrive, join_hash, outbox, prepare

MIB = 1024 * 1024


def collect(mail, join_id="j"):
    return mail.run(flows.collect(mail.keys, join_id))


def collect_all(mail):
    """The replies up to the one that is not 'more'."""
    words = [collect(mail)]
    while words[-1] == "more":
        words.append(collect(mail))
    return words


def fill(mail, total, *, last="succeeded"):
    """All members arrive; the results say which."""
    for first in range(0, total - 1, 1000):
        members = range(first, min(first + 1000, total - 1))
        assert arrive(mail, *((n, "succeeded", b'{"n":%d}' % n) for n in members)) == "noted"
    return arrive(mail, (total - 1, last, b'{"n":%d}' % (total - 1) if last == "succeeded" else b""))


def numbered(total):
    return b"[" + b",".join(b'{"n":%d}' % n for n in range(total)) + b"]"


def received(mail):
    """The results and outcomes that the task reads."""
    results, outcomes = receive(mail.broker, mail.keys, "then-j")
    return results, json.loads(outcomes)


def leftovers(mail):
    return [key for key in mail.raw.scan_iter(match=b"*:join:*") if not key.endswith(b":join:j")]


def test_a_large_join_fires_behind_its_last_slice(mail, audit):
    prepare(mail, total=2500, onward=FAR)
    assert fill(mail, 2500) == "more"
    assert mail.ids("waiting") == []
    assert collect_all(mail) == ["more", "more", "more", "fired"]

    assert mail.ids("waiting") == ["then-j"]
    task = mail.hash("then-j")
    assert (task["payload"], task["then"], task["id"]) == (b'{"x":1}', FAR, b"then-j")
    assert received(mail) == (numbered(2500), ["succeeded"] * 2500)
    assert mail.raw.pttl(mail.keys.task("then-j")) == -1
    assert set(join_hash(mail)) == {"rule", "total", "ttl_ms", "fired"}
    assert leftovers(mail) == []
    assert collect(mail) == arrive(mail, (0, "succeeded", b"1")) == "noted"
    assert audit("mail")["waiting"] == 1


def test_a_join_of_few_large_results_goes_in_slices_too(mail):
    results = [b'"' + bytes([97 + n]) * (MIB // 2) + b'"' for n in range(6)]
    prepare(mail, total=6)
    words = [arrive(mail, (n, "succeeded", result)) for n, result in enumerate(results)]
    assert words[-1] == "more"
    assert collect_all(mail) == ["more"] * 6 + ["fired"]
    assert received(mail) == (b"[" + b",".join(results) + b"]", ["succeeded"] * 6)


@pytest.mark.parametrize("stop", range(5))
def test_whoever_repeats_the_arrival_goes_on_where_another_stopped(mail, stop):
    prepare(mail, total=2500)
    fill(mail, 2500)
    for _ in range(stop):
        collect(mail)
    again = arrive(mail, (2499, "succeeded", b'{"n":2499}'))
    assert again == ("noted" if stop == 4 else "more")
    collect_all(mail)
    assert received(mail)[0] == numbered(2500)
    assert mail.totals() == {"enqueued": 1}


def test_a_slice_that_was_lost_is_collected_again(mail):
    prepare(mail, total=2500)
    fill(mail, 2500)
    collect(mail)
    mail.raw.delete(mail.keys.join("j") + b":collected")
    collect_all(mail)
    assert received(mail)[0] == numbered(2500)


def test_who_arrives_late_changes_nothing(mail):
    prepare(mail, total=2500, rule="dead")
    arrive(mail, (7, "succeeded", b"7"))
    assert arrive(mail, (2000, "dead")) == "more"
    collect(mail)
    assert arrive(mail, (1, "succeeded", b"1"), (2400, "dead"), (2000, "succeeded", b"5")) == "more"
    assert collect_all(mail)[-1] == "fired"
    outcomes = ["pending"] * 2500
    outcomes[7], outcomes[2000] = "succeeded", "dead"
    results, seen = received(mail)
    assert seen == outcomes
    assert json.loads(results) == [7 if n == 7 else None for n in range(2500)]


def test_complete_collects_also_what_did_not_succeed(mail):
    prepare(mail, total=1500, rule="complete")
    assert fill(mail, 1500, last="cancelled") == "more"
    assert collect_all(mail) == ["more", "more", "fired"]
    results, outcomes = received(mail)
    assert json.loads(results)[-2:] == [{"n": 1498}, None]
    assert outcomes[-2:] == ["succeeded", "cancelled"]


def test_pass_tells_the_collected_results(mail):
    prepare(mail, total=1500, rule="pass", task=False, onward=FAR)
    assert fill(mail, 1500) == "more"
    assert outbox(mail) == {}
    assert collect_all(mail) == ["more", "more", "posted"]
    assert outbox(mail) == {f"succeeded:{FAR.decode()}": numbered(1500)}
    assert leftovers(mail) == []
    assert arrive(mail, (0, "succeeded", b"0")) == collect(mail) == "noted"
    assert join_hash(mail)["fired"] == b"succeeded"


def test_each_slice_lets_the_join_and_what_it_collected_live_as_long_again(mail):
    prepare(mail, total=1500, rule="pass", task=False, onward=FAR, ttl_ms=60_000)
    assert fill(mail, 1500) == "more"
    keys = mail.keys.join_and_collected("j")
    assert collect(mail) == "more"
    for key in keys:
        mail.raw.pexpire(key, 1000)
    assert collect(mail) == "more"
    assert all(59_000 < mail.raw.pttl(key) <= 60_000 for key in keys)


def pass_on(mail, source, to, member=0):
    """Takes what was collected at one join to another, as the relay does; returns the word on its arrival."""
    parts = mail.run(flows.collected(mail.keys, source))
    size = 0
    for number in range(parts):
        part = mail.run(flows.collected_part(mail.keys, source, number))
        assert len(part) <= MIB
        size += len(part)
        assert mail.run(flows.join_arrive_part(mail.keys, to, member, number, part)) == "taken"
    return arrive(mail, (member, "succeeded", flows.in_pieces(parts, size)), join_id=to)


def large_group(mail, join_id, members=6, **options):
    """A group whose results are 1.5 MiB, all of whose members have ended; returns them as they are passed on."""
    results = [b'"%d' % n + b"x" * (MIB // 4) + b'"' for n in range(members)]
    prepare(mail, join_id, total=members, rule="pass", task=False, onward=FAR, **options)
    for n, result in enumerate(results):
        word = arrive(mail, (n, "succeeded", result), join_id=join_id)
    assert word == "more"
    return b"[" + b",".join(results) + b"]"


def collect_to_pass(mail, join_id):
    while (word := collect(mail, join_id)) == "more":
        pass
    assert word == "pass"


def test_a_large_group_is_passed_on_in_parts(mail):
    prepare(mail, total=1, results=b"*")
    whole = large_group(mail, "group")
    collect_to_pass(mail, "group")
    assert collect(mail, "group") == "pass"
    assert outbox(mail) == {}

    assert pass_on(mail, "group", "j") == "more"
    assert mail.run(flows.passed(mail.keys, "group")) == "passed"
    assert collect_all(mail)[-1] == "fired"
    assert received(mail) == (whole, ["succeeded"])
    assert leftovers(mail) == [mail.keys.join("group")]
    assert set(join_hash(mail)) == {"rule", "total", "ttl_ms", "fired"}
    assert {"piece", "size"}.isdisjoint(mail.hash("then-j"))
    assert mail.run(flows.passed(mail.keys, "group")) == collect(mail, "group") == "noted"
    assert mail.run(flows.passed(mail.keys, "nowhere")) == "gone"


def test_large_groups_beside_small_members_keep_their_order(mail):
    """Also a group in a group: it receives results in pieces, and passes them on in parts."""
    prepare(mail, "outer", total=5, rule="pass", task=False, onward=FAR)
    prepare(mail, total=2)
    wholes = [large_group(mail, "one"), large_group(mail, "two", members=9)]
    for name, member in (("two", 3), ("one", 1)):
        collect_to_pass(mail, name)
        assert pass_on(mail, name, "outer", member) == "noted"
    smalls = [(0, "succeeded", b"0"), (2, "succeeded", b""), (4, "succeeded", b'"four"')]
    assert arrive(mail, *smalls, join_id="outer") == "more"
    outer = b"[0," + wholes[0] + b",null," + wholes[1] + b',"four"]'

    collect_to_pass(mail, "outer")
    assert arrive(mail, (1, "succeeded", b"7")) == "noted"
    assert pass_on(mail, "outer", "j") == "more"
    collect_all(mail)
    assert received(mail) == (b"[" + outer + b",7]", ["succeeded", "succeeded"])


def test_pieces_are_taken_only_as_long_as_they_are_needed(mail):
    def bring(join_id, member=0):
        return mail.run(flows.join_arrive_part(mail.keys, join_id, member, 0, b"[1"))

    assert bring("nowhere") == "gone"
    prepare(mail, "unasked", results=b"[]")
    assert bring("unasked") == "noted"
    prepare(mail, total=2)
    assert bring("j") == bring("j") == "taken"
    arrive(mail, (0, "dead"))
    assert bring("j") == "taken"  # a dead member may be requeued, and succeed
    arrive(mail, (0, "succeeded", b"1"))
    assert bring("j") == "noted"
    arrive(mail, (1, "succeeded", b"2"))
    assert bring("j", 1) == "noted"
    assert mail.hash("then-j")["results"] == b"[1,2]"


def test_pieces_that_are_too_large_together_are_the_death_of_the_task(mail):
    prepare(mail, total=12)
    for n in range(12):
        large_group(mail, f"group{n}")
        collect_to_pass(mail, f"group{n}")
        word = pass_on(mail, f"group{n}", "j", n)
    assert word == "more"
    assert collect_all(mail)[-1] == "dead"


def test_a_slice_of_pieces_that_was_lost_is_collected_again(mail):
    prepare(mail, total=1, results=b"*")
    whole = large_group(mail, "group")
    collect_to_pass(mail, "group")
    pass_on(mail, "group", "j")
    assert collect(mail) == "more"
    mail.raw.delete(mail.keys.join("j") + b":collected")
    assert collect_all(mail)[-1] == "fired"
    assert received(mail) == (whole, ["succeeded"])


def in_pieces(mail, *pieces, total=1, member=0, **options):
    """A join whose last member arrives with its result in these pieces."""
    prepare(mail, total=total, **options)
    for number, piece in enumerate(pieces):
        assert mail.run(flows.join_arrive_part(mail.keys, "j", member, number, piece)) == "taken"
    return (member, "succeeded", flows.in_pieces(len(pieces), 100 * MIB))


def test_a_piece_that_is_a_slice_of_its_own_is_collected(mail):
    arrival = in_pieces(mail, b'"' + b"x" * MIB, b"y" * MIB, b'"')
    assert arrive(mail, arrival) == "more"
    assert collect_all(mail) == ["more"] * 3 + ["fired"]
    assert received(mail) == (b'["' + b"x" * MIB + b"y" * MIB + b'"]', ["succeeded"])


@pytest.mark.parametrize(("beyond", "slices"), [(0, 1), (1, 2)])
def test_a_slice_takes_pieces_up_to_its_bound_and_not_beyond(mail, beyond, slices):
    small = b'"' + b"x" * 100 + b'"'
    arrival = in_pieces(mail, b"", total=2, member=1)
    noted = len("succeeded:") + len(small) + len("succeeded:") + len(arrival[2])
    piece = b'"' + b"y" * (MIB - noted - 2 + beyond) + b'"'
    assert mail.run(flows.join_arrive_part(mail.keys, "j", 1, 0, piece)) == "taken"
    assert arrive(mail, (0, "succeeded", small), arrival) == "more"
    assert collect_all(mail) == ["more"] * slices + ["fired"]
    assert received(mail) == (b"[" + small + b"," + piece + b"]", ["succeeded"] * 2)


@pytest.mark.parametrize(("left", "word"), [(0, "more"), (-1, "dead")])
def test_pieces_are_read_up_to_the_limit_and_not_beyond(mail, left, word):
    """All results together may be 16 MiB; so many are collected that the second piece is the last, or too much."""
    arrival = in_pieces(mail, b'"' + b"x" * MIB, b"y" * 1000 + b'"')
    assert arrive(mail, arrival) == "more"
    assert collect(mail) == "more"
    read = 1001 + len("succeeded:") + len(arrival[2])
    mail.raw.hset(mail.keys.join("j") + b":collected", "size", 16 * MIB - read - left)
    assert collect(mail) == word


def test_a_broken_join_collects_nothing(mail):
    prepare(mail, total=1500, onward=FAR)
    assert fill(mail, 1500, last="dead") == "posted"
    assert collect(mail) == "noted"
    assert outbox(mail) == {f"dead:{FAR.decode()}": b""}


@pytest.mark.parametrize(("given", "brought"), [(b"[]", b"5"), (b"*", b'["' + b"x" * 2 * MIB + b'"]')])
def test_results_that_are_not_those_of_the_members(mail, given, brought):
    total = 1500 if given == b"[]" else 1
    prepare(mail, total=total, results=given)
    words = [arrive(mail, *((n, "succeeded", brought) for n in range(total)))]
    assert words == ["more"]
    assert collect_all(mail)[-1] == "fired"
    assert received(mail) == (b"[]" if given == b"[]" else brought, ["succeeded"] * total)


def too_large(mail, **options):
    prepare(mail, total=17, onward=FAR, **options)
    for n in range(17):
        word = arrive(mail, (n, "succeeded", b'"' + b"x" * MIB + b'"'))
    assert word == "more"
    return collect_all(mail)[-1]


def test_results_that_are_too_large_are_the_death_of_the_task(mail, audit):
    assert too_large(mail) == "dead"

    assert mail.ids("dead") == ["then-j"]
    assert mail.ids("waiting") == []
    assert mail.hash("then-j")["results"] == NOT_KEPT
    error = mail.hash("then-j")["error"].decode()
    assert "the results of the 17 steps before it are more than 16 MiB together: let them return less" in error
    assert outbox(mail) == {f"dead:{FAR.decode()}": b""}
    assert leftovers(mail) == []
    assert set(join_hash(mail)) == {"rule", "total", "ttl_ms", "fired"}
    assert arrive(mail, (0, "succeeded", b"0")) == collect(mail) == "noted"
    assert mail.totals() == {"enqueued": 1, "dead": 1}
    assert audit("mail")["dead"] == 1


def test_a_task_that_died_of_its_results_leaves_its_partition(mail):
    mail.configure(fair=1)
    assert too_large(mail) == "dead"

    names = (b"mail:partition:", b"mail:rotation:", b"mail:blocked", b"mail:unsure")
    assert [key for key in mail.raw.scan_iter(count=1000) if any(name in key for name in names)] == []


def test_what_is_collected_is_measured_with_its_outcomes(mail):
    prepare(mail, total=1500)
    fill(mail, 1500)
    for slices in (1, 2):
        assert collect(mail) == "more"
        held = mail.raw.hgetall(mail.keys.join("j") + b":collected")
        parts = [held[b"%s%d" % (kind, n)] for kind in (b"r", b"o") for n in range(slices)]
        assert int(held[b"size"]) == sum(map(len, parts))


@pytest.mark.parametrize(("left", "word"), [(3 * 500 + 2, "more"), (3 * 500 + 1, "dead")])
def test_what_stands_between_results_and_outcomes_counts_for_the_limit(mail, left, word):
    """Commas and quotes add 3 bytes to what is read of each of 500 members, and the closing brackets add 2."""
    prepare(mail, total=1500)
    fill(mail, 1500)
    assert collect(mail) == "more"
    read = sum(len(f'succeeded:{{"n":{n}}}') for n in range(1000, 1500))
    assert mail.raw.hset(mail.keys.join("j") + b":collected", "size", 16 * MIB - read - left) == 0
    assert collect(mail) == word


def test_who_waits_for_a_task_that_was_to_be_given_too_much_is_told(mail, raw):
    mail.raw.zadd(mail.keys.waiters, {"then-j": 1})
    with raw.pubsub() as ears:
        ears.subscribe(mail.keys.finished + b"then-j")
        ears.get_message(timeout=5)
        too_large(mail)
        assert ears.get_message(timeout=5)["data"] == b"dead"
    assert not mail.raw.exists(mail.keys.waiters)


def test_a_task_that_was_to_be_given_too_much_never_runs_as_if_there_was_nothing(mail):
    too_large(mail, delay_ms=60_000)
    assert mail.ids("scheduled") == []
    mail.run(tasks.requeue(mail.keys, ["then-j"]))
    with pytest.raises(json.JSONDecodeError):
        json.loads(mail.hash("then-j")["results"])
    assert mail.hash("then-j")["outcomes"] == b"[]"


def test_results_that_are_too_large_to_pass_on_are_a_death(mail):
    assert too_large(mail, rule="pass", task=False) == "posted"
    assert outbox(mail) == {f"dead:{FAR.decode()}": b""}
    assert leftovers(mail) == []
    assert arrive(mail, (0, "succeeded", b"0")) == collect(mail) == "noted"


def test_one_result_that_is_too_large_is_not_even_read(mail):
    prepare(mail, total=1)
    assert arrive(mail, (0, "succeeded", b'"' + b"x" * 17 * MIB + b'"')) == "more"
    assert collect(mail) == "dead"


def test_a_join_that_is_given_up_while_it_collects_leaves_nothing(mail):
    prepare(mail, total=1500, onward=FAR)
    fill(mail, 1500)
    collect(mail)
    assert mail.run(flows.abandon(mail.keys, "j")) == "posted"
    assert collect(mail) == arrive(mail, (1499, "succeeded", b"1")) == "noted"
    assert leftovers(mail) == mail.ids("waiting") == []


def test_what_is_collected_expires_with_the_join(mail):
    prepare(mail, total=1500, ttl_ms=60_000)
    fill(mail, 1500)
    collect(mail)
    assert len(leftovers(mail)) == 1
    assert all(0 < mail.raw.pttl(key) <= 60_000 for key in leftovers(mail))


def test_nothing_to_collect(mail):
    assert collect(mail) == "gone"
    prepare(mail)
    before = mail.snapshot()
    assert collect(mail) == "noted"
    assert mail.snapshot() == before
