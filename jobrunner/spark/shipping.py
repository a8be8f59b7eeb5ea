"""Sending this package to executors on other machines, which need it to reach the queue."""

import zipfile
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

from pyspark.sql import SparkSession

_SHIPPED = "jobrunner.shipped"


def ship_package(spark: SparkSession) -> None:
    """Makes executors elsewhere find this package; once in a session, and nothing when they are on this machine.

    What it stands on (redis, msgspec, structlog, pandas, pyarrow) has to be installed where they run.
    """
    with suppress(Exception):  # Spark Connect may hide where its executors are
        if str(spark.conf.get("spark.master", "")).startswith("local"):
            return
    if spark.conf.get(_SHIPPED, "") == "yes":
        return
    packed = str(_packed())
    if hasattr(spark, "_jsparkSession"):
        spark.sparkContext.addPyFile(packed)
    else:
        spark.addArtifacts(packed, pyfile=True)
    spark.conf.set(_SHIPPED, "yes")


def _packed() -> Path:
    package = Path(__file__).parents[1]
    target = Path(mkdtemp(prefix="jobrunner-")) / "jobrunner.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(package.parent))
    return target
