"""Tasks by state, queue, job, error, id and parameter; and the dead, which are tasks that want somebody."""

from collections.abc import Mapping
from urllib.parse import urlencode

from jobrunner.inspector.lines import lines_of, places
from jobrunner.web.context import Context
from jobrunner.web.live import Glance
from jobrunner.web.routing import Page, Values

_STATES = ("", "waiting", "pending", "scheduled", "dead")
_FILTERS = ("queue", "type", "error", "id", "param")
_AT_ONCE = 50


def _tasks(context: Context) -> tuple[str, Values]:
    return _page(context, context.query.choice("state", _STATES, ""), is_dead=False)


def _dead(context: Context) -> tuple[str, Values]:
    return _page(context, "dead", is_dead=True)


def _page(context: Context, state: str, *, is_dead: bool) -> tuple[str, Values]:
    seen = context.glance()
    filters = {name: context.query.text(name) for name in _FILTERS}
    states = [state] if state else ["pending", "waiting", "scheduled", "dead"]
    queues = [queue for queue in seen.queues if filters["queue"] in ("", queue.name)]
    pairs = [(queue.name, one) for one in states for queue in queues if getattr(queue, one)][:20]
    found = context.client.broker.run_many(
        [places(context.client, queue, one, count=_AT_ONCE, newest=one == "dead") for queue, one in pairs]
    )
    tasks = lines_of(context.client, [place for some in found for place in some][:_AT_ONCE])
    total = sum(getattr(queue, one) for queue in queues for one in states)
    return "tasks.html", {
        "nav": seen.nav,
        "is_dead": is_dead,
        "chosen": state,
        "tabs": _tabs(seen, filters),
        "filters": filters,
        "filtered": any(filters.values()),
        "queues": [queue.name for queue in seen.queues],
        "tasks": tasks,
        "total": total,
        "said": f"{len(tasks)} of {total:,}",
        "onward": "",
        "is_onward": False,
        "first": "",
    }


def _tabs(seen: Glance, filters: Mapping[str, str]) -> list[tuple[str, str, int]]:
    """(state, where its tab leads to, how many are in it); counts are of the chosen queue, whatever is searched."""
    queues = [queue for queue in seen.queues if filters["queue"] in ("", queue.name)]
    counts = {state: sum(getattr(queue, state) for queue in queues) for state in _STATES if state}
    counts[""] = sum(counts.values())
    kept = {name: value for name, value in filters.items() if value}
    return [(state, f"?{urlencode({'state': state, **kept})}", counts[state]) for state in _STATES]


routes = [
    Page(path="/tasks", name="tasks", endpoint=_tasks),
    Page(path="/dead", name="dead", endpoint=_dead),
]
