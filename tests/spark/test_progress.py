"""Progress reports count rows as soon as a Spark task has written them."""

from pathlib import Path
from time import monotonic, sleep
from typing import Any

from jobrunner.spark.history.archive_files import telling_rows


def test_rows_of_a_task_are_told_while_others_still_write(spark: Any, tmp_path: Path) -> None:
    flag = tmp_path / "seen"
    told: list[int] = []

    def tell(rows: int) -> None:
        told.append(rows)
        if rows:
            flag.touch()

    def second_waits(batches: Any) -> Any:
        for batch in batches:
            ends = monotonic() + 60
            while batch.column("id")[0].as_py() >= 5 and not flag.exists():
                assert monotonic() < ends, "no progress was reported"
                sleep(0.05)
            yield batch

    with telling_rows(spark, tell):
        rows = spark.range(0, 10, 1, 2).mapInArrow(second_waits, "id long")
        rows.write.parquet(str(tmp_path / "rows"))

    assert 5 in told
    assert told == sorted(told)


def test_an_error_while_telling_does_not_end_the_write(spark: Any, tmp_path: Path) -> None:
    with telling_rows(spark, lambda rows: 1 // 0):
        spark.range(5).write.parquet(str(tmp_path / "rows"))
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 5
