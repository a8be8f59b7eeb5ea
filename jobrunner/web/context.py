"""What a page or an action is given: who asks, what for, and ways to the server and to other pages."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from jobrunner.client.client import Client
from jobrunner.inspector.redaction import Redaction
from jobrunner.web.auth import Identity
from jobrunner.web.live import Glance
from jobrunner.web.operations import Operations
from jobrunner.web.parameters import Parameters
from jobrunner.web.roles import ROLE_OF, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One request. `query` holds its query parameters, `form` those of a form or of a JSON object."""

    client: Client
    identity: Identity
    nonce: str
    csrf_token: str
    request: Request = field(repr=False)
    query: Parameters
    form: Parameters
    redaction: Redaction
    acts: bool
    """Whether this dashboard has actions at all."""
    glance: Callable[..., Glance] = field(repr=False)
    """What all tabs share: this moment, a second old at most. Raises ServerError."""
    operations: Operations = field(repr=False)
    path_for: Callable[..., str] = field(repr=False)
    address: str
    """Where it comes from, as far as that can be believed (see addresses.py)."""
    root: str
    """What every URL begins with: empty, or `/jobs`."""

    @property
    def role(self) -> Role:
        """What who asks is here."""
        return self.identity.role

    def path(self, name: str) -> str:
        """A parameter of the path, such as `queue` of /queues/{queue:path}."""
        return str(self.request.path_params[name])

    def url(self, page: str, **parts: Any) -> str:
        """The URL of a page or action by its name, with the prefix; `parts` are the parameters of its path."""
        return self.root + self.path_for(page, **parts)

    def may(self, action: str) -> bool:
        """Whether who asks may do that action (a name of `roles.ROLE_OF`)."""
        return self.acts and self.identity.role >= ROLE_OF[action]
