"""Calls about archives of history: their writer, the open window, and up to when queues are archived."""

from typing import Any

import pytest

from jobrunner.broker.calls.archives import close_window, hold, holder, keep, let_go, open_window, state

A = "0123456789abcdef"


@pytest.fixture(params=[0, 1], ids=["with room", "full"])
def server_of(request: Any, raw: Any) -> Any:
    """The server has room, or is at its maxmemory: an archive that is trimmed is how one frees it."""
    raw.config_set("maxmemory", request.param)
    yield
    raw.config_set("maxmemory", 0)


@pytest.mark.usefixtures("server_of")
def test_a_run_is_noted_from_its_claim_to_its_end(broker: Any, keys: Any, raw: Any) -> None:
    run = broker.run
    assert run(hold(keys, A, "ours", ttl_ms=60_000))
    before = raw.pttl(keys.archive(A) + b":holder")
    assert not run(hold(keys, A, "theirs", ttl_ms=600_000))
    assert run(holder(keys, A)) == "ours"
    assert 0 < raw.pttl(keys.archive(A) + b":holder") <= before, "its time goes on"
    assert run(keep(keys, A, ttl_ms=60_000))

    assert run(open_window(keys, A, b"[1]"))
    assert not run(open_window(keys, A, b"[2]"))
    assert run(state(keys, A)) == (b"[1]", {})
    for _ in range(2):  # repeated when the reply was lost
        broker.run_many(close_window(keys, A, {"mail": 5.0}))
        assert run(state(keys, A)) == (None, {"mail": 5.0})
    assert run(let_go(keys, A))
    assert run(holder(keys, A)) == ""
