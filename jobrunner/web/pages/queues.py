"""Queues: a list, and a page for each with its tasks, settings and statistics; pause, resume, limit, purge."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from jobrunner.broker.keys import check_name, split_queue
from jobrunner.client.queue import configure_as
from jobrunner.client.settings_hash import SettingOrigin, read_settings
from jobrunner.errors import InvalidName
from jobrunner.inspector.attempts import with_beginnings
from jobrunner.inspector.doctor.attention import limit_checks, lost_checks, stall_checks, statistics_checks
from jobrunner.inspector.limit_use import limit_uses
from jobrunner.inspector.live_rates import Rates
from jobrunner.inspector.search_filter import Filter
from jobrunner.inspector.shards import OTHERS
from jobrunner.inspector.snapshot import is_known, queue_views
from jobrunner.inspector.stats import by_queue, jobs_of, read_window
from jobrunner.inspector.task_rows import STATES, first_rows
from jobrunner.queue_settings import QueueSettings, RateLimit
from jobrunner.web.errors import NotThere, Refused
from jobrunner.web.pages.operation import begin
from jobrunner.web.rendering import SPANS, asked_span, limit, plots, span
from jobrunner.web.routing import Action, Context, Done, Page, RequestParameters, Values

_ORDERS = ("name", "waiting", "scheduled", "pending", "dead", "done")
_AT_ONCE = 100
_FIRST = 8
_LONGEST_PAUSE_S = 30 * 86400
_MOST = 10_000_000
_PURGEABLE = ("waiting", "scheduled", "dead", "done")
_WAS, _PARTS = "was_", ("max", "interval", "unit")
_LIMITS = (
    *("max_inflight", "max_size", "max_inflight_per_partition", "history_max", "fair", "history_for", "history_unit"),
    *(f"{option}_{part}" for option in ("rate", "rate_per_partition") for part in _PARTS),
)
_SENT = (*_LIMITS, *(_WAS + name for name in _LIMITS))
"""The fields of the form of limits, each also with its value when the page was opened."""
_UNITS = ("SECONDS", "MINUTES", "HOURS")
_LENGTHS_S = {"days": 86_400, "hours": 3600, "minutes": 60}
_USES = {"max_inflight": "in flight", "rate": "of the rate", "max_size": "of the size"}


def _queues(context: Context) -> tuple[str, Values]:
    seen = context.snapshot()
    order = context.query.choice("order", _ORDERS, "name")
    text = context.query.text("q").casefold()
    found = [queue for queue in seen.look.queues if text in queue.name.casefold()]
    found.sort(key=lambda queue: (0 if order == "name" else -getattr(queue, order), queue.name))
    start = context.query.whole("start", 0, lowest=0, highest=100_000)
    start = min(start, max(len(found) - 1, 0) // _AT_ONCE * _AT_ONCE)  # queues may have left since the link
    return "queues.html", {
        "nav": seen.nav,
        "queues": found[start : start + _AT_ONCE],
        "found": len(found),
        "all": len(seen.look.queues),
        "start": start,
        "at_once": _AT_ONCE,
        "order": order,
        "q": context.query.text("q"),
        "rates": seen.rates,
        "unserved": {queue.name for queue in seen.unserved},
        "figures": by_queue(context.client, since=timedelta(hours=1), may_lack=True),
    }


def _queue(context: Context) -> tuple[str, Values]:
    name = _known_name(context.path("queue"))
    seen, span = context.snapshot(), asked_span(context)
    if name not in {queue.name for queue in seen.look.queues}:
        seen = context.snapshot(fresh=True)  # the queue may be new
    view = next((queue for queue in seen.look.queues if queue.name == name), None)
    if view is None and seen.look.queues and seen.look.queues[-1].name == OTHERS:  # it may be one that is not listed
        (view,) = queue_views(context.client, list(seen.look.workers), [name])
    if view is None:
        raise NotThere(f"there is no queue {name!r}: nothing was ever put into it")
    _, since, unit = SPANS[span]
    settings = context.client.queue(name).settings()
    uses = limit_uses(context.client, view)
    window = read_window(context.client, since, unit, name, may_lack=True)
    first = first_rows(context.client, name, (state for state in STATES if getattr(view, state)), count=_FIRST)
    return "queue.html", {
        "nav": seen.nav,
        "alerts": seen.alerts,
        "queue": view,
        "rates": seen.rates.get(name, Rates()),
        "settings": settings,
        "facts": shown_settings(settings, context.client.queue(name).origins()),
        "uses": [(_USES[one.name], one) for one in uses],
        "history": _history_of(settings),
        "plots": plots(context.client, span, window),
        "jobs": jobs_of(window)[:12],
        "first": {state: with_beginnings(rows, seen.look.workers) for state, rows in first.items()},
        "workers": [worker for worker in seen.look.workers if name in worker.queues],
        "unknown": [one for one in seen.look.unknown if one.queue == name],
        "checks": (
            *statistics_checks(window),
            *limit_checks(view, uses),
            *stall_checks([view], seen.look.workers),
            *lost_checks([row for row in seen.look.lost if row.queue == name], seen.look.workers),
        ),
        "is_unserved": name in {queue.name for queue in seen.unserved},
    }


def shown_settings(
    settings: QueueSettings, origins: Mapping[str, SettingOrigin]
) -> list[tuple[str, str, SettingOrigin, str]]:
    """(name, value, origin, declared value), formatted, for every setting that differs from its default or was changed
    by hand."""
    plain = read_settings({})
    rows = [(name, getattr(settings, name), origins.get(name, SettingOrigin())) for name in QueueSettings.__slots__]
    return [
        (name.replace("_", " "), _shown(value), origin, _shown(origin.declared))
        for name, value, origin in rows
        if value != getattr(plain, name) or origin.is_overridden
    ]


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, RateLimit):
        return limit(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return span(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _known_name(name: str) -> str:
    try:
        check_name(split_queue(name)[1], "queue name")
    except InvalidName as error:
        raise NotThere(str(error)) from error
    return name


def _pause(context: Context) -> Done:
    name = queue_named(context)
    for_s = context.form.optional("for", lowest=1, highest=_LONGEST_PAUSE_S, example="seconds, such as 600")
    context.client.queue(name).pause(for_s)
    return _done(context, name, f"queue {name} is paused{f' for {for_s:g} s' if for_s else ''}")


def _resume(context: Context) -> Done:
    name = queue_named(context)
    context.client.queue(name).resume()
    return _done(context, name, f"queue {name} is resumed")


def _limit(context: Context) -> Done:
    name, form = queue_named(context), context.form
    changed = {one for one in _LIMITS if one in form and form.text(one) != form.text(_WAS + one, "\0")}
    options: dict[str, Any] = {}
    for option in ("max_inflight", "max_size", "max_inflight_per_partition", "history_max"):
        if option in changed:
            options[option] = form.at_most(option, highest=_MOST)
    for option in ("rate", "rate_per_partition"):
        if f"{option}_max" in form and changed.intersection(f"{option}_{part}" for part in _PARTS):
            options[option] = _rate_of(form, option)
    if "fair" in changed:
        options["fair"] = form.flag("fair")
    if "history_for" in form and changed.intersection(("history_for", "history_unit")):
        length = form.optional("history_for", lowest=0, highest=_MOST, example="how long, such as 7 or 0.5")
        options["history"] = (length or 0) * _LENGTHS_S[form.one_of("history_unit", _LENGTHS_S, "hours")] or None
    if not options:
        raise Refused("no limit is given, or each as it was: max_inflight, max_size, rate_max, fair, history_for, …")
    configure_as(context.client.queue(name), context.identity.name, options)
    changes = ", ".join(
        f"{option.replace('_', ' ')} {'lifted' if value is None else _shown(value)}"
        for option, value in options.items()
    )
    return _done(context, name, f"limits of queue {name}: {changes}")


def _rate_of(form: RequestParameters, option: str) -> RateLimit | None:
    most = form.at_most(f"{option}_max", highest=_MOST)
    interval = form.at_most(f"{option}_interval", highest=86_400, default=1)
    unit = form.one_of(f"{option}_unit", _UNITS, "SECONDS")
    if most and not interval:
        raise Refused(f"{option}_interval=0: give the length of the interval, from 1")
    return RateLimit(max_tokens=most, interval=interval, interval_unit=unit) if most and interval else None


def _history_of(settings: QueueSettings) -> tuple[str, str]:
    """(number, unit) of the time for which finished tasks are kept, in the largest unit that divides it."""
    if settings.history is None:
        return "", "hours"
    unit = next((one for one, length_s in _LENGTHS_S.items() if settings.history % length_s == 0), "minutes")
    return f"{settings.history / _LENGTHS_S[unit]:.12g}", unit  # the form sends it back: it must not change


def _purge(context: Context) -> Done:
    name = queue_named(context)
    state = context.form.choice("state", _PURGEABLE, "")
    if not state:
        raise Refused(f"no state is given: state is one of {', '.join(_PURGEABLE)}")
    what = "the history of" if state == "done" else f"what is {state} in"
    return begin(context, "delete", Filter(queue=name, state=state), f"purging {what} queue {name}")


def queue_named(context: Context) -> str:
    """The queue of the path. Raises NotThere when it is not known."""
    name = context.path("queue")
    try:
        split_queue(name)
    except InvalidName as error:
        raise NotThere(str(error)) from error
    if not is_known(context.client, name):
        raise NotThere(f"there is no queue {name!r}")
    return name


def _done(context: Context, name: str, text: str) -> Done:
    return Done(text=text, to=context.url("queue", queue=name) or context.url("queues"))


pages: list[Page] = [
    Page(path="/queues", name="queues", endpoint=_queues),
    Page(path="/queues/{queue:path}", name="queue", endpoint=_queue),
]
actions: list[Action] = [
    Action(path="/queues/{queue:path}/pause", name="queue.pause", endpoint=_pause, takes=("for",)),
    Action(path="/queues/{queue:path}/resume", name="queue.resume", endpoint=_resume),
    Action(path="/queues/{queue:path}/limit", name="queue.limit", endpoint=_limit, takes=_SENT),
    Action(path="/queues/{queue:path}/purge", name="queue.purge", endpoint=_purge, takes=("state",)),
]
