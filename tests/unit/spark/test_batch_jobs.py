"""The watch for tasks that failed for good, on a Java that the test plays."""

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException, PythonException
from pyspark.sql import SparkSession

from jobrunner.spark.failures import SparkTaskError
from jobrunner.spark.station.batch_jobs import SparkJobs, TaskWatch

BAD = "Traceback (most recent call last):\n  File x\nValueError: bad\n"
OTHER = "Traceback (most recent call last):\n  File x\nKeyError: 'other'\n"
PASSES = "Traceback (most recent call last):\n  File x\nConnectionError: away\n"


class Option:
    """Of Scala."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self) -> Any:
        assert self._value is not None
        return self._value

    def isDefined(self) -> bool:
        return self._value is not None


class Scala:
    """A SparkContext: `jobs` is the state and the stages of each, `failed` the attempt and the error of a stage."""

    def __init__(self) -> None:
        self.jobs: dict[int, tuple[str, list[int]]] = {}
        self.failed: dict[int, tuple[int, str]] = {}
        self.cancelled: list[int] = []
        self.statusTracker = self.statusStore = lambda: self

    def getJobIdsForTag(self, tag: str) -> list[int]:
        assert tag == "tag"
        return list(self.jobs)

    def getJobInfo(self, job: int) -> Option:
        state, stages = self.jobs[job]
        status = SimpleNamespace(name=lambda: state)
        return Option(SimpleNamespace(status=lambda: status, stageIds=lambda: stages))

    def getStageInfo(self, stage: int) -> Option:
        attempt, error = self.failed.get(stage, (0, ""))
        return Option(SimpleNamespace(numFailedTasks=lambda: int(bool(error)), currentAttemptId=lambda: attempt))

    def taskList(self, stage: int, attempt: int, *_: object) -> Any:
        assert self.failed[stage][0] == attempt
        task = SimpleNamespace(errorMessage=lambda: Option(self.failed[stage][1]))
        return SimpleNamespace(size=lambda: 1, apply=lambda place: task)

    def cancelJob(self, job: int) -> None:
        self.cancelled.append(job)


@pytest.fixture
def scala() -> Scala:
    return Scala()


@pytest.fixture
def watch(scala: Scala) -> TaskWatch:
    made = TaskWatch(SparkSession.__new__(SparkSession), "tag")
    states = SimpleNamespace(TaskStatus=SimpleNamespace(FAILED="FAILED"), TaskSorting=SimpleNamespace(ID="ID"))
    api = SimpleNamespace(v1=states)
    status = SimpleNamespace(api=api)
    java = SimpleNamespace(util=SimpleNamespace(ArrayList=lambda: SimpleNamespace(add=lambda one: None)))
    spark = SimpleNamespace(status=status)
    jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(spark=spark)), java=java)
    made._context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: scala), _jvm=jvm)
    return made


def cancelled(job: int) -> Py4JError:
    return Py4JError(f"o1.collect: org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job {job} cancelled")


def test_a_job_is_cancelled_for_an_error_that_comes_again_and_for_no_other(scala: Scala, watch: TaskWatch) -> None:
    scala.jobs = {1: ("RUNNING", [1]), 2: ("RUNNING", [2]), 3: ("RUNNING", [3]), 4: ("FAILED", [4])}
    scala.failed = {2: (0, PASSES), 3: (0, BAD), 4: (0, BAD)}
    watch._look()
    watch._look()
    assert scala.cancelled == [3]
    assert watch.error_of(cancelled(3)) == BAD


def test_it_goes_on_after_a_job_whose_error_the_function_caught(scala: Scala, watch: TaskWatch) -> None:
    scala.jobs, scala.failed = {3: ("RUNNING", [3])}, {3: (0, BAD)}
    watch._look()
    scala.jobs |= {3: ("FAILED", [3]), 4: ("RUNNING", [3, 4])}
    watch._look()
    assert scala.cancelled == [3], "job 4 has a stage of job 3, and no failure of its own"
    scala.failed[4] = (0, OTHER)
    watch._look()
    assert scala.cancelled == [3, 4]
    assert [watch.error_of(cancelled(job)) for job in (3, 4, 5)] == [BAD, OTHER, None]


def test_a_stage_that_is_attempted_again_is_judged_anew(scala: Scala, watch: TaskWatch) -> None:
    scala.jobs, scala.failed = {3: ("RUNNING", [3])}, {3: (0, BAD)}
    watch._look()
    scala.jobs, scala.failed = {4: ("RUNNING", [3])}, {3: (1, OTHER)}
    watch._look()
    assert scala.cancelled == [3, 4]


@pytest.mark.parametrize("kind", [Py4JError, PythonException])
def test_a_job_that_the_watch_cancelled_fails_with_the_error_of_its_task(kind: type[Exception]) -> None:
    jobs = SparkJobs(SparkSession.__new__(SparkSession), "tag")
    jobs._watch.errors[4] = BAD
    with pytest.raises(SparkTaskError, match="ValueError: bad"):
        jobs.__exit__(kind, kind("[SPARK_JOB_CANCELLED] Job 4 cancelled"))
    jobs.__exit__(KeyError, KeyError("of the user"))
    jobs.__exit__(None, None)


@pytest.mark.parametrize(
    "error", [AnalysisException("[UNRESOLVED_COLUMN] nope"), cancelled(44), PythonException(PASSES)], ids=type
)
def test_a_later_error_is_not_replaced_by_that_of_a_job_which_the_function_caught(error: Exception) -> None:
    jobs = SparkJobs(SparkSession.__new__(SparkSession), "tag")
    jobs._watch.errors[4] = BAD
    jobs.__exit__(type(error), error)


def test_the_job_is_named_by_a_cause_that_pyspark_leaves_out(watch: TaskWatch) -> None:
    watch.errors[4] = BAD
    cause = SimpleNamespace(getMessage=lambda: "[SPARK_JOB_CANCELLED] Job 4 cancelled ", getCause=lambda: None)
    error = PySparkException("[WRITING_JOB_ABORTED] Writing job aborted")
    error._origin = SimpleNamespace(getMessage=lambda: None, getCause=lambda: cause)  # type: ignore[attr-defined]
    assert watch.error_of(error) == BAD
