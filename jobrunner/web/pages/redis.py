"""The Redis server: its state, and the checks of `jobrunner doctor`."""

from jobrunner.inspector.doctor.environment import clock_check, facts_checks
from jobrunner.web.routing import Context, Page, Values


def _redis(context: Context) -> tuple[str, Values]:
    seen = context.snapshot()
    found = seen.look.server
    checks = [*(facts_checks(found) if found else ()), clock_check(context.client)]
    return "redis.html", {
        "nav": seen.nav,
        "server": found,
        "checks": checks,
        "latency_ms": seen.look.latency_ms,
    }


pages: list[Page] = [
    Page(path="/redis", name="redis", endpoint=_redis),
]
