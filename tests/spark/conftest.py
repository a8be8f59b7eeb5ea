"""One Spark session for all tests of Spark in this process."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from jobrunner.spark.session import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on this machine: two cores, little memory, a failed Spark task is run again."""
    session = spark_session(
        "tests", "local[2,4]", **{"spark.sql.shuffle.partitions": 2, "spark.driver.memory": "1g"}
    )
    yield session
    session.stop()
