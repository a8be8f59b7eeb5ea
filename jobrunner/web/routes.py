"""All pages and actions of the dashboard."""

from jobrunner.web.actions import dead as dead_actions
from jobrunner.web.actions import operations as operation_actions
from jobrunner.web.actions import periodic as periodic_actions
from jobrunner.web.actions import queues as queue_actions
from jobrunner.web.actions import tasks as task_actions
from jobrunner.web.actions import workers as worker_actions
from jobrunner.web.pages import (
    audit,
    history,
    operation,
    overview,
    periodic,
    pipelines,
    queues,
    redis,
    sessions,
    task,
    tasks,
    workers,
)
from jobrunner.web.routing import Action, Page

_PAGES = (overview, queues, tasks, task, workers, periodic, pipelines, history, redis, audit, operation, sessions)
_ACTIONS = (queue_actions, task_actions, dead_actions, periodic_actions, worker_actions, operation_actions)


def all_pages() -> list[Page]:
    """Every page, as the modules in `pages/` declare them in `routes`."""
    return [page for module in _PAGES for page in module.routes]


def all_actions() -> list[Action]:
    """Every action."""
    return [action for module in _ACTIONS for action in module.routes]
