"""A result has a limit as a payload has, and what JSON does not have is refused instead of becoming None."""

import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.client.client import Client
from jobrunner.client.current import use
from jobrunner.codec import encode
from jobrunner.errors import InvalidOption, ResultTooLarge, TaskFailed, UsageError
from jobrunner.jobs.registry import forget
from jobrunner.settings import client_settings
from jobrunner.worker.worker import Worker


@pytest.fixture
def small(client: Client, clock: Any) -> Iterator[Client]:
    with Client(client.settings.url, client.settings.prefix, now_ms=clock, result_limit=100) as made:
        yield made


@pytest.mark.parametrize("key", [None, True, (1, 2)])
def test_a_value_that_cannot_be_a_key_is_told_as_one(key: object) -> None:
    """As a value it has a JSON form, so "None has no JSON form" sent its reader elsewhere."""
    with pytest.raises(UsageError, match=r"of type .* cannot be the key of a JSON object; return"):
        encode({"found": [{key: 1}]}, what="the result")


def test_a_coroutine_that_nothing_awaited_is_told_as_one() -> None:
    """A decorator that is no coroutine function returns it when it is put above `async def`."""

    async def work() -> None: ...

    made = work()
    with pytest.raises(UsageError, match=r"is a coroutine, which nothing awaited: what returns it has to be async def"):
        encode(made, what="the result of job 'work'")
    made.close()


def test_a_commit_with_a_result_that_is_too_large_changes_nothing(small: Client) -> None:
    queue = small.queue("q")
    queue.configure(history=60)
    queue.push_many([1, 2, 3])
    first, second, third = queue.reserve(3)

    with pytest.raises(ResultTooLarge, match=r"the result has 101 bytes, the limit is 100; .* raise result_limit"):
        first.commit("x" * 99)
    with pytest.raises(ResultTooLarge):
        queue.commit_many([second, third], ["ok", "x" * 99])
    assert queue.counts()["pending"] == 3
    assert first.commit("x" * 98)
    assert queue.commit_many([second, third], ["ok", None]) == [True, True]


@pytest.mark.parametrize("value", [math.nan, [1, math.inf], {"a": {"b": (None, -math.inf)}}])
def test_numbers_that_json_does_not_have_are_refused(way: Any, value: Any) -> None:
    queue = way.queue("q")
    with pytest.raises(UsageError, match=r"payload cannot be stored as JSON: .* -?(nan|inf), which JSON does not have"):
        queue.push(value)
    queue.push({"a": None})
    (lease,) = queue.reserve()
    with pytest.raises(UsageError, match="the result cannot be stored as JSON"):
        lease.commit(value)
    assert lease.payload == {"a": None}
    assert lease.commit(None)


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_job_whose_result_is_too_large_is_dead_with_the_reason_and_runs_once(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    module = f"large_results_{executor}"
    (tmp_path / f"{module}.py").write_text(
        "from pathlib import Path\n"
        "from jobrunner import job\n"
        "@job(queue='q')\n"
        "def large(size: int, trace: str) -> str:\n"
        "    with Path(trace).open('a') as file:\n"
        "        file.write('.')\n"
        "    return 'x' * size\n"
        "@job(queue='q')\n"
        "async def large_async(size: int) -> str:\n"
        "    return 'x' * size\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, module, raising=False)  # of an earlier run, which forgot its jobs
    trace = tmp_path / "trace"
    with Client(client.settings.url, client.settings.prefix, result_limit=1000) as limited:
        use(limited)
        try:
            worker = Worker([module], ["q"], client=limited, executor=executor, concurrency=1)
            jobs = importlib.import_module(module)
            fits, too_large = jobs.large.enqueue(998, str(trace)), jobs.large.enqueue(999, str(trace))
            coroutine = jobs.large_async.enqueue(999)
            worker.run(burst=True)

            assert len(fits.result(timeout=30)) == 998
            for task in (too_large, coroutine):
                with pytest.raises(TaskFailed, match=r"ResultTooLarge: .* has 1001 bytes, the limit is 1000"):
                    task.result(timeout=30)
                assert task.attempts == 1
            assert trace.read_text() == ".."
        finally:
            forget("large")
            forget("large_async")


def test_the_limit_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.jobrunner]\nresult_limit = 7\n")

    assert client_settings().result_limit == 7
    assert client_settings(result_limit=8).result_limit == 8
    with pytest.raises(InvalidOption, match="result_limit=0"):
        client_settings(result_limit=0)
    (tmp_path / "pyproject.toml").write_text("")
    assert client_settings().result_limit == 1024 * 1024
