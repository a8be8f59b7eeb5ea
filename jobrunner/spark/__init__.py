"""Pipelines and queues on Apache Spark."""
