"""Pipelines and queues on Apache Spark. Needs `pip install "jobrunner[spark]"`."""

from jobrunner.spark.session import spark_session

__all__ = ["spark_session"]
