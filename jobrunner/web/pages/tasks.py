"""Task lists by state, queue, job, error, id and parameter, and the list of dead tasks."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from urllib.parse import urlencode

from jobrunner.errors import InvalidName, InvalidOption
from jobrunner.inspector.search import Filter, SearchPage, search
from jobrunner.web.actions.tasks import wanted_of
from jobrunner.web.context import Context
from jobrunner.web.live import DashboardSnapshot
from jobrunner.web.routing import Page, Values

_STATES = ("", "waiting", "pending", "scheduled", "dead")
_AT_ONCE = 50


def _tasks(context: Context) -> tuple[str, Values]:
    wanted = wanted_of(context.query) if _is_name(context) else Filter()
    return _page(context, wanted, is_dead=False)


def _dead(context: Context) -> tuple[str, Values]:
    wanted = wanted_of(context.query) if _is_name(context) else Filter()
    return _page(context, replace(wanted, state="dead"), is_dead=True)


def _is_name(context: Context) -> bool:
    """Whether the queue that is asked for can be one."""
    try:
        wanted_of(context.query)
    except InvalidName:
        return False
    return True


def _page(context: Context, wanted: Filter, *, is_dead: bool) -> tuple[str, Values]:
    seen, after = context.glance(), context.query.text("after")
    found = _found(context, wanted, after)
    texts = {name: text for name, text in asdict(wanted).items() if name != "state"}
    kept = {name: text for name, text in {**texts, "state": "" if is_dead else wanted.state}.items() if text}
    narrow = any(text for name, text in texts.items() if name != "queue")
    return "tasks.html", {
        "nav": seen.nav,
        "is_dead": is_dead,
        "chosen": wanted.state,
        "tabs": _tabs(seen, texts),
        "filters": texts,
        "filtered": any(texts.values()),
        "queues": [queue.name for queue in seen.look.queues],
        "tasks": found.tasks,
        "total": found.total,
        "matching": None if narrow else found.total,
        "said": _said(found, narrow=narrow, begins=not after),
        "onward": f"?{urlencode({**kept, 'after': found.onward})}" if found.onward else "",
        "is_onward": bool(after),
        "first": f"?{urlencode(kept)}",
    }


def _found(context: Context, wanted: Filter, after: str) -> SearchPage:
    try:
        return search(context.client, wanted, after=after, limit=_AT_ONCE, redaction=context.redaction)
    except InvalidOption:  # a cursor of somebody's making
        return search(context.client, wanted, limit=_AT_ONCE, redaction=context.redaction)


def _said(found: SearchPage, *, narrow: bool, begins: bool) -> str:
    if not narrow:
        return f"{found.total:,} in all"
    if not found.onward:
        searched = f"all {found.total:,} searched"
        return f"{len(found.tasks):,} found, {searched}" if begins else searched
    return f"searched {found.searched:,} of {found.total:,}, go on for more"


def _tabs(seen: DashboardSnapshot, texts: Mapping[str, str]) -> list[tuple[str, str, int]]:
    """(state, where its tab leads to, how many are in it); counts are of the chosen queue, whatever is searched."""
    queues = [queue for queue in seen.look.queues if texts["queue"] in ("", queue.name)]
    counts = {state: sum(getattr(queue, state) for queue in queues) for state in _STATES if state}
    counts[""] = sum(counts.values())
    kept = {name: value for name, value in texts.items() if value}
    return [(state, f"?{urlencode({'state': state, **kept})}", counts[state]) for state in _STATES]


routes = [
    Page(path="/tasks", name="tasks", endpoint=_tasks),
    Page(path="/dead", name="dead", endpoint=_dead),
]
