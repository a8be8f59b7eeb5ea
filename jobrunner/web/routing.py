"""Pages and actions as values, and the context of the request that they get: user, parameters, client, URLs.

There is no other way to put a handler into the dashboard, so none is without a role.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from jobrunner.client.client import Client
from jobrunner.redaction import Redaction
from jobrunner.web.access import Sessions
from jobrunner.web.auth import Identity
from jobrunner.web.live import DashboardSnapshot
from jobrunner.web.operations import Operations
from jobrunner.web.parameters import RequestParameters
from jobrunner.web.roles import ROLE_OF, Role

_PART = re.compile(r"[A-Za-z0-9_.:-]{1,300}(/[A-Za-z0-9_.:-]{1,300})?")
Values = Mapping[str, Any]


def _is_part(text: str, page: str) -> bool:
    # Browsers resolve . and .. before they ask; servers decode %2F, and ? and # end a path.
    fits = _PART.fullmatch(text) is not None and not {".", ".."} & set(text.split("/"))
    return fits and ("/" not in text or page.startswith("queue"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One request. `query` holds its query parameters, `form` those of a form or of a JSON object."""

    client: Client
    identity: Identity
    nonce: str
    csrf_token: str
    request: Request = field(repr=False)
    query: RequestParameters
    form: RequestParameters
    acts: bool
    """False for a read-only dashboard."""
    glance: Callable[..., DashboardSnapshot] = field(repr=False)
    """The snapshot that all tabs share, at most a second old. Raises ServerError."""
    operations: Operations = field(repr=False)
    sessions: Sessions | None = field(repr=False)
    """Sessions of the login page; None for other authentication methods."""
    path_for: Callable[..., str] = field(repr=False)
    address: str
    """The client's address (see addresses.py)."""
    root: str
    """Prefix of every URL: empty, or `/jobs`."""

    @property
    def redaction(self) -> Redaction:
        """The names of hidden parameters. Raises ServerError."""
        return self.client.redaction()

    @property
    def role(self) -> Role:
        """The role of the user."""
        return self.identity.role

    def path(self, name: str) -> str:
        """A parameter of the path, such as `queue` of /queues/{queue:path}."""
        return str(self.request.path_params[name])

    def url(self, page: str, **parts: Any) -> str:
        """The URL of a page or action by its name, with the prefix; `parts` are the parameters of its path.

        Empty for a part that no path can contain: a program that writes to Redis may give a task or a worker any name.
        The page shows such a row without a link.
        """
        if not all(_is_part(str(part), page) for part in parts.values()):
            return ""
        return self.root + self.path_for(page, **parts)

    def may(self, action: str) -> bool:
        """Whether the user may do that action (a name of `roles.ROLE_OF`)."""
        return self.acts and self.identity.role >= ROLE_OF[action]


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
