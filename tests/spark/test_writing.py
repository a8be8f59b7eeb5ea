"""What sinks write with `write_batch`: each row once, also when batches fail behind their writes and are halved."""

import pytest

from jobrunner.retry import Backoff
from jobrunner.spark import write_batch
from jobrunner.spark.run import Batch


@pytest.mark.parametrize("columns", [[], ["n"]])
def test_halves_take_the_place_of_what_the_whole_wrote(columns, flights, drive, spark, tmp_path, audit):
    folder, sizes = str(tmp_path / "late"), []

    @flights.spark_sink("late", schema="n long", max_wait=0, backoff=Backoff(base=0))
    def store(df, spark, batch):
        write_batch(df, batch, folder, partition_by=columns)
        sizes.append(batch.size)
        if batch.size > 1:
            raise ValueError("the catalogue is away")

    ids = flights.push_many("late", [{"n": n} for n in range(4)])
    drive("late")

    assert sizes == [4, 4, 2, 2, 1, 1, 1, 1]
    assert sorted(row._id for row in spark.read.parquet(folder).collect()) == ids
    assert sum(audit("flights/late")[state] for state in ("waiting", "pending", "dead")) == 0


def test_an_attempt_takes_the_place_of_the_one_before_in_all_its_partitions(spark, tmp_path):
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        for value in ("one", "two"):
            batch = Batch(id="a:b", supersedes=(), epoch=1, size=1)
            rows = spark.createDataFrame([(1, value)], "n int, at string")
            write_batch(rows, batch, str(tmp_path), partition_by=["at"])
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")

    found = spark.read.parquet(str(tmp_path)).collect()
    assert [(row.n, row.at, row.batch) for row in found] == [(1, "two", "a:b")]
