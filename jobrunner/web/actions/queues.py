"""Actions on a queue: pause, resume, limit, purge."""

from typing import Any

from jobrunner.broker.keys import split_queue
from jobrunner.errors import InvalidName
from jobrunner.inspector.search import Filter
from jobrunner.settings import RateLimit
from jobrunner.web.actions.start_operation import begin
from jobrunner.web.context import Context
from jobrunner.web.errors import NotThere, Refused
from jobrunner.web.routing import Action, Done

_LONGEST_PAUSE_S = 30 * 86400
_MOST = 10_000_000
_PURGEABLE = ("waiting", "scheduled", "dead", "done")
_UNITS = ("SECONDS", "MINUTES", "HOURS")


def _pause(context: Context) -> Done:
    name = queue_named(context)
    for_s = context.form.number("for", None, lowest=1, highest=_LONGEST_PAUSE_S)
    context.client.queue(name).pause(for_s)
    return _done(context, name, f"queue {name} is paused{f' for {for_s:g} s' if for_s else ''}")


def _resume(context: Context) -> Done:
    name = queue_named(context)
    context.client.queue(name).resume()
    return _done(context, name, f"queue {name} is resumed")


def _limit(context: Context) -> Done:
    name, form = queue_named(context), context.form
    options: dict[str, Any] = {}
    for option in ("max_inflight", "max_size"):
        if option in form:
            options[option] = form.whole(option, 0, lowest=1, highest=_MOST) or None
    if "rate_max" in form:
        most = form.whole("rate_max", 0, lowest=1, highest=_MOST)
        interval = form.whole("rate_interval", 1, lowest=1, highest=86_400)
        unit = form.choice("rate_unit", _UNITS, "SECONDS")
        options["rate"] = RateLimit(max_tokens=most, interval=interval, interval_unit=unit) if most else None
    if not options:
        raise Refused("no limit is given: max_inflight, max_size or rate_max")
    context.client.queue(name).configure(**options)
    said = ", ".join(f"{option} {'lifted' if value is None else 'set'}" for option, value in options.items())
    return _done(context, name, f"limits of queue {name}: {said}")


def _purge(context: Context) -> Done:
    name = queue_named(context)
    state = context.form.choice("state", _PURGEABLE, "")
    if not state:
        raise Refused(f"no state is given: state is one of {', '.join(_PURGEABLE)}")
    return begin(context, "delete", Filter(queue=name, state=state), f"purging what is {state} in queue {name}")


def queue_named(context: Context) -> str:
    """The queue of the path, which must be known. Raises NotThere."""
    name = context.path("queue")
    try:
        split_queue(name)
    except InvalidName as error:
        raise NotThere(str(error)) from error
    if name not in context.client.queues():
        raise NotThere(f"there is no queue {name!r}")
    return name


def _done(context: Context, name: str, text: str) -> Done:
    return Done(text=text, to=context.url("queue", queue=name) or context.url("queues"))


routes = [
    Action(path="/queues/{queue:path}/pause", name="queue.pause", endpoint=_pause),
    Action(path="/queues/{queue:path}/resume", name="queue.resume", endpoint=_resume),
    Action(path="/queues/{queue:path}/limit", name="queue.limit", endpoint=_limit),
    Action(path="/queues/{queue:path}/purge", name="queue.purge", endpoint=_purge),
]
