"""Pipelines and queues on Apache Spark. Needs `pip install "jobrunner[spark]"`."""

from typing import TYPE_CHECKING, Any

from jobrunner.spark.session import register, spark_session

if TYPE_CHECKING:
    from jobrunner.spark.enqueueing import enqueue
    from jobrunner.spark.writing import write_batch

__all__ = ["enqueue", "register", "spark_session", "write_batch"]


def __getattr__(name: str) -> Any:
    if name == "enqueue":  # late: it needs Spark, and `spark_session` tells in better words what is missing
        from jobrunner.spark.enqueueing import enqueue

        globals()["enqueue"] = enqueue
        return enqueue
    if name == "write_batch":
        from jobrunner.spark.writing import write_batch

        globals()["write_batch"] = write_batch
        return write_batch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
