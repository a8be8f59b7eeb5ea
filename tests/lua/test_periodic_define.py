"""periodic_define: a worker publishes the periodic jobs it knows, with the time it did so."""

from jobrunner.broker.calls import leader as leader_calls


def test_definitions_are_published_with_the_time(broker, keys, clock):
    clock.set(1_700_000_000_000.25)

    assert broker.run(leader_calls.define_periodics(keys, {"a": b"1", "b": b"2"})) == 2

    assert broker.run(leader_calls.periodics(keys)) == {"a": b"1", "b": b"2"}
    assert broker.run(leader_calls.periodics_seen(keys)) == {"a": clock.ms, "b": clock.ms}


def test_only_a_change_counts_as_one_but_the_time_goes_on(broker, keys, clock, raw):
    clock.set()
    broker.run(leader_calls.define_periodics(keys, {"a": b"1", "b": b"2"}))
    clock.advance(5)

    assert broker.run(leader_calls.define_periodics(keys, {"a": b"1"})) == 0
    assert broker.run(leader_calls.define_periodics(keys, {"b": b"3"})) == 1

    assert broker.run(leader_calls.periodics(keys)) == {"a": b"1", "b": b"3"}
    assert broker.run(leader_calls.periodics_seen(keys)) == {"a": clock.ms, "b": clock.ms}
    assert raw.get(keys.periodics_version) == b"2"


def test_a_definition_that_is_forgotten_leaves_nothing(broker, keys):
    broker.run(leader_calls.define_periodics(keys, {"a": b"1"}))
    broker.run_many(leader_calls.forget_periodic(keys, "a"))

    assert broker.run(leader_calls.periodics(keys)) == {}
    assert broker.run(leader_calls.periodics_seen(keys)) == {}


def test_a_worker_that_starts_on_a_full_server_says_what_it_knows(broker, keys, raw):
    raw.config_set("maxmemory", 1)
    try:
        assert broker.run(leader_calls.define_periodics(keys, {"a": b"1"})) == 1
    finally:
        raw.config_set("maxmemory", 0)
    assert broker.run(leader_calls.periodics(keys)) == {"a": b"1"}
