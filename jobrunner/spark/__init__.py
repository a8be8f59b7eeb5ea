"""Pipelines and queues on Apache Spark. Needs `pip install "jobrunner[spark]"`."""

from jobrunner.spark.session import register, spark_session

__all__ = ["register", "spark_session"]
