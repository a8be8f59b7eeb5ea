"""All pages and actions of the dashboard."""

from jobrunner.web.pages import audit, history, overview, periodic, pipelines, queues, redis, task, tasks, workers
from jobrunner.web.routing import Action, Page

_PAGES = (overview, queues, tasks, task, workers, periodic, pipelines, history, redis, audit)


def all_pages() -> list[Page]:
    """Every page, as the modules in `pages/` declare them in `routes`."""
    return [page for module in _PAGES for page in module.routes]


def all_actions() -> list[Action]:
    """Every action."""
    return []
