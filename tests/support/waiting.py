"""Waits for facts instead of sleeping."""

import time
from collections.abc import Callable
from typing import Any


def wait_for(fact: Callable[[], Any], *, timeout_s: float = 30.0) -> Any:
    """Calls `fact` until it returns a true value, and returns that; fails the test after `timeout_s`."""
    ends = time.monotonic() + timeout_s
    while not (found := fact()):
        assert time.monotonic() < ends, f"waited {timeout_s:g} s in vain"
        time.sleep(0.002)
    return found
