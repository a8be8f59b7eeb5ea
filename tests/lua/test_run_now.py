"""run_now: scheduled → waiting at once."""

import pytest

from jobrunner.broker.calls import tasks
from jobrunner.errors import ServerRefused


@pytest.mark.parametrize("denied", ["hset", "zadd", "zrem", "get", "set"])
def test_a_command_that_is_denied_half_way_loses_no_task(mail, weak_broker, denied):
    mail.enqueue("a", delay_ms=60_000)
    with pytest.raises(ServerRefused):
        weak_broker(f"-{denied}").run(tasks.run_now(mail.keys, ["a"]))
    assert (mail.ids("waiting"), mail.ids("scheduled")) == ([], ["a"])
    assert mail.run(tasks.run_now(mail.keys, ["a"])) == ["ok"]
    assert (mail.ids("waiting"), mail.ids("scheduled")) == (["a"], [])


def test_a_server_that_is_full_takes_it(mail):
    mail.enqueue("a", "b", delay_ms=60_000)
    mail.raw.config_set("maxmemory", 1)
    try:
        assert mail.run(tasks.run_now(mail.keys, ["a", "b"])) == ["ok", "ok"]
    finally:
        mail.raw.config_set("maxmemory", 0)


def test_its_place_is_that_of_its_priority_and_of_now_also_when_it_is_handed_back(mail):
    mail.enqueue("a", delay_ms=60_000)
    mail.enqueue("high", priority=2, delay_ms=60_000)
    mail.enqueue("b")
    assert mail.run(tasks.run_now(mail.keys, ["a", "high", "b"])) == ["ok", "ok", "not_scheduled"]
    mail.enqueue("c")
    assert mail.ids("waiting") == ["high", "b", "a", "c"]
    mail.release(*mail.reserve(3))
    assert mail.ids("waiting") == ["high", "b", "a", "c"]
