"""take_leadership: takes or renews leadership; every taking of it gets a new, higher epoch: the time at least."""

import pytest

from jobrunner.broker.calls import leader as leader_calls

FIRST = 1_700_000_000_000  # the clock that is set


@pytest.fixture
def lead(broker, keys, clock):
    clock.set()
    return lambda worker, ttl_ms=10_000, **options: broker.run(
        leader_calls.take_leadership(keys, worker, ttl_ms=ttl_ms, **options)
    )


def test_the_first_who_asks_leads(lead, raw, keys, clock):
    answer = lead("w1")

    assert (answer.now_ms, answer.epoch, answer.ends_in_ms) == (clock.ms, FIRST, 10_000)
    assert raw.hgetall(keys.leader) == {b"worker": b"w1", b"epoch": b"1700000000000", b"ttl_ms": b"10000"}
    assert 9000 < raw.pttl(keys.leader) <= 10_000


def test_the_leader_renews_and_keeps_its_epoch(lead, raw, keys):
    lead("w1", 10_000)

    assert (lead("w1", 20_000).epoch, lead("w1", 20_000).ends_in_ms) == (FIRST, 20_000)
    assert raw.pttl(keys.leader) > 10_000


def test_another_hears_how_long_the_lock_lasts(lead, raw, keys):
    lead("w1", 10_000)
    before = raw.hgetall(keys.leader)

    answer = lead("w2", 99_000)
    assert answer.epoch == 0
    assert 0 < answer.ends_in_ms <= 10_000
    assert raw.hgetall(keys.leader) == before
    assert raw.pttl(keys.leader) <= 10_000


def test_a_new_leader_has_a_higher_epoch(lead, raw, keys):
    lead("w1")
    raw.delete(keys.leader)  # what happens when it falls silent

    assert lead("w2").epoch == FIRST + 1
    assert lead("w1").epoch == 0


def test_an_epoch_is_higher_than_those_of_keys_that_the_server_lost(lead, raw, keys, clock):
    """Periodic jobs on other nodes of a cluster note it."""
    lead("w1")
    lead("w1", resign=True)
    before = lead("w1").epoch
    raw.delete(keys.leader, keys.epoch)
    clock.advance(1000.75)

    assert lead("w2").epoch == FIRST + 1000 > before
    assert raw.hget(keys.leader, "epoch") == raw.get(keys.epoch) == b"1700000001000"


def test_an_epoch_is_higher_than_the_one_before_when_the_clock_steps_back(lead, raw, keys, clock):
    lead("w1")
    raw.delete(keys.leader)
    clock.advance(-3_600_000)

    assert lead("w2").epoch == FIRST + 1
    assert raw.get(keys.epoch) == b"1700000000001"


@pytest.mark.parametrize("damaged", ["word", "nan"])
def test_a_damaged_epoch_is_replaced(lead, raw, keys, damaged):
    raw.set(keys.epoch, damaged)

    assert lead("w1").epoch == FIRST


def test_a_leader_resigns_and_the_next_may_lead_at_once(lead, raw, keys):
    lead("w1")

    assert lead("w1", resign=True).epoch == 0
    assert not raw.exists(keys.leader)
    assert lead("w2").epoch == FIRST + 1


def test_only_the_leader_can_resign(lead, raw, keys):
    lead("w1")
    lead("w2", resign=True)
    assert raw.hget(keys.leader, "worker") == b"w1"


def test_to_resign_takes_no_leadership(lead, raw, keys):
    assert lead("w1", resign=True).epoch == 0
    assert raw.keys(f"{keys.prefix}:*") == []


def test_a_lock_without_an_end_is_taken_over(lead, raw, keys):
    lead("w1")
    raw.persist(keys.leader)

    assert lead("w2").epoch == FIRST + 1
    assert raw.pttl(keys.leader) > 0
    raw.persist(keys.leader)
    raw.hdel(keys.leader, "epoch")
    assert lead("w3").epoch == FIRST + 2, "whatever else is damaged"


@pytest.mark.parametrize(
    ("lasts_ms", "epoch"), [(39_000, 0), (41_000, FIRST + 1)], ids=["as it was set", "by a clock ahead"]
)
def test_a_lock_that_lasts_longer_than_it_was_set_to_is_taken_over(lead, raw, keys, lasts_ms, epoch):
    lead("w1", 10_000)
    lead("w1", 20_000)  # the length of its last renewal counts
    raw.pexpire(keys.leader, lasts_ms)  # as the lock of a dead leader after the server's clock stepped back

    assert lead("w2", 10_000).epoch == epoch
    assert (raw.pttl(keys.leader) <= 10_000) == bool(epoch)


def test_a_leader_keeps_its_own_lock_when_the_clock_steps_back(lead, raw, keys):
    lead("w1")
    raw.pexpire(keys.leader, 3_600_000)

    assert lead("w1").epoch == FIRST
    assert raw.pttl(keys.leader) <= 10_000


def test_the_lock_of_a_release_that_did_not_note_its_length_is_kept(lead, raw, keys):
    lead("w1")
    raw.hdel(keys.leader, "ttl_ms")
    raw.pexpire(keys.leader, 3_600_000)

    assert lead("w2").epoch == 0


def test_a_lock_without_an_epoch_leads_nobody(lead, raw, keys):
    lead("w1")
    raw.hdel(keys.leader, "epoch")

    assert lead("w1").epoch == 0


def test_the_version_of_the_periodic_jobs_is_told(lead, broker, keys):
    assert lead("w1").version == 0
    broker.run(leader_calls.define_periodics(keys, {"tick": b"{}"}))
    assert (lead("w1").version, lead("w2").version) == (1, 1)


def test_a_full_server_gets_a_leader(lead, raw, keys):
    raw.config_set("maxmemory", 1)
    try:
        assert lead("w1").epoch == FIRST
    finally:
        raw.config_set("maxmemory", 0)
    assert raw.hget(keys.leader, "worker") == b"w1"
