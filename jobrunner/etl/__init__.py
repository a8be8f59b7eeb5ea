"""Pipelines: stations joined by queues, where an item is in exactly one queue at any time."""

from jobrunner.etl.pipeline import Pipeline
from jobrunner.etl.spark_station import SparkStation
from jobrunner.etl.station import StationItem
from jobrunner.etl.station_outcome import UNSET, Drop, To

__all__ = ["Pipeline", "StationItem", "To", "Drop", "UNSET", "SparkStation"]  # noqa: RUF022  # as one learns them
