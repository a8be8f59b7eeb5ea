"""Misuse is reported in one line on stderr, with exit code 2, and changes nothing."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.jobs.registry import forget

JOBS = """
from jobrunner import job

@job(queue="maths")
def add(x: int, y: int = 0) -> int:
    return x + y

@job(queue="maths")
def say(text: str) -> None: ...
"""

CLASH = """
from jobrunner import job

@job(name="add")
def other() -> None: ...
"""

MISUSES = [
    pytest.param(("enqueue", "add", "x=one"), "x of job 'add' is 'one'; it must be int", id="wrong parameter"),
    pytest.param(("enqueue", "add", "x=1", "z=2"), "unknown parameter 'z' of job 'add'; known", id="unknown parameter"),
    pytest.param(("enqueue", "add"), "x", id="missing parameter"),
    pytest.param(("enqueue", "ad", "x=1"), "did you mean 'add'", id="unknown job"),
    pytest.param(("enqueue", "add", "x=1", "--at", "2030-01-01T00:00:00"), "time zone", id="naive datetime"),
    pytest.param(("enqueue", "add", "x=1", "--at", "soon"), "no instant", id="no datetime"),
    pytest.param(
        ("enqueue", "add", "x=1", "--in", "1m", "--at", "2030-01-01T00:00:00Z"), "give one of them", id="in and at"
    ),
    pytest.param(("enqueue", "add", "x=1", "--in", "soon"), "no length of time", id="no duration"),
    pytest.param(("enqueue", "add", "x=1", "--priority", "-1"), "priority=-1", id="negative priority"),
    pytest.param(("enqueue", "add", "x=1", "--queue", "a{b}"), "queue name 'a{b}' is not allowed", id="braces"),
    pytest.param(("enqueue", "add", "x=1", "--url", "http://x"), "'http://x' is not one of", id="URL form"),
    pytest.param(("enqueue", "add", "x=1", "--prefix", "a b"), "prefix 'a b' is not allowed", id="prefix"),
    pytest.param(("enqueue", "add", "x=1", "-m", "not_there"), "or run this in the folder that has it", id="no module"),
    pytest.param(("work", "shop/jobs.py"), "without a path or a colon: shop.jobs", id="a path"),
    pytest.param(("enqueue", "../x"), "a part of its name is empty; a module has a dotted name", id="a path to a job"),
    pytest.param(("work", "shop..jobs"), "'shop..jobs' cannot be imported: a part of its name is empty", id="two dots"),
    pytest.param(("work", "shop.jobs:Charge"), "without a path or a colon: shop.jobs", id="a name in a module"),
    pytest.param(("work", "json.nothing"), "mend its name or code", id="a name in a package"),
    pytest.param(("enqueue", "add", "-m", "jobs_here", "-m", "clash"), "'add' is used by", id="name used twice"),
    pytest.param(("work", "jobs_here", "--concurency", "2"), "--concurrency", id="unknown option"),
    pytest.param(("work", "jobs_here", "-q", "a{b}"), "queue name 'a{b}' is not allowed", id="braces at work"),
    pytest.param(("work", "jobs_here", "--concurrency", "0"), "concurrency=0", id="no slots"),
    pytest.param(("wrok",), "did you mean 'work'", id="unknown command"),
    pytest.param(("redis", "status"), "did you mean 'server'", id="retired command"),
    pytest.param(("worker", "shop"), "did you mean 'work'?", id="worker of RQ and Celery"),
    pytest.param(("beat",), "did you mean 'periodic list'?", id="beat of Celery"),
    pytest.param(("control", "shutdown"), "did you mean 'workers list'?", id="control of Celery"),
    pytest.param(("periodic", "edit", "x"), "did you mean 'add'?", id="a change of a schedule"),
    pytest.param(("periodic", "delete", "x"), "did you mean 'remove'?", id="not enable, which is spelt alike"),
    pytest.param(("periodic", "pause", "x"), "did you mean 'disable'?", id="not pause of a queue"),
    pytest.param(("tasks", "delete", "x"), "did you mean 'cancel'?", id="deletion of a task"),
    pytest.param(("dead", "retry", "x"), "did you mean 'requeue'?", id="retry of the dead"),
    pytest.param(("dead", "remove", "x"), "did you mean 'purge'?", id="a verb of another group"),
    pytest.param(("workers", "drain", "x"), "did you mean 'quiet'?", id="a drained worker"),
    pytest.param(("queues", "create", "x"), "did you mean 'limit'?", id="not reset, which is spelt alike"),
    pytest.param(("queues", "drain", "x"), "did you mean 'purge'?", id="a drained queue"),
    pytest.param(("queues", "qwxz", "x"), "known are delete, limit,", id="nothing alike"),
    pytest.param(("workers", "beat"), "unknown command 'beat'; known are", id="beat in a group without it"),
    pytest.param(("work", "-A", "shop"), "'-A'; modules are arguments: jobrunner work MODULE", id="-A of Celery"),
    pytest.param(("work", "shop", "-c", "4"), "it is called '--concurrency' here", id="-c of Celery"),
    pytest.param(("work", "shop", "--pool=solo"), "it is called '--executor' here", id="--pool of Celery"),
    pytest.param(("status", "-c", "4"), "No such option", id="-c where nothing is like it"),
    pytest.param(("work", "--prefetch", "3"), "'prefetch_time' here, and is an option of Worker()",
                 id="retired option"),
    pytest.param(("queues", "limit", "mail", "--rate-per-key", "3"), "it is called '--rate-per-partition' here",
                 id="retired option that the command has"),
    pytest.param(("work", "jobs_here", "--master", "local"), "set JOBRUNNER_SPARK_MASTER, which", id="master of Spark"),
    pytest.param(("work", "jobs_here", "--queues", "a"), "it is called '--queue' here", id="plural of an option"),
    pytest.param(("tasks", "list", "--job", "\udcff"), "is no UTF-8", id="no UTF-8"),
    pytest.param(("dead", "purge", "mail", "--group", "\udcff"), "is no UTF-8", id="a group that is no UTF-8"),
    pytest.param(("dead", "requeue", "mail", "--id", "x", "--payload", '"\udcff"'),
                 "--payload: '\"\\udcff\"' is no UTF-8", id="a payload that is no UTF-8"),
    pytest.param(("enqueue", "say", "text=\udcff"), "parameter text of job 'say' is no UTF-8", id="a parameter, too"),
    pytest.param(("queues", "purge", "{mail}"), "'{mail}' is not allowed", id="braces at purge"),
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A project with a job, and a module whose job has the same name."""
    (tmp_path / "jobs_here.py").write_text(JOBS)
    (tmp_path / "clash.py").write_text(CLASH)
    (tmp_path / "pyproject.toml").write_text('[tool.jobrunner]\nmodules = ["jobs_here"]\n')
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("jobs_here", "clash"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ("jobs_here", "clash"):
        sys.modules.pop(name, None)
    forget("add")
    forget("say")


@pytest.mark.parametrize(("words", "told"), MISUSES)
def test_misuse_is_told_in_one_line(
    cli: Callable[..., Any], project: None, raw: Any, words: tuple[str, ...], told: str
) -> None:
    result = cli(*words)

    assert (result.code, result.out) == (2, "")
    assert result.line.startswith("Error: ")
    assert told in result.line
    assert raw.dbsize() == 0
