"""The classes for threads and their asyncio twins offer the same: names, kinds of members, parameters."""

import ast
import inspect
import textwrap
from typing import Any

import pytest

import jobrunner
from jobrunner import (
    AsyncClient,
    AsyncFlowHandle,
    AsyncLease,
    AsyncQueue,
    AsyncTaskHandle,
    Client,
    FlowHandle,
    Lease,
    Queue,
    TaskHandle,
)
from jobrunner.jobs.build import FunctionJob

PAIRS = [
    (Client, AsyncClient),
    (Queue, AsyncQueue),
    (Lease, AsyncLease),
    (TaskHandle, AsyncTaskHandle),
    (FlowHandle, AsyncFlowHandle),
]
ITERATORS = {"events"}
"""Returns an iterator in both, so that `async for` needs no `await`."""


def members(owner: type) -> dict[str, Any]:
    """The public members of a class, its own and inherited ones, unbound."""
    return {name: inspect.getattr_static(owner, name) for name in dir(owner) if not name.startswith("_")}


def kind(member: Any) -> str:
    if isinstance(member, property):
        return "property"
    if isinstance(member, classmethod):
        return "classmethod"
    return "method" if inspect.isfunction(member) else "attribute"


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize(("sync", "twin"), PAIRS)
def test_twins_have_the_same_public_members(sync: type, twin: type) -> None:
    ours, theirs = members(sync), members(twin)

    assert ours.keys() == theirs.keys()
    assert {name: kind(ours[name]) for name in ours} == {name: kind(theirs[name]) for name in ours}


@pytest.mark.parametrize(("sync", "twin"), PAIRS)
def test_twins_take_the_same_parameters_and_only_methods_are_awaited(sync: type, twin: type) -> None:
    theirs = members(twin)
    for name, member in members(sync).items():
        if kind(member) != "method":
            continue
        assert parameters(member) == parameters(theirs[name]), f"{sync.__name__}.{name}"
        assert not inspect.iscoroutinefunction(member), name
        if _reaches_the_server(member) and name not in ITERATORS:
            assert inspect.iscoroutinefunction(theirs[name]), f"{twin.__name__}.{name} is not awaited"


@pytest.mark.parametrize("twin", [twin for _, twin in PAIRS])
def test_no_property_of_a_twin_asks_the_server(twin: type) -> None:
    properties = [member.fget for member in members(twin).values() if isinstance(member, property)]
    assert not [one.__name__ for one in properties if _reaches_the_server(one)]


def test_every_public_class_with_a_twin_is_compared() -> None:
    public = {name for name in jobrunner.__all__ if f"Async{name}" in jobrunner.__all__}
    assert public == {sync.__name__ for sync, _ in PAIRS}


@pytest.mark.parametrize("owner", [jobrunner.Job, FunctionJob])
def test_a_job_is_enqueued_alike_by_threads_and_coroutines(owner: type) -> None:
    found = members(owner)
    assert parameters(found["enqueue"]) == parameters(found["aenqueue"])
    assert inspect.iscoroutinefunction(found["aenqueue"])


def _text(function: Any) -> str:
    return inspect.getsource(inspect.unwrap(function))


def _reaches_the_server(function: Any) -> bool:
    """Whether a method runs an operation or a call, directly or by another method of its class."""
    tree = ast.parse(textwrap.dedent(_text(function)))
    called = {node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
              for node in ast.walk(tree) if isinstance(node, ast.Call)}  # fmt: skip
    return bool(called & {"_run", "run", "run_many", "run_operation", "_enqueue", "enqueue_many", "_change"})
