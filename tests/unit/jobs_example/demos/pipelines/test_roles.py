"""The roles of the demo's processes, and the end of one of them."""

import subprocess
import sys

from jobs_example.demos.pipelines.roles import RoleProcesses, _sorted_out, kill
from jobs_example.demos.processes import Process

QUEUES = ("flights/raw", "flights/departed")
WORK = "/usr/bin/python -m jobrunner work jobs_example.flights"
PROCESSES = [
    Process(pid=11, parent=10, command=f"{WORK} --queue=flights/raw --concurrency=10"),
    Process(pid=12, parent=10, command=f"{WORK} --queue=flights/departed --queue=flights/late"),
    Process(pid=20, parent=11, command="/usr/bin/python -m jobrunner.worker.lease_keeper.keeper_process"),
    Process(pid=21, parent=12, command="java org.apache.spark.deploy.SparkSubmit pyspark-shell"),
    Process(pid=22, parent=21, command="/usr/bin/python -m jobrunner.spark.preloaded_daemon pyspark.worker"),
    Process(pid=23, parent=22, command="/usr/bin/python -m pyspark.daemon pyspark.worker"),
    Process(pid=24, parent=22, command="/usr/bin/python -m jobrunner.spark.preloaded_daemon pyspark.worker"),
    Process(pid=25, parent=21, command="/usr/bin/python -m pyspark.daemon pyspark.sql.worker.lookup_data_sources"),
    Process(pid=26, parent=25, command="/usr/bin/python -m pyspark.daemon pyspark.sql.worker.lookup_data_sources"),
]


def test_each_process_has_its_role() -> None:
    processes = _sorted_out(10, PROCESSES, *QUEUES)

    assert (processes.worker, processes.driver, processes.java) == ((11,), (12,), (21,))
    assert sorted(processes.executor) == [23, 24]


def test_a_daemon_that_has_started_nobody_is_no_python_of_the_executor() -> None:
    assert _sorted_out(10, PROCESSES[:5], *QUEUES).executor == ()


def test_a_killed_process_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert kill("driver", RoleProcesses(driver=(process.pid,))) == process.pid
        assert process.wait(30) == -9


def test_where_nobody_is_nobody_is_killed() -> None:
    assert kill("executor", RoleProcesses(worker=(1,))) is None
