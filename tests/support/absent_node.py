"""A node of a cluster that is away, played on one server: calls about its keys have no answer, others have theirs."""

from collections.abc import Callable
from typing import Any

import pytest

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import key_of
from jobrunner.errors import ServerUnavailable


def take_away(broker: Broker, monkeypatch: pytest.MonkeyPatch, is_away: Callable[[bytes], bool]) -> None:
    """From then on calls of this driver whose key `is_away` end with ServerUnavailable. As on a cluster, the error is
    raised when no other call of the exchange has an answer."""
    replies = broker._replies

    def replies_of_others(calls: Any, *meanwhile: Any) -> list[Any]:
        missing = [is_away(key_of(call) or b"") for call in calls]
        there = [call for call, is_missing in zip(calls, missing, strict=True) if not is_missing]
        error = ServerUnavailable("node h:1 of the cluster does not answer")
        if calls and not there:
            raise error
        found = iter(replies(there, *meanwhile))
        return [error if is_missing else next(found) for is_missing in missing]

    monkeypatch.setattr(broker, "_replies", replies_of_others)
