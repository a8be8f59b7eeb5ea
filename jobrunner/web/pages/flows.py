"""Pages of flows: the last enqueued flows, and the steps and callbacks of a flow."""

from functools import partial

from jobrunner.codec import decode
from jobrunner.encryption.cipher import is_encrypted_result
from jobrunner.errors import JobrunnerError
from jobrunner.inspector.flows import MAYBE_ENDED, NOT_BEGUN, has_flows_from, read_flow, recent_flows
from jobrunner.task import ENCRYPTED
from jobrunner.web.errors import NotThere
from jobrunner.web.pages.task import shown
from jobrunner.web.routing import Context, Page, Values

_FLOWS_AT_ONCE = 20
_MOST_FLOWS = 1000
_STEPS_AT_ONCE = 20


def _flows(context: Context) -> tuple[str, Values]:
    page = context.query.whole("page", 1, lowest=1, highest=_MOST_FLOWS // _FLOWS_AT_ONCE)
    found = recent_flows(context.client, first=(page - 1) * _FLOWS_AT_ONCE, count=_FLOWS_AT_ONCE)
    has_older = page < _MOST_FLOWS // _FLOWS_AT_ONCE and has_flows_from(context.client, page * _FLOWS_AT_ONCE)
    return "flows.html", {
        "nav": context.snapshot().nav, "flows": found, "page": page, "has_older": has_older, "flow": None,
    }  # fmt: skip


def _flow(context: Context) -> tuple[str, Values]:
    page = context.query.whole("page", 1, lowest=1, highest=1_000_000)
    first, flow = (page - 1) * _STEPS_AT_ONCE, context.path("flow")
    found = read_flow(context.client, flow, first=first, count=_STEPS_AT_ONCE, render=partial(_passed_on, context))
    if found is None:
        raise NotThere("there is no such flow: it ended, or waited, longer ago than its ttl, or never was")
    pages = -(-found.total // _STEPS_AT_ONCE)
    return "flows.html", {
        "nav": context.snapshot().nav,
        "flow": found,
        "page": page,
        "last_page": max(pages, 1),
        "at_once": _STEPS_AT_ONCE,
        "without_record": (NOT_BEGUN, MAYBE_ENDED),
    }


def _passed_on(context: Context, result: bytes) -> str:
    """The result that a step passed on, formatted as one line; '' for none."""
    if not result:
        return ""
    if is_encrypted_result(result):
        return ENCRYPTED
    if result.startswith(b"@"):
        return "(in pieces: a large group)"
    try:
        return " ".join(shown(context, decode(result)).split())[:200]
    except (JobrunnerError, ValueError, RecursionError):
        return "(open the task)"


pages: list[Page] = [
    Page(path="/flows", name="flows", endpoint=_flows),
    Page(path="/flows/{flow}", name="flow", endpoint=_flow),
]
