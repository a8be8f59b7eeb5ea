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
