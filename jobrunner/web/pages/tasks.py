"""Task lists: by state, queue, job, error, id, parameter and time; dead tasks; history, of finished tasks.

Actions change selected tasks at once. All matching or all dead tasks are changed in the background, as there may be
many.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from heapq import nlargest
from urllib.parse import urlencode

from jobrunner.broker.keys import split_any_queue
from jobrunner.clock import instant_of
from jobrunner.errors import InvalidName, InvalidOption
from jobrunner.formatting import counted
from jobrunner.formatting import rate as per_second
from jobrunner.inspector.attempts import with_beginnings
from jobrunner.inspector.error_groups import ErrorGroups, ErrorGroupView, find_group, no_such_group, read_groups
from jobrunner.inspector.search import ORDERS, STATES, SearchPage, search
from jobrunner.inspector.search_filter import Filter
from jobrunner.inspector.task_rows import TaskRow
from jobrunner.web.auth import Role
from jobrunner.web.errors import NotAllowed, NotThere, Refused
from jobrunner.web.live import DashboardSnapshot
from jobrunner.web.operations import CHANGES, change, note_events, texts_of
from jobrunner.web.pages.operation import begin
from jobrunner.web.routing import Action, Context, Done, Page, RequestParameters, Values

_STATES = ("", "waiting", "pending", "scheduled", "dead")
_AT_ONCE = 50
_BUDGET_S = 0.08
"""Time for one step of a search, which the page continues by itself."""
_FILL_S = 2.0
"""Time for a list without conditions: each call adds rows until the page is full."""
_MOST_JOBS = _MOST_QUEUES = 200
STATE_OF_LIST = {"tasks": "", "dead": "dead", "history": "done"}
_MOST_CHOSEN = 500
_FIRST_GROUPS, _ALL_GROUPS = 20, 500
_CONDITIONS = ("queue", "state", "type", "job", "error", "id", "param", "group", "since", "until")
_CHANGED = {"requeue": "requeued", "cancel": "cancelled or asked to stop", "delete": "deleted"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchView:
    """The fields of a list's search form, and the progress of its search."""

    filters: dict[str, str]
    """The conditions by field name, with times as instants."""
    filtered: bool
    order: str
    refused: str
    """The error of an invalid filter, such as a time that cannot be parsed; then nothing was searched."""
    searched: int
    total: int
    finished: bool
    """Whether every task was examined, so that an empty result means that there is none."""
    said: str
    onward: str
    first: str
    goes_on: bool
    """Whether the page continues by itself: the time was up before it was full."""
    begins: bool
    jobs: list[str]
    queues: list[str]
    """The queues to choose from: all by name, or of very many those with most tasks of the list."""
    is_every_queue: bool
    problems: tuple[tuple[str, str], ...]
    """Queues that were not searched, with the reason."""


def _tasks(context: Context) -> tuple[str, Values]:
    return _page(context, context.snapshot(), STATE_OF_LIST["tasks"])


def _dead(context: Context) -> tuple[str, Values]:
    seen = context.snapshot()
    template, values = _page(context, seen, STATE_OF_LIST["dead"])
    filters, found = values["filters"], None
    is_refused = bool(values["search"].refused)
    group = _group(context, filters) if filters["group"] and not is_refused else None
    if not is_refused and not any(text for name, text in filters.items() if name not in ("queue", "job")):
        queues = [filters["queue"]] if filters["queue"] else seen.look.with_failures
        found = _of_job(read_groups(context.client, queues), filters["job"])
    most = _ALL_GROUPS if context.query.choice("groups", ("all",), "") else _FIRST_GROUPS
    return template, {**values, "group": group, "errors_found": found, "most_groups": most}


def _of_job(found: ErrorGroups, asked: str) -> ErrorGroups:
    """The groups of the jobs in the form: `=name`, or a part of the name in any case; '' selects all."""
    if not asked:
        return found
    if asked[0] == "=":
        groups = [one for one in found.groups if one.job == asked[1:]]
    else:
        groups = [one for one in found.groups if asked.casefold() in one.job.casefold()]
    return replace(found, groups=tuple(groups), dead=sum(one.dead for one in groups))


def _group(context: Context, filters: Mapping[str, str]) -> ErrorGroupView:
    """The requested group. Raises NotThere, Refused."""
    if not filters["queue"]:
        raise Refused("a group of errors belongs to a queue: give both queue and group")
    found = find_group(context.client, filters["queue"], filters["group"])
    if found is None:
        raise NotThere(no_such_group(filters["queue"], filters["group"]))
    return found


def _page(context: Context, seen: DashboardSnapshot, state: str) -> tuple[str, Values]:
    view, found, wanted = _searched(context, seen, state)
    return "tasks.html", {
        "nav": seen.nav,
        "is_dead": state == "dead",
        "chosen": wanted.state,
        "tabs": _tabs(seen, view.filters),
        "search": view,
        "filters": view.filters,
        "tasks": with_beginnings(found.tasks, seen.look.workers),
        "total": found.total,
        "finished": view.finished,
        "onward": view.onward,
        "matching": None if wanted.is_narrow else found.total,
        "group": None,
        "errors_found": None,
    }


def _history(context: Context) -> tuple[str, Values]:
    seen = context.snapshot()
    view, found, _ = _searched(context, seen, STATE_OF_LIST["history"])
    kept = sum(queue.done for queue in seen.look.queues if view.filters["queue"] in ("", queue.name))
    return "history.html", {
        "nav": seen.nav,
        "search": view,
        "kept": kept,
        "records": [{**asdict(row), "took_s": _took_s(row)} for row in found.tasks],
        "finished": view.finished,
        "onward": view.onward,
    }


def _searched(context: Context, seen: DashboardSnapshot, state: str) -> tuple[SearchView, SearchPage, Filter]:
    """One page of a list; `state`: the state of the list, '' for the state in the form."""
    after, order, refused = context.query.text("after", longest=1500), context.query.choice("order", ORDERS, ""), ""
    found = SearchPage(tasks=[], searched=0, total=0, onward="", timed_out=False)
    try:
        wanted = wanted_of(context.query)
        wanted = replace(wanted, state=state) if state else wanted
        found = _found(context, wanted, after, order)
    except (InvalidName, InvalidOption) as error:
        wanted, refused = Filter(state=state), str(error)
    texts = texts_of(wanted)
    texts.pop("state")
    if refused:  # the form keeps what is to be corrected
        texts = {name: context.query.text(name) for name in texts}
    kept = {"state": "" if state else wanted.state, "order": order, **texts}
    kept = {name: text for name, text in kept.items() if text}
    known = {name for worker in seen.look.workers for name in worker.types or ()} | {row.type for row in found.tasks}
    queues, is_every = _offered(seen, wanted.state)
    view = SearchView(
        filters=texts,
        filtered=any(texts.values()),
        order=order,
        refused=refused,
        searched=found.searched,
        total=found.total,
        finished=not found.onward and not refused,
        said="nothing was searched" if refused else _said(found, narrow=wanted.is_narrow, begins=not after),
        onward=f"?{urlencode({**kept, 'after': found.onward})}" if found.onward else "",
        first=f"?{urlencode(kept)}",
        goes_on=wanted.is_narrow and found.timed_out,
        begins=not after,
        jobs=sorted(known - {""})[:_MOST_JOBS],
        queues=queues,
        is_every_queue=is_every,
        problems=found.problems,
    )
    return view, found, wanted


def _offered(seen: DashboardSnapshot, state: str) -> tuple[list[str], bool]:
    """The queues to choose from, and whether these are all."""
    states = [state] if state else [one for one in _STATES if one]
    counts = {queue.name: sum(getattr(queue, one) for one in states) for queue in seen.look.queues}
    if state == STATE_OF_LIST["history"]:  # few queues keep history
        counts = {name: count for name, count in counts.items() if count}
    if len(counts) <= _MOST_QUEUES:
        return list(counts), True
    return sorted(name for name in nlargest(_MOST_QUEUES, counts, key=counts.__getitem__) if counts[name]), False


def _found(context: Context, wanted: Filter, after: str, order: str) -> SearchPage:
    def page(after: str) -> SearchPage:
        return search(
            context.client, wanted, after=after, limit=_AT_ONCE, order=order, redaction=context.redaction,
            budget_s=_BUDGET_S if wanted.is_narrow else _FILL_S,
        )  # fmt: skip

    try:
        return page(after)
    except InvalidOption:  # a forged cursor
        if not after:
            raise
        return page("")


def _said(found: SearchPage, *, narrow: bool, begins: bool) -> str:
    if not narrow:
        return f"{found.total:,} in all"
    if not found.onward:
        searched = f"all {found.total:,} searched"
        return f"{len(found.tasks):,} found, {searched}" if begins else searched
    if found.timed_out:
        return f"searched {found.searched:,} of {found.total:,}, not finished"
    return f"searched {found.searched:,} of {found.total:,}, more on the next page"


def _tabs(seen: DashboardSnapshot, texts: Mapping[str, str]) -> list[tuple[str, str, int]]:
    """(state, URL of its tab, number of tasks); counts are of the chosen queue, regardless of other conditions."""
    queues = [queue for queue in seen.look.queues if texts["queue"] in ("", queue.name)]
    counts = {state: sum(getattr(queue, state) for queue in queues) for state in _STATES if state}
    counts[""] = sum(counts.values())
    kept = {name: value for name, value in texts.items() if value}
    return [(state, f"?{urlencode({'state': state, **kept})}", counts[state]) for state in _STATES]


def _took_s(row: TaskRow) -> float | None:
    """How long the last attempt ran, or of an item without a worker how long it was held."""
    if row.run_s is not None:
        return row.run_s
    return None if row.started is None or row.when is None else max((row.when - row.started).total_seconds(), 0.0)


def _bulk(context: Context) -> Done:
    form = context.form
    action = form.choice("action", CHANGES, "")
    if not action:
        raise Refused(f"no action is given: action is one of {', '.join(CHANGES)}")
    if form.flag("all"):
        wanted = _asked(form)
        if (action == "delete" or (action, wanted.state) == ("cancel", "dead")) and context.role < Role.ADMIN:
            what = "deleting all that match" if action == "delete" else "cancelling (so deleting) all that are dead"
            raise NotAllowed(f"{what} requires the role admin; select single tasks, or ask an admin")
        return begin(context, action, wanted, f"{action}: all that match")
    chosen = [_chosen(text) for text in form.all("ids", most=_MOST_CHOSEN + 1, longest=1000)]
    if not chosen:
        raise Refused("no task is selected")
    if len(chosen) > _MOST_CHOSEN:
        raise Refused(f"too many tasks are selected: at most {_MOST_CHOSEN}; select all that match instead")
    return _at_once(context, action, chosen, found=form.text("state"))


def _at_once(context: Context, action: str, chosen: list[tuple[str, str]], *, found: str) -> Done:
    by_queue: dict[str, list[str]] = {}
    for queue, task_id in chosen:
        by_queue.setdefault(queue, []).append(task_id)
    client = context.client
    changed = {queue: change(client, action, queue, ids, found=found) for queue, ids in by_queue.items()}
    note_events(client, action, changed, "dead" if found == "dead" else "")
    done = sum(changed.values())
    text = f"{done} of {len(chosen)} tasks {_CHANGED[action]}"
    return Done(
        text=text,
        to=context.url("tasks"),
        values={"changed": done, "chosen": len(chosen)},
        what=f"{len(chosen):,} selected:",
        ids=[task_id for _, task_id in chosen],
    )


def wanted_of(form: RequestParameters) -> Filter:
    """The filter of a form; a `job` that begins with = is a whole name. Raises InvalidName, InvalidOption."""
    queue, job = form.text("queue"), form.text("job")
    if queue:
        split_any_queue(queue)
    return Filter(
        queue=queue,
        state=form.choice("state", STATES, ""),
        type=job[1:] if job.startswith("=") else form.text("type"),
        job="" if job.startswith("=") else job,
        error=form.text("error"),
        id=form.text("id"),
        param=form.text("param"),
        group=form.text("group"),
        since=instant_of(form.text("since"), option="since"),
        until=instant_of(form.text("until"), option="until"),
    )


def _asked(form: RequestParameters) -> Filter:
    """The filter of an action, which must not be wider than requested. Raises Refused, InvalidName, InvalidOption."""
    form.one_of("state", STATES, "")
    if form.text("job") == "=":
        raise Refused("job='=' names no job: give =Name, a part of a name, or nothing")
    return wanted_of(form)


def _asked_dead(form: RequestParameters) -> Filter:
    form.one_of("state", ("dead",), "")
    return replace(_asked(form), state="dead")


def _chosen(text: str) -> tuple[str, str]:
    queue, _, task_id = text.partition(" ")
    split_any_queue(queue)
    return queue, task_id  # not checked, as tasks with invalid ids must be deletable, too


def _requeue_dead(context: Context) -> Done:
    form = context.form
    rate = form.optional("rate", lowest=0.001, highest=1_000_000, example="tasks per second, such as 50 or 0.5")
    at = f" at {per_second(rate)}" if rate else ""
    wanted = _asked_dead(form)
    return begin(context, "requeue", wanted, f"requeueing {_dead_named(context, wanted)}{at}", rate=rate)


def _purge_dead(context: Context) -> Done:
    wanted = _asked_dead(context.form)
    return begin(context, "delete", wanted, f"deleting {_dead_named(context, wanted)}")


def _dead_named(context: Context, wanted: Filter) -> str:
    """The subject of an action on dead tasks, for the audit log."""
    texts = texts_of(wanted)
    if wanted.group:
        group = _group(context, texts)
        return f"{counted(group.dead, 'dead task')} of group {group.id} of queue {group.queue} ({group.title})"
    named = " ".join(f"{name}={text}" for name, text in texts.items() if text and name != "state")
    return f"what is dead with {named}" if named else "what is dead"


pages: list[Page] = [
    Page(path="/tasks", name="tasks", endpoint=_tasks),
    Page(path="/dead", name="dead", endpoint=_dead),
    Page(path="/history", name="history", endpoint=_history),
]
actions: list[Action] = [
    Action(path="/tasks/bulk", name="tasks.bulk", endpoint=_bulk, takes=(*_CONDITIONS, "action", "all", "ids")),
    Action(path="/dead/requeue", name="dead.requeue", endpoint=_requeue_dead, takes=(*_CONDITIONS, "rate")),
    Action(path="/dead/purge", name="dead.purge", endpoint=_purge_dead, takes=_CONDITIONS),
]
