"""Ends a test process that hangs where no signal reaches its test, so that a run ends with the name of the test.

pytest-timeout raises an error in the main thread, once. A test that catches it, a teardown that waits for ever, or an
interpreter that turns in circles goes on regardless, and with it a run of hours. The watchdog is a thread of
`faulthandler` that needs no interpreter: it writes the stacks of all threads to stderr and ends the process, and xdist
reports the test that ran in it as failed.

That ends the run (`--max-worker-restart 0`). With `loadgroup`, xdist 3.8 gives the tests of a process that died to
others that have nothing to do any more, does not wake them, and waits for ever.
"""

import faulthandler
import os
from collections.abc import Generator
from typing import IO

import pytest

_TRIES = 2  # a test may run a second time, see --reruns
_stderr: IO[str] | None = None


def pytest_addoption(parser: pytest.Parser) -> None:
    """The time a test has on top of its timeouts, for its teardown."""
    parser.addini("watchdog_grace", "seconds beyond the timeouts of a test before its process ends", default="60")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Keeps the true stderr, which pytest replaces while tests run."""
    global _stderr
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        _stderr = os.fdopen(os.dup(2), "w")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """The test with all its tries has twice its timeout, and `watchdog_grace` on top; without a timeout, no limit."""
    allowed = _timeout_s(item)
    if allowed and _stderr is not None and not item.config.getoption("usepdb"):
        allowed = _TRIES * allowed + float(item.config.getini("watchdog_grace"))
        faulthandler.dump_traceback_later(allowed, exit=True, file=_stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _timeout_s(item: pytest.Item) -> float:
    """The timeout that pytest-timeout applies: from the mark, the option or the setting."""
    mark = item.get_closest_marker("timeout")
    if mark and mark.args:
        return float(mark.args[0])
    option = item.config.getoption("timeout")
    return float(item.config.getini("timeout") or 0 if option is None else option)
