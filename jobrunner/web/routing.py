"""Pages and actions as values. There is no other way to put a handler into the dashboard, so none is without a role."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jobrunner.web.context import Context
from jobrunner.web.roles import ROLE_OF, Role

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """GET `path`: `endpoint` reads and returns (name of a template, its values). It must change nothing."""

    path: str
    name: str
    endpoint: Callable[[Context], tuple[str, Values]]
    role: Role = Role.VIEWER


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The outcome of an action: one line for a person, the page to show next, and `values` for programs."""

    text: str
    to: str
    values: Values | None = None
    leads: bool = False
    """Whether to go there even when the form names a page to come back to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """POST `path`: `endpoint` changes something. Its role is that of its name in `roles.ROLE_OF`; none is an error."""

    path: str
    name: str
    endpoint: Callable[[Context], Done]

    def __post_init__(self) -> None:
        if self.name not in ROLE_OF:
            raise KeyError(f"action {self.name!r} has no role: add it to jobrunner.web.roles.ROLE_OF")

    @property
    def role(self) -> Role:
        """The least role that may do this."""
        return ROLE_OF[self.name]
