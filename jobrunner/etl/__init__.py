"""Pipelines: stations joined by queues, where an item is in exactly one queue at any time.

Each name is imported from its module when it is first used (PEP 562): a worker without pipelines imports none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobrunner.etl.pipeline import Pipeline
    from jobrunner.etl.spark_station import SparkStation
    from jobrunner.etl.station import StationItem
    from jobrunner.etl.station_outcome import UNSET, Drop, To

__all__ = ["Pipeline", "StationItem", "To", "Drop", "UNSET", "SparkStation"]  # noqa: RUF022  # as one learns them
_MODULES = {
    "Pipeline": "pipeline", "StationItem": "station", "To": "station_outcome", "Drop": "station_outcome",
    "UNSET": "station_outcome", "SparkStation": "spark_station",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'jobrunner.etl' has no name {name!r}")
    found = getattr(import_module(f"jobrunner.etl.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
