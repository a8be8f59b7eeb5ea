"""Pipelines and queues on Apache Spark. Needs `pip install "jobrunner[spark]"`."""

from typing import TYPE_CHECKING, Any

from jobrunner.spark.session import register, spark_session

if TYPE_CHECKING:
    from jobrunner.spark.enqueueing import enqueue

__all__ = ["enqueue", "register", "spark_session"]


def __getattr__(name: str) -> Any:
    if name == "enqueue":  # late: it needs Spark, and `spark_session` tells in better words what is missing
        from jobrunner.spark.enqueueing import enqueue

        globals()["enqueue"] = enqueue
        return enqueue
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
