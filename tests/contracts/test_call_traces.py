"""The profiler behind the files-to-follow figures of `python -m tests.contracts.house` sees every action."""

import pytest

from tests.contracts.call_traces import TARGETS, trips


# Python 3.11.2 may turn in circles for ever under a profile function of a process that has run other tests.
@pytest.mark.slow
def test_every_action_is_followed_from_its_entry_to_the_server() -> None:
    found = trips(spark=False)

    assert set(found) == {action for action in TARGETS if "Spark" not in action}
    for action, files in found.items():
        assert "broker/broker.py" in files, action
        assert len(files) == len(set(files)) < 100, action
