"""Errors cross processes: a multiprocessing.Pool whose worker raises one that cannot be unpickled hangs for ever."""

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobrunner import Cancel, Fail, Retry, Snooze, errors
from jobrunner.errors import DuplicateTask, JobrunnerError, LeaseLost, QueueFull, ReportsRefused, TargetFull

OF_ATTRIBUTES: dict[type[Exception], Callable[[], Exception]] = {
    DuplicateTask: lambda: DuplicateTask("two are there", "a", ["a", "b"]),
    QueueFull: lambda: QueueFull("full", 3, queue="mail", max_size=5),
    TargetFull: lambda: TargetFull("full", 2, queue="out"),
    ReportsRefused: lambda: ReportsRefused([True, LeaseLost("another has it"), False]),
    Retry: lambda: Retry("later", in_=3),
    Snooze: lambda: Snooze(in_=4),
    Fail: lambda: Fail("wrong", retry=False),
    Cancel: lambda: Cancel("not wanted"),
}


def classes(root: type[JobrunnerError] = JobrunnerError) -> Iterator[type[JobrunnerError]]:
    for one in [root, *(below for each in root.__subclasses__() for below in classes(each))]:
        if one.__module__ == errors.__name__:
            yield one


def attributes(error: BaseException) -> Any:
    return {name: repr(value) for name, value in vars(error).items()}


@pytest.mark.parametrize("way", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", dict.fromkeys([*classes(), *OF_ATTRIBUTES]), ids=lambda kind: kind.__name__)
def test_an_error_is_the_same_in_another_process(kind: type[Exception], way: Callable[[Any], Any]) -> None:
    error = OF_ATTRIBUTES.get(kind, lambda: kind("what was wrong"))()
    error.add_note("and where")
    there = way(error)
    assert type(there) is kind
    assert str(there) == str(error)
    assert attributes(there) == attributes(error)
