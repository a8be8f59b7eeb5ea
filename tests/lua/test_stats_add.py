"""observe, sample, stats: counts and measurements by minute, by hour, and since the prefix exists."""

import pytest

from jobrunner.broker.calls import stats as stats_calls
from jobrunner.broker.calls.queues import QueueCounts, counts
from jobrunner.errors import ServerError

NOW_MS = 1_700_000_000_000.0
MINUTE = int(NOW_MS // 60_000)


@pytest.fixture
def hashes(keys):
    return keys.stats_of_minute(MINUTE), keys.stats_of_hour(MINUTE // 60), keys.stats_total


def observe(broker, keys, changes, *, first=1, writer="w1", now_ms=NOW_MS):
    return [broker.run(call) for call in stats_calls.observe(keys, now_ms, writer, first, changes)]


def figures_in(raw, key):
    return {name.decode(): int(value) for name, value in raw.hgetall(key).items() if not name.startswith(b"#")}


def test_what_was_counted_is_added_to_minute_hour_and_total(broker, keys, raw, hashes):
    observe(broker, keys, {"mail send succeeded": 2}, first=1)
    observe(broker, keys, {"mail send succeeded": 3, "mail send failed": 1}, first=2)

    for key in hashes:
        assert figures_in(raw, key) == {"mail send succeeded": 5, "mail send failed": 1}


def test_each_ends_with_its_step_and_the_total_does_not(broker, keys, raw, hashes):
    observe(broker, keys, {"mail send succeeded": 1})
    observe(broker, keys, {"mail send succeeded": 1}, first=2, now_ms=NOW_MS + 60_000)

    assert 89_990 < raw.ttl(hashes[0]) <= 90_000
    assert 2_764_790 < raw.ttl(hashes[1]) <= 2_764_800
    assert raw.ttl(hashes[2]) == -1
    assert figures_in(raw, hashes[0]) == figures_in(raw, keys.stats_of_minute(MINUTE + 1))
    assert figures_in(raw, hashes[1]) == {"mail send succeeded": 2}


def test_the_same_report_again_adds_nothing(broker, keys, raw, hashes):
    assert observe(broker, keys, {"mail send succeeded": 2}) == [1]
    assert observe(broker, keys, {"mail send succeeded": 2}) == [0]
    assert observe(broker, keys, {"mail send succeeded": 2}, writer="w2") == [1]

    assert figures_in(raw, hashes[2]) == {"mail send succeeded": 4}


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_report_is_noted_everywhere_or_nowhere(broker, keys, raw, hashes, damaged):
    raw.set(hashes[damaged], "of another type")

    for _ in range(2):
        with pytest.raises(ServerError, match="WRONGTYPE"):
            observe(broker, keys, {"mail send succeeded": 2})

    assert not any(raw.exists(key) for key in hashes if key != hashes[damaged])


def test_many_fields_go_in_slices_each_with_a_number_of_its_own(broker, keys, raw, hashes):
    many = {f"mail job{n} succeeded": n + 1 for n in range(900)}

    assert observe(broker, keys, many) == [1, 1, 1]
    assert observe(broker, keys, many) == [0, 0, 0]
    assert figures_in(raw, hashes[2]) == many


def test_the_fields_of_a_job_are_in_one_slice(broker, keys, raw, hashes):
    """Retries are failed - dead: a reader between two slices must not find one of them alone."""
    many = {f"mail job{n} succeeded": 1 for n in range(399)} | {"mail send failed": 3, "mail send dead": 3}

    first, second = stats_calls.observe(keys, NOW_MS, "w1", 1, many)
    broker.run(first)
    assert len(figures_in(raw, hashes[2])) == 399
    broker.run(second)
    assert figures_in(raw, hashes[2]) == many


def test_a_job_with_more_fields_than_a_slice_has_several(broker, keys, raw, hashes):
    many = {"mail job succeeded": 1} | {f"mail send run:{n}": 1 for n in range(900)}

    assert observe(broker, keys, many) == [1, 1, 1, 1]
    assert figures_in(raw, hashes[2]) == many


def test_only_what_is_of_the_queue_or_the_job_is_read(broker, keys, raw, hashes):
    changes = {"mail send succeeded": 1, "mail  moved": 2, "shop/raw send failed": 3, "mail odd name dead": 4}
    observe(broker, keys, {**changes, "- - round_trip:3": 5})

    def read(**wanted):
        (call,) = stats_calls.read(hashes[:1], **wanted)
        return broker.run(call)[0]

    assert read() == {name: str(by) for name, by in {**changes, "- - round_trip:3": 5}.items()}
    assert set(read(queue="shop/raw")) == {"shop/raw send failed"}
    assert set(read(type="send")) == {"mail send succeeded", "shop/raw send failed", "- - round_trip:3"}
    assert set(read(queue="mail", type="odd name")) == {"mail odd name dead"}


def test_with_a_queue_its_shards_are_read_and_whether_the_leader_sampled(broker, keys, raw, hashes):
    observe(broker, keys, {"mail send dead": 1, "mail@3 send dead": 2, "mails@3 send dead": 4, "mail@x send dead": 8})
    raw.hset(hashes[0], "#sampled", 1)
    (call,) = stats_calls.read(hashes[:1], queue="mail")
    assert broker.run(call)[0] == {"mail send dead": "1", "mail@3 send dead": "2", "#sampled": "1"}


def test_hashes_are_read_twenty_at_a_time_in_order(broker, keys):
    observe(broker, keys, {"mail send succeeded": 1})
    wanted = [keys.stats_of_minute(MINUTE - 21 + n) for n in range(22)]

    calls = stats_calls.read(wanted)

    assert len(calls) == 2
    found = [one for reply in broker.run_many(calls) for one in reply]
    assert found == [{}] * 21 + [{"mail send succeeded": "1"}]


def test_a_field_is_taken_apart_as_it_was_made():
    for parts in [("mail", "send", "run:3"), ("shop/raw", "", "moved"), ("mail", "a b", "dead")]:
        assert stats_calls.parts_of(stats_calls.field_of(*parts)) == parts
    assert stats_calls.parts_of("#sampled") is None


def test_every_time_has_its_bucket():
    for n in range(1, stats_calls.BUCKETS - 1):
        lower, upper = stats_calls.BOUNDS_MS[n - 1], stats_calls.BOUNDS_MS[n]
        assert stats_calls.bucket(lower) == stats_calls.bucket(upper * 0.999999) == n
    assert stats_calls.bucket(0.0) == stats_calls.bucket(0.999) == 0
    assert stats_calls.bucket(1e12) == stats_calls.BUCKETS - 1


def sample(broker, keys, now_ms, **found: QueueCounts):
    return broker.run(stats_calls.sample(keys, now_ms, found))


def of(waiting=0, dead=0, **totals):
    return QueueCounts(waiting=waiting, scheduled=0, pending=0, dead=dead, done=0, paused=False, totals=totals)


def words(raw, key):
    return {name.decode(): value.decode() for name, value in raw.hgetall(key).items()}


def test_a_sample_says_how_deep_queues_are_and_from_where_to_where_their_totals_grew(broker, keys, raw, hashes):
    sample(broker, keys, NOW_MS - 60_000, mail=of(enqueued=7))
    sample(broker, keys, NOW_MS, mail=of(waiting=4, dead=1, enqueued=9, succeeded=2))

    found = words(raw, hashes[0])
    assert found["mail - depth"] == "4 0 0 1"
    assert found["mail - from"].split()[:2] == ["7", "0"]
    assert found["mail - to"].split()[:2] == ["9", "2"]
    assert found["#sampled"] == f"{NOW_MS:.0f}"
    assert words(raw, hashes[1])["mail - from"].split()[:2] == ["7", "0"]


def test_the_first_sample_of_all_is_where_growth_begins_and_new_queues_begin_at_zero(broker, keys, raw, hashes):
    sample(broker, keys, NOW_MS - 60_000, mail=of(waiting=1, enqueued=7))
    sample(broker, keys, NOW_MS, mail=of(waiting=1, enqueued=7), new=of(waiting=3, enqueued=3))

    first = words(raw, keys.stats_of_minute(MINUTE - 1))
    assert first["mail - from"] == first["mail - to"]
    assert words(raw, hashes[0])["new - from"] == "0"


def test_growth_that_nobody_looked_at_for_an_hour_is_left_out(broker, keys, raw, hashes):
    sample(broker, keys, NOW_MS - 3_600_001, mail=of(waiting=1, enqueued=7))
    sample(broker, keys, NOW_MS, mail=of(waiting=1, enqueued=900))

    found = words(raw, hashes[0])
    assert found["mail - from"] == found["mail - to"]


def test_a_queue_that_rests_costs_nothing(broker, keys, raw, hashes):
    assert sample(broker, keys, NOW_MS - 60_000, mail=of(enqueued=7)) == 1
    assert sample(broker, keys, NOW_MS, mail=of(enqueued=7)) == 0

    assert words(raw, hashes[0]) == {"#sampled": f"{NOW_MS:.0f}"}


def test_counts_of_a_queue_are_what_is_sampled(broker, keys, mail, raw, hashes):
    mail.fail(mail.lease("c"), fate="dead")
    mail.enqueue("a", "b")
    found = broker.run(counts(mail.keys))

    broker.run(stats_calls.sample(keys, NOW_MS, {"mail": found}))

    said = words(raw, hashes[0])
    assert said["mail - depth"] == " ".join(map(str, (found.waiting, found.scheduled, found.pending, found.dead)))
    assert said["mail - to"].split()[0] == "3"


@pytest.mark.parametrize("gap_ms", [3_600_000, 3_600_001])
def test_samples_an_hour_apart_still_tell_of_the_growth_between(broker, keys, raw, hashes, gap_ms):
    sample(broker, keys, NOW_MS - gap_ms, mail=of(waiting=1, enqueued=7))
    sample(broker, keys, NOW_MS, mail=of(waiting=1, enqueued=900))
    assert words(raw, hashes[0])["mail - from"].split()[0] == ("7" if gap_ms == 3_600_000 else "900")


def test_samples_of_one_minute_keep_where_it_began_and_end_with_their_step(broker, keys, raw, hashes):
    for step, enqueued in enumerate((7, 8, 9)):
        sample(broker, keys, NOW_MS + step, mail=of(enqueued=enqueued))

    for key, keep_s in zip(hashes[:2], (90_000, 2_764_800), strict=True):
        found = words(raw, key)
        assert [found[f"mail - {name}"].split()[0] for name in ("from", "to", "depth")] == ["7", "9", "0"]
        assert keep_s - 10 < raw.ttl(key) <= keep_s
    assert raw.ttl(keys.stats_sampled) == -1
    assert words(raw, keys.stats_sampled)["mail"].split()[0] == "9"


def test_a_queue_of_any_depth_is_noted_also_when_its_totals_rest(broker, keys):
    for depth in ({"waiting": 10}, {"dead": 1}, {"waiting": 9}, {"waiting": 5}):
        assert sample(broker, keys, NOW_MS, mail=of(**depth, enqueued=7)) == 1
    assert sample(broker, keys, NOW_MS, mail=of(enqueued=7)) == 0
