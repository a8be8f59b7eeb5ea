"""register: notes the format where there is none, and adds queues to the registry that are not in it."""

import pytest

from jobrunner.broker.calls.queues import register_queues
from jobrunner.broker.calls.server import FORMAT, OLDEST
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.records import queue_names
from jobrunner.errors import NewerFormat, OlderFormat


def test_what_is_missing_is_noted_and_what_is_there_stays(broker, keys, raw):
    raw.sadd(keys.queues, "other", "a")
    for _ in range(2):
        broker.run(register_queues(keys, ["a", "b/c"]))

    assert run_operation(broker, queue_names(keys)) == ["a", "b/c", "other"]
    assert raw.get(keys.format) == b"%d" % FORMAT


@pytest.mark.parametrize(("there", "is_unused"), [(None, True), ("format", False), ("queues", False)])
def test_a_prefix_is_unused_when_neither_format_nor_queue_was_there(broker, keys, raw, there, is_unused):
    if there == "format":
        raw.set(keys.format, FORMAT)
    elif there:
        raw.sadd(keys.queues, "a")
    assert broker.run(register_queues(keys, ["a"])) is is_unused


def test_what_was_lost_is_there_again(broker, keys, raw):
    broker.run(register_queues(keys, ["a", "b"]))
    raw.srem(keys.queues, "a")
    raw.delete(keys.format)
    broker.run(register_queues(keys, ["a", "b"]))

    assert run_operation(broker, queue_names(keys)) == ["a", "b"]
    assert raw.exists(keys.format)


def test_where_all_is_there_nothing_is_written(broker, keys, weak_broker):
    broker.run(register_queues(keys, ["a"]))

    weak_broker("-@write").run(register_queues(keys, ["a"]))
    assert run_operation(broker, queue_names(keys)) == ["a"]


def test_a_newer_format_is_told_of_and_left_alone(broker, keys, raw):
    raw.set(keys.format, FORMAT + 1)
    with pytest.raises(NewerFormat, match=f"format {FORMAT + 1}"):
        broker.run(register_queues(keys, ["a"]))

    assert raw.get(keys.format) == b"%d" % (FORMAT + 1)


def test_an_older_format_is_told_of_and_not_raised(broker, keys, raw):
    raw.set(keys.format, OLDEST - 1)
    with pytest.raises(OlderFormat, match=f"format {OLDEST - 1}"):
        broker.run(register_queues(keys, []))

    assert raw.get(keys.format) == b"%d" % (OLDEST - 1)


@pytest.mark.parametrize("rule", ["-get", "-setnx", "-sadd", "-sismember", "-evalsha"])
def test_a_user_who_may_not_is_no_trouble(keys, raw, weak_broker, rule):
    weak_broker(rule).run(register_queues(keys, ["a"]))

    assert raw.exists(keys.format) + raw.exists(keys.queues) == (rule != "-evalsha")


def test_damage_is_no_trouble_and_a_full_server_none_either(broker, keys, raw):
    raw.lpush(keys.format, "x")
    raw.set(keys.queues, "x")
    broker.run(register_queues(keys, ["a"]))
    raw.delete(keys.format, keys.queues)

    raw.config_set("maxmemory", 1)
    try:
        broker.run(register_queues(keys, ["a"]))
    finally:
        raw.config_set("maxmemory", 0)
    broker.run(register_queues(keys, ["a"]))
    assert run_operation(broker, queue_names(keys)) == ["a"]
