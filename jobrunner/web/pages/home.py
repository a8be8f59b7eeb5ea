"""The first page."""

from jobrunner.inspector.overview import queue_views
from jobrunner.web.context import Context
from jobrunner.web.routing import Page, Values


def _overview(context: Context) -> tuple[str, Values]:
    workers = context.client.workers()
    return "home.html", {"queues": queue_views(context.client, workers), "workers": workers}


routes = [Page(path="/", name="overview", endpoint=_overview)]
