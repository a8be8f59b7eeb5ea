"""The environment in which a session starts, without one."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import pytest

from jobrunner.errors import InvalidOption
from jobrunner.spark import data_source, session
from jobrunner.spark.session import _daemon, _environment


@pytest.mark.parametrize("before", [None, "/usr/bin/python3"])
def test_the_interpreter_that_a_setting_names_is_that_of_spark_s_workers(tmp_path, monkeypatch, before):
    """PySpark reads the variable alone, and only spark-submit sets it from the setting."""
    monkeypatch.setenv("PYSPARK_PYTHON", before or "")
    if before is None:
        monkeypatch.delenv("PYSPARK_PYTHON")
    named = str(tmp_path / "python")

    with _environment(tmp_path, local=True, python=named):
        assert os.environ["PYSPARK_PYTHON"] == named

    assert os.environ.get("PYSPARK_PYTHON") == before
    assert _daemon({"spark.pyspark.python": named}) == {}, "another interpreter may lack ours"
    assert _daemon({"spark.pyspark.python": sys.executable})
    with _environment(tmp_path, local=True):
        assert os.environ["PYSPARK_PYTHON"] == (before or sys.executable)


def test_threads_that_need_a_session_at_once_start_one(monkeypatch):
    """Each remembered what stood in the environment, and the second remembered that of the first one's Java."""
    made, both = [], threading.Barrier(2)

    def start(*_):
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)  # for the other thread, should it come here, too
        made.append(SimpleNamespace(_jsparkSession=None))
        return made[-1]

    monkeypatch.setattr(session, "running_session", lambda: made[0] if made else None)
    monkeypatch.setattr(session, "_start", start)
    monkeypatch.setattr(session, "check_runs", lambda _: None)
    monkeypatch.setattr(data_source, "register", lambda _: None)
    for name in ("JOBRUNNER_SPARK_MASTER", "JOBRUNNER_SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    with ThreadPoolExecutor(2) as threads:
        found = [one.result() for one in [threads.submit(session.spark_session) for _ in range(2)]]
    assert len(made) == 1
    assert found == made * 2


def test_a_connect_session_at_another_server_is_refused(monkeypatch):
    from pyspark.sql.connect.client import DefaultChannelBuilder

    running = SimpleNamespace(client=SimpleNamespace(_builder=DefaultChannelBuilder("sc://there/;user_id=ada")))
    monkeypatch.setattr(session, "running_session", lambda: running)

    assert session._running(None, "sc://there") is session._running(None, "sc://there:15002") is running
    assert session._running(None, "local[1]") is running, "PySpark starts that server; its port is not known before"
    with pytest.raises(InvalidOption, match=r"^remote='sc://here': .*has a session at 'sc://there:15002'; stop that"):
        session._running(None, "sc://here")
