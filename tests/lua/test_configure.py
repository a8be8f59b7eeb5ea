"""configure: sets and removes settings of a queue in one step."""

import pytest

from jobrunner.broker.calls import queues


def test_fields_are_set_and_removed_and_the_others_stay(mail):
    mail.run(queues.configure(mail.keys, {"keepalive_ms": 5000, "max_attempts": 3}))
    mail.run(queues.configure(mail.keys, {"max_attempts": "", "dead_max": 7}))

    assert mail.run(queues.settings(mail.keys)) == {"keepalive_ms": b"5000", "dead_max": b"7"}


def test_a_sleeper_is_woken(mail):
    mail.run(queues.configure(mail.keys, {"paused": ""}))

    assert mail.wakes()
    assert not mail.raw.exists(mail.keys.settings)


@pytest.mark.parametrize("by", ["", "ada"])
def test_a_full_server_can_be_told_to_pause_a_queue(mail, by):
    mail.raw.config_set("maxmemory", 1)
    try:
        mail.run(queues.configure(mail.keys, {"paused": 1}, by=by))
    finally:
        mail.raw.config_set("maxmemory", 0)
    assert mail.run(queues.settings(mail.keys)) == {"paused": b"1"}


PARTITIONED = {"key_inflight": 2, "key_tokens": 2, "fair": 1}


def settings_after(mail, **fields):
    mail.run(queues.configure(mail.keys, fields))
    return mail.run(queues.settings(mail.keys)).keys()


@pytest.mark.parametrize("kept", PARTITIONED)
def test_tasks_leave_their_partitions_when_the_last_setting_that_makes_some_is_gone(mail, kept):
    assert "parked" not in settings_after(mail, key_interval_us=1000)
    assert "parked" not in settings_after(mail, **PARTITIONED)
    assert "parked" not in settings_after(mail, **dict.fromkeys(PARTITIONED.keys() - {kept}, ""))
    assert "parked" in settings_after(mail, **{kept: ""}), "the interval alone makes no partitions"


def test_a_queue_that_had_no_partitions_has_none_to_leave(mail):
    settings_after(mail, key_interval_us=1000)
    assert not settings_after(mail, key_interval_us="", max_inflight=3) & {"parked", "recheck"}


@pytest.mark.parametrize(
    "change", [{"key_inflight": 3}, {"key_tokens": 4}, {"key_interval_us": 3}, {"key_inflight": ""}], ids=str
)
def test_partitions_are_looked_at_once_after_a_limit_of_theirs_was_changed(mail, change):
    settings_after(mail, fair=1, key_inflight=2, key_tokens=3, key_interval_us=1000)
    mail.enqueue("a", key="k")
    assert "recheck" in settings_after(mail, **change)
    mail.reserve()
    assert "recheck" not in mail.run(queues.settings(mail.keys))


def test_counts_of_leases_go_with_the_limit_that_needs_them(mail):
    settings_after(mail, fair=1, key_inflight=2)
    mail.enqueue("a", key="k")
    mail.reserve()
    counts = [mail.keys.waiting.removesuffix(b"waiting") + name for name in (b"holders", b"inflight")]
    settings_after(mail, key_inflight=3)
    assert mail.raw.exists(*counts) == 2
    settings_after(mail, key_inflight="")
    assert mail.raw.exists(*counts) == 0


def test_a_change_by_hand_is_noted_with_the_whole_millisecond(mail, clock):
    clock.set(1_700_000_000_000.75)
    mail.run(queues.configure(mail.keys, {"dead_max": 7}, by="ada"))
    assert mail.raw.hget(mail.keys.declared, "by:dead_max") == b"1700000000000 ada"


def test_an_instant_from_now_is_stored_as_one(mail, clock):
    mail.run(queues.configure(mail.keys, {"paused": "+500"}))
    assert mail.run(queues.settings(mail.keys)) == {"paused": b"%d" % (clock.ms + 500)}
