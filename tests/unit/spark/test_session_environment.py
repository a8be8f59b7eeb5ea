"""The environment in which a session starts, without one."""

import os
import sys

import pytest

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
