"""Where a session runs, and with which settings of Spark's own: the command line, the environment, the file."""

import logging
import os

import pytest

from jobrunner.errors import InvalidOption
from jobrunner.etl import spark_conf
from jobrunner.etl.spark_conf import choose, conf_of_environment, conf_of_file, where

VARIABLES = (spark_conf.MASTER, spark_conf.REMOTE, spark_conf.CONF, "SPARK_CONNECT_MODE_ENABLED")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder without a file above it, and an environment that says nothing; both are as before behind the test."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def table(folder):
    return lambda text: (folder / "pyproject.toml").write_text(f"[tool.jobrunner.spark]\n{text}\n")


def test_settings_of_the_file_are_read_quoted_or_bare(table):
    table('"spark.jars.packages" = "io.delta:delta"\nspark.ui.enabled = true\nspark.executor.cores = 2')
    assert conf_of_file() == {
        "spark.jars.packages": "io.delta:delta", "spark.ui.enabled": "true", "spark.executor.cores": "2",
    }  # fmt: skip
    assert where() == (None, None)


def test_the_file_names_a_master_and_the_environment_wins_over_it(table, monkeypatch):
    table('master = "spark://file:7077"')
    assert where() == ("spark://file:7077", None)
    monkeypatch.setenv(spark_conf.REMOTE, "sc://environment")
    assert where() == (None, "sc://environment")
    assert conf_of_file() == {}


def test_settings_of_the_command_line_are_added_to_those_of_the_environment(monkeypatch):
    monkeypatch.setenv(spark_conf.CONF, '{"spark.a": "1", "spark.b": "1"}')
    os.environ.update(choose(conf=["spark.b=2", "spark.sql.extensions=io.delta.X=Y"]))
    assert conf_of_environment() == {"spark.a": "1", "spark.b": "2", "spark.sql.extensions": "io.delta.X=Y"}


WRONG_WORDS = {
    "driver.memory=4g": r"'driver.memory' in --conf is no setting of Spark's.*did you mean 'spark.driver.memory'\?",
    "sparc.driver.memory=4g": r"'sparc.driver.memory' in --conf is .*did you mean 'spark.driver.memory'\?",
    "spark.driver.memory": r"--conf 'spark.driver.memory' has no value; write --conf spark.driver.memory=4g",
    "=4g": "'' in --conf is no setting of Spark's",
    "spark=4g": "'spark' in --conf is no setting.*; write spark.driver.memory",
    "spark.master=spark://h": r"spark.master = 'spark://h' in --conf: give it as master= of spark_session, --master",
    "spark.remote=sc://h": r"spark.remote = 'sc://h' in --conf: give it as remote= of spark_session, --remote, or",
    "spark driver=1": "'spark driver' in --conf is no setting",
}


@pytest.mark.parametrize("word", WRONG_WORDS)
def test_a_word_of_the_command_line_that_is_no_setting_is_refused_by_name(word):
    with pytest.raises(InvalidOption, match=WRONG_WORDS[word]):
        choose(conf=[word])
    assert spark_conf.CONF not in os.environ


WRONG_TABLES = {
    '"driver.memory" = "4g"': r"'driver.memory' in \[tool.jobrunner.spark\].*did you mean 'spark.driver.memory'",
    "driver.memory = '4g'": r"'driver' in \[tool.jobrunner.spark\].*did you mean 'spark.driver'",
    '"spark.jars" = ["a.jar"]': r"spark.jars = \['a.jar'\] in .*: give a text, a number, true or false",
    'mastr = "local"': r"'mastr' in \[tool.jobrunner.spark\].*did you mean 'master'",
    "master = 5": r"master = 5 in \[tool.jobrunner.spark\] of pyproject.toml: give a text",
    'master = "a"\nremote = "b"': "names both a master and a remote",
}


@pytest.mark.parametrize("text", WRONG_TABLES)
def test_a_table_that_is_wrong_is_refused_with_what_to_write(table, text):
    table(text)
    with pytest.raises(InvalidOption, match=WRONG_TABLES[text]):
        choose()


def test_a_variable_that_is_no_json_is_refused(monkeypatch):
    monkeypatch.setenv(spark_conf.CONF, "spark.a=1")
    with pytest.raises(InvalidOption, match="is no JSON object; write"):
        choose()


@pytest.mark.parametrize("given", ["argument", "environment", "file"])
def test_a_remote_lets_functions_of_modules_be_made_for_it(table, monkeypatch, given):
    if given == "environment":
        monkeypatch.setenv(spark_conf.REMOTE, "sc://here")
    if given == "file":
        table('remote = "sc://here"')
    choose(remote="sc://here" if given == "argument" else None)
    assert os.environ["SPARK_CONNECT_MODE_ENABLED"] == "1"


def test_a_master_of_the_command_line_wins_over_a_remote_of_the_environment(monkeypatch):
    monkeypatch.setenv(spark_conf.REMOTE, "sc://here")
    os.environ.update(choose(master="local[1]"))
    assert where() == ("local[1]", None)
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ


def test_py4j_is_silent_unless_the_program_wants_to_hear_it(monkeypatch):
    py4j, root = logging.getLogger("py4j"), logging.getLogger()
    monkeypatch.setattr(root, "filters", [])
    monkeypatch.setattr(py4j, "level", logging.DEBUG)
    choose()
    assert (py4j.level, root.filters) == (logging.DEBUG, [])
    monkeypatch.setattr(py4j, "level", logging.NOTSET)
    choose()
    choose()
    assert py4j.level > logging.CRITICAL
    (only,) = root.filters

    def line(path):
        return logging.LogRecord("root", logging.INFO, path, 1, "Exception while sending command.", None, None)

    assert not only(line("/site-packages/py4j/java_gateway.py"))
    assert only(line("/app/jobs.py"))
