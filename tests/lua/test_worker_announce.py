"""worker_announce: the heartbeat of a worker, with its own description."""

from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import stats
from jobrunner.broker.calls.server import add_redacted_names
from jobrunner.broker.calls.stats import list_workers


def test_a_worker_is_listed_with_what_it_says_until_it_falls_silent(broker, keys, clock, raw):
    clock.set(1_700_000_000_000.25)

    broker.run(leader_calls.announce(keys, "w1", {"host": "h", "pid": 7}, ttl_ms=5000))

    assert broker.run(list_workers(keys)) == [("w1", {"host": b"h", "pid": b"7"})]
    assert 4000 < raw.pttl(keys.worker("w1")) <= 5000
    assert raw.zscore(keys.workers, "w1") == clock.ms


def test_the_next_sign_replaces_what_it_names_and_lasts_anew(broker, keys, clock, raw):
    clock.set()
    broker.run(leader_calls.announce(keys, "w1", {"host": "h", "busy": 1}, ttl_ms=5000))
    clock.advance(10)
    broker.run(leader_calls.announce(keys, "w1", {"busy": 2}, ttl_ms=9000))

    assert broker.run(list_workers(keys)) == [("w1", {"host": b"h", "busy": b"2"})]
    assert raw.pttl(keys.worker("w1")) > 5000
    assert raw.zscore(keys.workers, "w1") == clock.ms


def test_a_worker_that_retires_is_off_the_list(broker, keys, raw):
    broker.run(leader_calls.announce(keys, "w1", {"host": "h"}, ttl_ms=5000))
    broker.run_many(leader_calls.retire(keys, "w1"))

    assert not raw.exists(keys.workers, keys.worker("w1"))


def test_of_too_many_workers_those_with_the_latest_heartbeats_are_listed(broker, keys, clock, monkeypatch):
    monkeypatch.setattr(stats, "MOST_WORKERS", 2)
    clock.set()
    for name in ("w2", "w1", "w3"):
        broker.run(leader_calls.announce(keys, name, {"host": "h"}, ttl_ms=5000))
        clock.advance(10)

    assert [name for name, _ in broker.run(list_workers(keys))] == ["w3", "w1"]


def test_a_full_server_lists_a_new_worker(broker, keys, raw):
    raw.config_set("maxmemory", 1)
    try:
        broker.run(leader_calls.announce(keys, "w1", {"host": "h"}, ttl_ms=5000))
    finally:
        raw.config_set("maxmemory", 0)
    assert [name for name, _ in broker.run(list_workers(keys))] == ["w1"]


def test_the_worker_is_told_what_it_is_to_do(broker, keys):
    assert broker.run(leader_calls.announce(keys, "w1", {"host": "h"}, ttl_ms=5000)).commands == {}
    broker.run_many(leader_calls.order(keys, "w1", "quiet", "1", ttl_ms=5000))

    assert broker.run(leader_calls.announce(keys, "w1", {"host": "h"}, ttl_ms=5000)).commands == {"quiet": b"1"}


def test_the_worker_is_told_which_parameters_it_hides(broker, keys, raw):
    assert broker.run(leader_calls.announce(keys, "w1", {"host": "h"}, ttl_ms=5000)).redacted == []
    broker.run(add_redacted_names(keys, ["iban"]))
    assert broker.run(leader_calls.announce(keys, "w1", {"host": "h"}, ttl_ms=5000)).redacted == ["iban"]

    raw.delete(keys.redact)
    raw.set(keys.redact, "damage")
    assert broker.run(leader_calls.announce(keys, "w1", {"host": "h"}, ttl_ms=5000)).redacted is None


def test_the_worker_is_told_the_time_of_the_server_unless_a_clock_is_given(broker, keys, clock, raw):
    seconds, microseconds = raw.time()
    told = broker.run(leader_calls.announce(keys, "w1", {"host": "h"}, ttl_ms=5000)).server_ms
    assert 0 <= told - (seconds * 1000 + microseconds / 1000) < 60_000

    clock.set()
    assert broker.run(leader_calls.announce(keys, "w1", {"host": "h"}, ttl_ms=5000)).server_ms is None
