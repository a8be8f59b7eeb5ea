"""Parts of running.py that need no Spark session."""

import logging
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import AnalysisException, QueryContextType
from pyspark.logger import PySparkLogger

from jobrunner.errors import StationError
from jobrunner.spark import register
from jobrunner.spark.running import activate, silence_query_contexts


class Context:
    """Where in a program an error of planning comes from."""

    def __init__(self, kind):
        self._kind = kind

    def contextType(self):
        return self._kind

    def callSite(self):
        return "stations.py:30"

    def fragment(self):
        return "col"


@pytest.mark.parametrize("kind", QueryContextType)
def test_an_error_of_planning_is_not_logged_by_pyspark_as_well(monkeypatch, kind):
    logger = PySparkLogger.getLogger(f"{kind.name}QueryContextLogger")
    records = []
    monkeypatch.setattr(logger, "handlers", [logging.Handler()])
    monkeypatch.setattr(logger.handlers[0], "emit", records.append)

    def fail():
        AnalysisException("no column", contexts=[Context(kind)])._log_exception()

    for level, heard in ((logging.WARNING, 0), (logging.ERROR, 1), (logging.DEBUG, 1)):
        logger.setLevel(level)
        silence_query_contexts()
        fail()
        assert len(records) == heard, "a level that the program chose stays"
        records.clear()
    logger.setLevel(logging.WARNING)
    fail()
    assert len(records) == 1, "PySpark logs it here"


def test_a_thread_has_the_connect_session_it_was_given_though_that_of_the_process_has_ended(monkeypatch):
    """As after a restart of the server: PySpark leaves the ended session the default one when a new one is made."""
    connect = pytest.importorskip("pyspark.sql.connect.session", exc_type=ImportError)
    ended, new = (connect.SparkSession("sc://127.0.0.1:1") for _ in range(2))  # no call, so no connection
    monkeypatch.setattr(type(ended), "is_stopped", property(lambda session: session is ended))
    monkeypatch.setattr(type(ended), "_default_session", ended)

    def active_behind(*sessions):
        for one in sessions:
            activate(one)
        return connect.SparkSession.active()

    with ThreadPoolExecutor(1) as lane:
        assert lane.submit(active_behind, new).result(60) is new
    with ThreadPoolExecutor(1) as lane:
        assert lane.submit(active_behind, ended, new).result(60) is new


class EndedJava:
    """What py4j says of each call, first of a connection that it has, then of a new one."""

    def __init__(self):
        self._errors = iter([Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError("refused")])

    @property
    def java(self):
        raise next(self._errors)


def test_a_session_that_was_stopped_or_whose_java_has_ended_is_called_so(caplog):
    context = SimpleNamespace(_jsc=object())
    session = SimpleNamespace(dataSource=object(), _jsparkSession=None, sparkContext=context, _jvm=EndedJava())
    for _ in range(2):
        with pytest.raises(StationError, match="in a notebook the kernel, again"):
            register(session)
    context._jsc = None
    with pytest.raises(StationError, match="was stopped: make a new one"):
        register(session)
    assert caplog.messages == [], "no warning of settings"
