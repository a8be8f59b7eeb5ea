"""What Spark measured of the jobs of a batch, on a Java that the test plays."""

from types import SimpleNamespace
from typing import Any

import pytest

from jobrunner.spark.station.batch_jobs import SparkUsage, usage_of

USAGE = SparkUsage(spilled_bytes=1, shuffle_bytes=2, written_rows=3)


class Java:
    """A driver whose figures are `behind` until one waits for the events of its jobs."""

    def __init__(self, *, is_busy: bool = False) -> None:
        self._behind, self._is_busy = True, is_busy

    def listenerBus(self) -> Any:
        return SimpleNamespace(waitUntilEmpty=self._wait)

    def _wait(self, timeout_ms: int) -> None:
        assert 0 < timeout_ms <= 1000
        if self._is_busy:
            raise TimeoutError("events of other jobs")
        self._behind = False

    def statusStore(self) -> Any:
        figures = (0, 0, 0) if self._behind else (1, 2, 3)
        names = ("diskBytesSpilled", "shuffleWriteBytes", "outputRecords")
        stage = SimpleNamespace(**{name: lambda value=value: value for name, value in zip(names, figures, strict=True)})
        return SimpleNamespace(job=lambda _: self, lastStageAttempt=lambda _: stage)

    def stageIds(self) -> Any:
        stages = [7]
        return SimpleNamespace(iterator=lambda: SimpleNamespace(hasNext=lambda: bool(stages), next=stages.pop))


@pytest.mark.parametrize(("is_busy", "found"), [(False, USAGE), (True, SparkUsage())])
def test_figures_are_complete_though_spark_records_them_behind_its_jobs(is_busy: bool, found: SparkUsage) -> None:
    """But a session whose other jobs keep the events coming holds nothing up."""
    java = Java(is_busy=is_busy)
    tracker = SimpleNamespace(getJobIdsForGroup={"group": [4]}.__getitem__)
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: java), statusTracker=lambda: tracker)
    session: Any = SimpleNamespace(sparkContext=context)

    assert usage_of(session, "group") == found
