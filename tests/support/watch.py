"""The monotonic clock of some modules, moved by the test."""

from types import ModuleType

import pytest


class Watch:
    """In place of `monotonic`: it stands until the test changes `now`."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def stopped(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> Watch:
    """Has these modules read a clock that stands; it is the same for all of them."""
    made = Watch()
    for module in modules:
        monkeypatch.setattr(module, "monotonic", made)
    return made
