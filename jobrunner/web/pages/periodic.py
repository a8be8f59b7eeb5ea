"""Periodic jobs: schedule, last and next tick, and whether a worker has loaded them."""

from jobrunner.web.context import Context
from jobrunner.web.routing import Page, Values


def _periodic(context: Context) -> tuple[str, Values]:
    return "periodic.html", {"nav": context.glance().nav, "jobs": context.client.periodics()}


routes = [Page(path="/periodic", name="periodic", endpoint=_periodic)]
