"""`import jobrunner` has the names of `public.py`, each imported from its module when it is first used."""

import dataclasses
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import jobrunner
import jobrunner.public
import jobrunner.types
from jobrunner.settings import ClientOptions
from jobrunner.task_record import TaskRecord
from jobrunner.worker.settings import WorkerOptions
from tests.contracts.sources import ROOT, source
from tests.support.server import Server


def test_names_and_modules_are_those_of_the_list() -> None:
    listed = {name: origin for origin, names in source(ROOT / "jobrunner" / "public.py").froms for name in names}

    assert {name: f"jobrunner.{origin}" for name, origin in jobrunner._MODULES.items()} == listed
    assert jobrunner.__all__ == jobrunner.public.__all__
    assert set(jobrunner.__all__) <= set(dir(jobrunner))
    for name in jobrunner.__all__:
        assert getattr(jobrunner, name) is getattr(jobrunner.public, name)


def test_a_name_that_there_is_not_is_named() -> None:
    with pytest.raises(AttributeError, match="module 'jobrunner' has no name 'Jobs'"):
        jobrunner.Jobs  # noqa: B018
    assert not hasattr(jobrunner, "__wrapped__")


@pytest.mark.parametrize(("name", "package"), [*jobrunner._ELSEWHERE.items(), ("TaskFailed", "errors")])
def test_a_name_of_another_module_is_named_with_it(name: str, package: str) -> None:
    with pytest.raises(AttributeError, match=f"write from jobrunner.{package} import {name}"):
        getattr(jobrunner, name)
    assert hasattr(import_module(f"jobrunner.{package}"), name)


def test_the_names_for_completion_are_those_of_the_list_and_modules() -> None:
    names = {name for name in dir(jobrunner) if not name.startswith("__")}

    assert names - set(jobrunner.__all__) <= {Path(one).stem for one in Path(jobrunner.__path__[0]).iterdir()}


HEAVY = (
    "asyncio", "click", "croniter", "email", "json", "multiprocessing",
    "opentelemetry", "prometheus_client", "pyspark", "redis", "rich", "ssl", "structlog",
)  # fmt: skip
"""What no program imports before it uses it."""


def imported_by(program: str) -> list[str]:
    """The modules in a new process after these lines."""
    lines = f"import sys\n{program}\nprint(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    return told.stdout.split()


def heavy(modules: list[str]) -> list[str]:
    """The packages among them that should not be there."""
    return sorted({one.partition(".")[0] for one in modules} & set(HEAVY))


def test_a_program_that_only_enqueues_imports_little(server: Server) -> None:
    modules = imported_by(
        "from jobrunner import Client, Job, Unique, configure, job\n"
        "@job\n"
        "def add(a: int, b: int) -> int: return a + b\n"
        f"with configure({server.url!r}, 'thrift'): add.enqueue(1, 2)"
    )

    assert heavy(modules) == []
    others = ("jobrunner.worker", "jobrunner.cli.", "jobrunner.client.queue", "jobrunner.broker.embedded", "zoneinfo")
    assert [one for one in modules if one.startswith(others)] == []
    assert len([one for one in modules if one.startswith("jobrunner.")]) <= 71


def test_the_lease_keeper_imports_next_to_nothing() -> None:
    """It lives beside each worker, so what it imports counts twice."""
    modules = imported_by("import jobrunner.worker.lease_keeper.keeper_process")

    assert heavy(modules) == []
    others = ("jobrunner.client", "jobrunner.jobs", "jobrunner.coordinator", "jobrunner.worker.run", "subprocess")
    assert [one for one in modules if one.startswith(others)] == []
    assert len([one for one in modules if one.startswith("jobrunner.")]) <= 34


def test_a_worker_of_threads_imports_neither_redis_py_nor_asyncio() -> None:
    assert heavy(imported_by("from jobrunner import Worker; Worker")) == []


TUNING = {"poll", "prefetch_time", "batch_max", "leader_ttl", "sweep", "forget_queues"}
"""Options of a worker that its docstring calls intervals that need no change."""


@pytest.mark.parametrize(
    ("described", "options"), [(jobrunner.Client, ClientOptions), (jobrunner.Worker, WorkerOptions)]
)
def test_help_of_a_class_names_the_options_that_it_takes(described: type, options: Any) -> None:
    """`**options: Unpack[ClientOptions]` was all that `help(jobrunner.Client)` said of them."""
    text = inspect.getdoc(described) or ""
    assert [name for name in options.__annotations__ if f"`{name}`" not in text and name not in TUNING] == []


def test_help_of_a_handle_names_the_members_of_a_record() -> None:
    """The reference has no record, so nothing said what `task.record()` gives."""
    inner = {"fields", "unread", "after", "tag", "is_encrypted", "has_encrypted_result", "placeholder"}
    text = inspect.getdoc(jobrunner.TaskHandle.record) or ""
    members = {one.name for one in dataclasses.fields(TaskRecord)} | {"failures", "progress"}
    assert [name for name in sorted(members - inner) if f"`{name}`" not in text] == []


NOT_OURS = {"Any", "AsyncIterator", "Iterator", "Mapping", "None"}
KEPT_PRIVATE = {"ChainNode", "GroupNode", "Leaf", "Lock", "Redaction", "Task", "WorkerSummary"}
"""Of methods that jobrunner calls itself; and of `Worker.run`, as programs that only enqueue import no worker."""


def test_the_types_of_what_methods_return_are_public() -> None:
    """So that a program can name them in its annotations, and the reference has their fields."""
    modules = [jobrunner, *(import_module(f"jobrunner.{one}") for one in ("errors", "types"))]
    public = {name for module in modules for name in dir(module)}
    returned = set()
    for name in {*jobrunner.__all__, *jobrunner.types.__all__}:
        owner = getattr(jobrunner, name, None) or getattr(jobrunner.types, name)
        for base in getattr(owner, "__mro__", ()):
            found = vars(base).items() if base.__module__.startswith("jobrunner.") else ()
            for member in [one.fget if isinstance(one, property) else one for at, one in found if at[0] != "_"]:
                if inspect.isfunction(member):
                    returned |= {*re.findall(r"\b[A-Z]\w+", str(inspect.signature(member).return_annotation))}

    assert returned - public == NOT_OURS | KEPT_PRIVATE
