"""The dashboard by subject: pages, which only read, and actions, which change something.

A module has `pages: list[Page]`, whose endpoints return (template, values), and optionally `actions: list[Action]`,
whose endpoints act and return `Done`.
"""

from jobrunner.web.pages import (
    audit,
    events,
    flows,
    operation,
    overview,
    periodic,
    pipelines,
    queues,
    redis,
    sessions,
    station,
    task,
    tasks,
    workers,
)
from jobrunner.web.routing import Action, Page

_PAGES = (
    *(overview, queues, tasks, task, workers, periodic, pipelines, station, flows, redis, events, audit, operation),
    sessions,
)
_ACTIONS = (queues, tasks, task, periodic, workers, operation)


def all_pages() -> list[Page]:
    """Every page of the dashboard."""
    return [page for module in _PAGES for page in module.pages]


def all_actions() -> list[Action]:
    """Every action of the dashboard."""
    return [action for module in _ACTIONS for action in module.actions]
