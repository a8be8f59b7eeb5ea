"""The dashboard: pages, actions and live updates over HTTP, as an ASGI application (`jobrunner.web.app.create_app`).

Needs the extra `web`. Invariants: no handler without a role, no state change without a same-origin proof, no unescaped
value in a page, and no read from the server while no tab is open.
"""

from typing import TYPE_CHECKING, Any

from jobrunner.formatting import require_extra

if TYPE_CHECKING:
    from jobrunner.web.app import asgi_under as asgi_under
    from jobrunner.web.app import create_app as create_app
    from jobrunner.web.auth import Identity as Identity
    from jobrunner.web.auth import Loopback as Loopback
    from jobrunner.web.auth import Role as Role
    from jobrunner.web.auth import TrustedProxy as TrustedProxy
    from jobrunner.web.credentials import Basic as Basic
    from jobrunner.web.credentials import Token as Token
    from jobrunner.web.login import LoginLinks as LoginLinks

__all__ = ["Basic", "Identity", "LoginLinks", "Loopback", "Role", "Token", "TrustedProxy", "asgi_under", "create_app"]

_AT = {
    "create_app": "app", "asgi_under": "app", "Basic": "credentials", "Token": "credentials", "LoginLinks": "login",
}  # fmt: skip

require_extra("jobrunner.web", "web", "starlette", "jinja2")


def __getattr__(name: str) -> Any:
    # Late, so that an import of one module of this package does not import all of them.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_AT.get(name, 'auth')}"), name)
