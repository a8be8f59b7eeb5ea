"""Pipelines: queues joined by stations."""
