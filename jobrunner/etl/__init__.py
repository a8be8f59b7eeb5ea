"""Pipelines: stations joined by queues, where an item is in exactly one queue at any time."""

from jobrunner.etl.declared import SparkStation
from jobrunner.etl.item import StationItem
from jobrunner.etl.link import UNSET, Drop, To
from jobrunner.etl.pipeline import Pipeline

__all__ = ["UNSET", "Drop", "Pipeline", "SparkStation", "StationItem", "To"]
