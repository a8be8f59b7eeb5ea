"""The monotonic clock of some modules, moved by the test."""

from types import ModuleType

import pytest


class FakeClock:
    """Replaces `monotonic`: it returns the same time until the test changes `now`."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def stopped(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> FakeClock:
    """Makes all of these modules read one clock that only the test moves."""
    made = FakeClock()
    for module in modules:
        monkeypatch.setattr(module, "monotonic", made)
    return made
