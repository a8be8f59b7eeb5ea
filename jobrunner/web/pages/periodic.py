"""Periodic jobs: when they run, when they ran, and whether anybody would run them."""

from jobrunner.web.context import Context
from jobrunner.web.routing import Page, Values


def _periodic(context: Context) -> tuple[str, Values]:
    return "periodic.html", {"nav": context.glance().nav, "jobs": context.client.periodics()}


routes = [Page(path="/periodic", name="periodic", endpoint=_periodic)]
