"""States for tests: how the pipeline could stand."""

from typing import Any

from jobrunner.etl.progress import PipelineView, Rate, StationView
from jobs_example.demos.flights.state import DemoState
from jobs_example.demos.pipelines.roles import RoleProcesses

EVERYBODY = RoleProcesses(worker=(11,), driver=(12,), executor=(13, 14))


def a_station(queue: str, kind: str, **given: Any) -> StationView:
    """An idle station, but for what is given."""
    counts: dict[str, Any] = dict.fromkeys(("waiting", "scheduled", "pending", "dead", "done"), 0)
    rest = {"targets": (), "paused": False, "totals": {}, "rate": Rate(in_per_s=1.0, out_per_s=950.4)}
    return StationView(**{"queue": queue, "kind": kind, **counts, **rest, **given})


def a_state(raw: dict[str, Any], departed: dict[str, Any], **given: Any) -> DemoState:
    """1 000 items, of which all have entered; `raw` and `departed` say how their stations stand."""
    stations = (a_station("raw", "station", **raw), a_station("departed", "spark station", **departed))
    ended = {name: given.pop(name, 0) for name in ("succeeded", "dead")}
    view = PipelineView(
        name="flights", stations=stations, open=sum(one.open for one in stations), dropped=0, rate=Rate(), **ended
    )
    rest = {"elapsed_s": 4.25, "planned": 1000, "pushed": 1000, "processes": EVERYBODY, "killed": (), "batches": ()}
    return DemoState(pipeline=view, **{**rest, **given})
