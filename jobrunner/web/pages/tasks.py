"""Task lists: by state, queue, job, error, id and parameter; dead tasks; history, of queues that keep finished tasks.

Actions change selected tasks at once, and all tasks that match, or all dead ones, in the background, as there may be
many.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import islice
from urllib.parse import urlencode

from jobrunner.broker.keys import split_queue
from jobrunner.errors import InvalidName, InvalidOption
from jobrunner.inspector.attempts import with_beginnings
from jobrunner.inspector.search import STATES, Filter, SearchPage, search
from jobrunner.inspector.snapshot import QueueView
from jobrunner.inspector.task_rows import read_instant
from jobrunner.task import TaskRecord
from jobrunner.web.auth import Role
from jobrunner.web.errors import NotAllowed, Refused
from jobrunner.web.live import DashboardSnapshot
from jobrunner.web.operations import CHANGES, change
from jobrunner.web.pages.operation import begin
from jobrunner.web.routing import Action, Context, Done, Page, RequestParameters, Values

_STATES = ("", "waiting", "pending", "scheduled", "dead")
_AT_ONCE = 50
_HISTORY_AT_ONCE = 40
_MOST_CHOSEN = 500
_CHANGED = {"requeue": "requeued", "cancel": "cancelled or asked to stop", "delete": "deleted"}


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
        "tasks": with_beginnings(found.tasks, seen.look.workers),
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


def _history(context: Context) -> tuple[str, Values]:
    seen = context.glance()
    keeping = sorted((queue for queue in seen.look.queues if queue.done), key=lambda queue: (-queue.done, queue.name))
    names = [queue.name for queue in keeping]
    chosen = context.query.choice("queue", names, names[0] if names else "")
    records = context.client.queue(chosen).history(_HISTORY_AT_ONCE) if chosen else []
    return "history.html", {
        "nav": seen.nav,
        "queues": keeping,
        "chosen": chosen,
        "kept": _kept(keeping, chosen),
        "records": [(record, _took_s(record)) for record in islice(records, _HISTORY_AT_ONCE)],
    }


def _kept(keeping: list[QueueView], chosen: str) -> int:
    return next((queue.done for queue in keeping if queue.name == chosen), 0)


def _took_s(record: TaskRecord) -> float | None:
    began = read_instant(record.fields.get("started_at"))
    return None if began is None or record.when is None else max((record.when - began).total_seconds(), 0.0)


def _bulk(context: Context) -> Done:
    form = context.form
    action = form.choice("action", CHANGES, "")
    if not action:
        raise Refused(f"no action is given: action is one of {', '.join(CHANGES)}")
    if form.flag("all"):
        wanted = wanted_of(form)
        if action == "delete" and context.role < Role.ADMIN:
            raise NotAllowed("deleting all that match requires the role admin; select single tasks, or ask an admin")
        return begin(context, action, wanted, f"{action}: all that match")
    chosen = [_chosen(text) for text in form.all("ids", most=_MOST_CHOSEN + 1, longest=1000)]
    if not chosen:
        raise Refused("no task is selected")
    if len(chosen) > _MOST_CHOSEN:
        raise Refused(f"too many tasks are selected: at most {_MOST_CHOSEN}; select all that match instead")
    return _at_once(context, action, chosen)


def _at_once(context: Context, action: str, chosen: list[tuple[str, str]]) -> Done:
    by_queue: dict[str, list[str]] = {}
    for queue, task_id in chosen:
        by_queue.setdefault(queue, []).append(task_id)
    done = sum(change(context.client, action, queue, ids) for queue, ids in by_queue.items())
    text = f"{done} of {len(chosen)} tasks {_CHANGED[action]}"
    return Done(text=text, to=context.url("tasks"), values={"changed": done, "chosen": len(chosen)})


def wanted_of(form: RequestParameters) -> Filter:
    """The filter of a form. Raises InvalidName."""
    queue = form.text("queue")
    if queue:
        split_queue(queue)
    return Filter(
        queue=queue,
        state=form.choice("state", STATES, ""),
        type=form.text("type"),
        error=form.text("error"),
        id=form.text("id"),
        param=form.text("param"),
    )


def _chosen(text: str) -> tuple[str, str]:
    queue, _, task_id = text.partition(" ")
    split_queue(queue)
    return queue, task_id  # not checked: what has an id that no program gives must be deleted somehow


def _requeue_dead(context: Context) -> Done:
    return begin(context, "requeue", replace(wanted_of(context.form), state="dead"), "requeueing what is dead")


def _purge_dead(context: Context) -> Done:
    return begin(context, "delete", replace(wanted_of(context.form), state="dead"), "deleting what is dead")


pages: list[Page] = [
    Page(path="/tasks", name="tasks", endpoint=_tasks),
    Page(path="/dead", name="dead", endpoint=_dead),
    Page(path="/history", name="history", endpoint=_history),
]
actions: list[Action] = [
    Action(path="/tasks/bulk", name="tasks.bulk", endpoint=_bulk),
    Action(path="/dead/requeue", name="dead.requeue", endpoint=_requeue_dead),
    Action(path="/dead/purge", name="dead.purge", endpoint=_purge_dead),
]
