"""periodic_set: a periodic job is added, replaced and removed at run time, unless another caller changed it."""

from jobrunner.broker.calls import leader as leader_calls


def test_a_definition_is_replaced_and_removed_only_as_it_was_read(broker, keys, raw):
    def change(expected, definition):
        return broker.run(
            leader_calls.set_added_periodic(keys, "a", expected=expected, definition=definition)
        ), broker.run(leader_calls.added_periodic(keys, "a"))

    assert change(b"", b"1") == ("set", b"1")
    assert change(b"", b"2") == ("changed", b"1")
    assert change(b"0", b"") == ("changed", b"1")
    assert change(b"1", b"3") == ("set", b"3")
    assert change(b"3", b"") == ("set", b"")
    assert change(b"3", b"4") == ("changed", b"")
    assert raw.get(keys.periodics_version) == b"3"
    assert raw.exists(keys.periodics_added) == 0


def test_others_stay(broker, keys):
    for name in ("a", "b"):
        broker.run(leader_calls.set_added_periodic(keys, name, expected=b"", definition=name.encode()))
    broker.run(leader_calls.set_added_periodic(keys, "a", expected=b"a", definition=b""))
    assert broker.run(leader_calls.added_periodics(keys)) == {"b": b"b"}
