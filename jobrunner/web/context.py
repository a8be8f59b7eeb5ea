"""What a page or an action is given: who asks, what for, and ways to the server and to other pages."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from jobrunner.client.client import Client
from jobrunner.redaction import Redaction
from jobrunner.web.auth import Identity
from jobrunner.web.live import DashboardSnapshot
from jobrunner.web.operations import Operations
from jobrunner.web.parameters import RequestParameters
from jobrunner.web.roles import ROLE_OF, Role
from jobrunner.web.sessions import Sessions

_PART = re.compile(r"[A-Za-z0-9_.:-]{1,300}(/[A-Za-z0-9_.:-]{1,300})?")


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
    """Whether this dashboard has actions at all."""
    glance: Callable[..., DashboardSnapshot] = field(repr=False)
    """What all tabs share: this moment, a second old at most. Raises ServerError."""
    operations: Operations = field(repr=False)
    sessions: Sessions | None = field(repr=False)
    """Those of the login page; None where people log in otherwise."""
    path_for: Callable[..., str] = field(repr=False)
    address: str
    """Where it comes from, as far as that can be believed (see addresses.py)."""
    root: str
    """What every URL begins with: empty, or `/jobs`."""

    @property
    def redaction(self) -> Redaction:
        """What no page shows. Raises ServerError."""
        return self.client.redaction()

    @property
    def role(self) -> Role:
        """What who asks is here."""
        return self.identity.role

    def path(self, name: str) -> str:
        """A parameter of the path, such as `queue` of /queues/{queue:path}."""
        return str(self.request.path_params[name])

    def url(self, page: str, **parts: Any) -> str:
        """The URL of a page or action by its name, with the prefix; `parts` are the parameters of its path.

        Empty for a part that no path can have: whoever writes to the server may give a task or a worker any name. Such
        a row is shown without a link, and the others with theirs.
        """
        if not all(_is_part(str(part), page) for part in parts.values()):
            return ""
        return self.root + self.path_for(page, **parts)

    def may(self, action: str) -> bool:
        """Whether who asks may do that action (a name of `roles.ROLE_OF`)."""
        return self.acts and self.identity.role >= ROLE_OF[action]
