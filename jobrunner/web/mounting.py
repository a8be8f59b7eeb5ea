"""Mounting below a path: behind a proxy that keeps or strips the prefix, and inside of ASGI frameworks."""

from starlette.types import ASGIApp, Receive, Scope, Send

from jobrunner.errors import InvalidOption


class UnderPrefix:
    """Makes every URL begin with `prefix`, whether the proxy in front passes the prefix on or takes it off."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app, self._prefix = app, prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on with the prefix as its root path (ASGI: `path` holds it too)."""
        if self._prefix and scope["type"] in ("http", "websocket"):
            root, path = scope.get("root_path", ""), scope["path"]
            below = path.removeprefix(root) if root else path
            if not is_below(below, self._prefix):
                below = self._prefix + below
            scope = {**scope, "root_path": root + self._prefix, "path": root + below}
        await self._app(scope, receive, send)


def asgi_under(path: str, dashboard: ASGIApp, others: ASGIApp) -> ASGIApp:
    """An ASGI application: `dashboard` below `path`, `others` (Django's, for example) for everything else."""
    prefix = checked_prefix(path)

    async def both(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_below(scope["path"], prefix):
            await dashboard({**scope, "root_path": scope.get("root_path", "") + prefix}, receive, send)
        elif scope["type"] == "lifespan":  # Django raises at it, and the dashboard needs nothing from it
            await dashboard(scope, receive, send)
        else:
            await others(scope, receive, send)

    return both


def is_below(path: str, prefix: str) -> bool:
    """Whether a path is the prefix or goes on below it."""
    return path == prefix or path.startswith(prefix + "/")


def checked_prefix(prefix: str) -> str:
    """A prefix as `/jobs`, or empty. Raises InvalidOption."""
    bare = prefix.strip("/")
    if bare and not all(part.replace("-", "").replace("_", "").replace(".", "").isalnum() for part in bare.split("/")):
        raise InvalidOption(f"prefix path {prefix!r}: give a path such as /jobs, of letters, digits, . _ -")
    return f"/{bare}" if bare else ""
