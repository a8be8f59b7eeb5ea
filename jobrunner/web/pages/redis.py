"""The server: what it says of itself, and what of that should worry somebody."""

from jobrunner.inspector.overview import latency_ms, server_facts
from jobrunner.inspector.server_checks import clock_check, facts_checks
from jobrunner.web.context import Context
from jobrunner.web.pages.now import now
from jobrunner.web.routing import Page, Values


def _redis(context: Context) -> tuple[str, Values]:
    found = server_facts(context.client)
    checks = [*(facts_checks(found) if found else ()), clock_check(context.client)]
    return "redis.html", {
        "nav": now(context).nav,
        "server": found,
        "checks": checks,
        "latency_ms": latency_ms(context.client),
    }


routes = [Page(path="/redis", name="redis", endpoint=_redis)]
