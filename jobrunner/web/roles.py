"""Roles and permissions: three roles, each with the rights of those below it, and one table of all actions.

An action that is not in the table cannot be declared (see `routing.Action`), so no right can be forgotten.
"""

from enum import IntEnum
from types import MappingProxyType

from jobrunner.errors import InvalidOption


class Role(IntEnum):
    """A viewer reads; an operator also retries and pauses; an admin also changes limits, deletes and stops workers."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


ROLE_OF = MappingProxyType(
    {
        "queue.pause": Role.OPERATOR,
        "queue.resume": Role.OPERATOR,
        "queue.limit": Role.ADMIN,
        "queue.purge": Role.ADMIN,
        "task.requeue": Role.OPERATOR,
        "task.cancel": Role.OPERATOR,
        "task.delete": Role.OPERATOR,
        "task.run-now": Role.OPERATOR,
        "task.replay": Role.OPERATOR,
        "tasks.bulk": Role.OPERATOR,
        "dead.requeue": Role.OPERATOR,
        "dead.purge": Role.ADMIN,
        "periodic.run": Role.OPERATOR,
        "periodic.enable": Role.OPERATOR,
        "periodic.disable": Role.OPERATOR,
        "worker.quiet": Role.ADMIN,
        "worker.resume": Role.ADMIN,
        "worker.stop": Role.ADMIN,
        "operation.cancel": Role.OPERATOR,
    }
)
"""The least role for each action."""


def role_named(name: str) -> Role:
    """The role `viewer`, `operator` or `admin`. Raises InvalidOption."""
    try:
        return Role[name.upper()]
    except KeyError as error:
        raise InvalidOption(f"role {name!r}: choose viewer, operator or admin") from error
