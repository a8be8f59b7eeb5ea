"""The dashboard as an ASGI application: its routes, its errors, and ways to mount it.

Mountable: `app.mount("/jobs", create_app(client, auth=…))` in FastAPI and Starlette, `asgi_under` for Django.
Nothing runs before the first request, so it needs no lifespan of the application that mounts it. A proxy in front may
keep or strip the prefix.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobrunner.client.client import Client
from jobrunner.errors import InvalidOption, JobrunnerError
from jobrunner.formatting import describe, install_command
from jobrunner.inspector.snapshot import latency_ms
from jobrunner.option_names import checks_options
from jobrunner.web.access import SecurityHeaders
from jobrunner.web.addresses import networks
from jobrunner.web.auth import AskedOf, Auth, Identity, Role, TrustedProxy
from jobrunner.web.credentials import LoginAuth
from jobrunner.web.dashboard import Dashboard, Handler
from jobrunner.web.errors import NotThere, Refused
from jobrunner.web.login import Login
from jobrunner.web.pages import all_actions, all_pages
from jobrunner.web.rendering import STATIC, version_of
from jobrunner.web.settings import checked_prefix, checked_secret, thresholds


@checks_options
def create_app(
    client: Client,
    *,
    auth: Auth | Callable[[HTTPConnection], Identity | None] | None = None,
    prefix_path: str = "",
    redact: Iterable[str] = (),
    actions: bool = True,
    secret: str = "",
    trusted_proxies: Iterable[str] = (),
    alerts: Mapping[str, float] | None = None,
) -> Starlette:
    """Makes the dashboard of `client`.

    `auth` is required: there is no default login, because a request from a proxy on this machine may come from any
    client. `prefix_path` is the prefix of URLs behind a proxy; a mounted application needs none. `redact` adds names of
    parameters to hide. `actions=False` makes the dashboard read-only. `secret` signs form tokens, together with the key
    of `auth`: all processes need the same value. Where neither has a key (a function, a proxy), each process signs with
    its own random key. `trusted_proxies`: addresses whose X-Forwarded-For header gives the client's address. `alerts`:
    thresholds above which pages warn: waiting_s, failed_share, dead_per_hour.

    Raises InvalidOption for an argument of a wrong type or value, UnknownOption for an unknown one.
    """
    if not isinstance(client, Client):
        raise InvalidOption(f"client is of type {type(client).__name__}: give a jobrunner.Client")
    asked = _checked_auth(auth)
    prefix = checked_prefix(prefix_path)
    trusted = networks(trusted_proxies) or (asked.trusted if isinstance(asked, TrustedProxy) else ())
    warns_at = thresholds({} if alerts is None else alerts)
    if not isinstance(actions, bool):
        raise InvalidOption(f"actions={describe(actions)}: give True, or False for a dashboard that is read-only")
    key = checked_secret(secret)
    client.hide(redact)
    dashboard = Dashboard(client, asked, acts=actions, secret=key, trusted=trusted, alerts=warns_at)
    dashboard.app = app = Starlette(
        routes=_routes(dashboard, asked),
        middleware=[Middleware(SecurityHeaders), *([Middleware(UnderPrefix, prefix=prefix)] if prefix else [])],
        exception_handlers={HTTPException: _refusing(dashboard)},
    )
    app.state.dashboard = dashboard
    return app


def _checked_auth(auth: Auth | Callable[[HTTPConnection], Identity | None] | None) -> Auth:
    if callable(auth):
        return AskedOf(auth)
    if all(hasattr(auth, name) for name in ("identify", "signing_key", "challenge")) and auth is not None:
        return auth
    problem = "auth is not given, so no user could log in" if auth is None else f"auth is of type {type(auth).__name__}"
    raise InvalidOption(
        f"{problem}: give a function of your application, Token(…), Basic(…) or TrustedProxy(…), or LoginLinks(); "
        "auth=Loopback() makes everybody on this machine an admin"
    )


def _routes(dashboard: Dashboard, auth: Auth) -> list[BaseRoute]:
    found: list[BaseRoute] = [Route(page.path, dashboard.page(page), name=page.name) for page in all_pages()]
    found += [Route(one.path, dashboard.action(one), name=one.name, methods=["POST"]) for one in all_actions()]
    if isinstance(auth, LoginAuth):
        login = Login(dashboard, auth)
        found.append(Route("/login", dashboard.guarded(login.form), name="login"))
        found.append(Route("/login", dashboard.guarded(login.enter), name="login.enter", methods=["POST"]))
        found.append(Route("/login/links", dashboard.guarded(login.link), name="login.link", methods=["POST"]))
        found.append(Route("/sessions/end", dashboard.guarded(login.end), name="sessions.end", methods=["POST"]))
        found.append(Route("/logout", dashboard.guarded(login.leave), name="logout", methods=["POST"]))
    found.append(Route("/live", _live(dashboard), name="live"))
    found.append(Route("/metrics", _metrics(dashboard), name="metrics"))
    found.append(Route("/health", _health(dashboard), name="health"))
    found.append(Mount("/static", _StaticFiles(directory=STATIC), name="static"))
    return found


class _StaticFiles(StaticFiles):
    """The style and the script. Browsers keep a file that was requested by its current version: another version has
    another URL."""

    _versioned = staticmethod(version_of(STATIC))

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The file. Any other version is not kept, as an old page may ask for it during an upgrade."""
        response = await super().get_response(path, scope)
        if "?" in (current := self._versioned(path)) and current == f"{path}?{scope['query_string'].decode('latin-1')}":
            response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response


def _live(dashboard: Dashboard) -> Handler:
    async def live(request: Request) -> Response:
        identity = await dashboard.access.identified(request, Role.VIEWER)
        session = await run_in_threadpool(dashboard.access.session, request)
        if session is None:
            return dashboard.live.answer(f"name {identity.name}")
        return dashboard.live.answer(session.id, lambda: dashboard.access.sessions.with_id(session.id) is not None)

    return dashboard.guarded(live)


def _metrics(dashboard: Dashboard) -> Handler:
    @cache
    def found() -> tuple[Any, str]:
        try:
            exposition = import_module("jobrunner.metrics.exposition")
        except ModuleNotFoundError as error:
            raise NotThere(f"metrics need {error.name}: {install_command('metrics')}") from error
        return exposition.Scrapes(dashboard.client), exposition.CONTENT_TYPE

    async def metrics(request: Request) -> Response:
        """Metrics for Prometheus, which authenticates as any client does (with a bearer token, or as a user)."""
        await dashboard.access.identified(request, Role.VIEWER)
        scrapes, kind = found()
        status, body = await run_in_threadpool(scrapes.answer)
        return Response(body, status, media_type=kind if status == 200 else "text/plain")

    return dashboard.guarded(metrics)


def _health(dashboard: Dashboard) -> Callable[[Request], Response]:
    def health(_: Request) -> Response:
        """200 when the server answers, for containers and load balancers; reveals nothing else."""
        try:
            latency_ms(dashboard.client)
        except JobrunnerError:
            return PlainTextResponse("the server is away\n", 503)
        return PlainTextResponse("ok\n")

    return health


def _refusing(dashboard: Dashboard) -> Callable[[Request, Exception], Response]:
    def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        nothing_there = NotThere("there is no such page")
        return dashboard.refusal(request, nothing_there if error.status_code == 404 else _http(error))

    return refuse


def _http(error: HTTPException) -> Refused:
    refused = Refused(error.detail)
    refused.status = error.status_code
    return refused


class UnderPrefix:
    """Makes every URL begin with `prefix`, whether the proxy in front keeps or strips the prefix."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app, self._prefix = app, prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on with the prefix as its root path (ASGI: `path` holds it too)."""
        if scope["type"] in ("http", "websocket"):
            root, below = _at(scope)
            if not is_below(below, self._prefix):
                below = self._prefix + below
            scope = {**scope, "root_path": root + self._prefix, "path": root + below}
        await self._app(scope, receive, send)


def asgi_under(path: str, dashboard: ASGIApp, others: ASGIApp) -> ASGIApp:
    """An ASGI application: `dashboard` below `path`, `others` (Django's, for example) for everything else, its start
    and shutdown among it."""
    prefix = checked_prefix(path)
    if not prefix:
        raise InvalidOption(f"path {path!r} leaves nothing to the other application: give one such as /jobs")

    async def both(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(others, dashboard, scope, receive, send)
            return
        root, below = _at(scope)
        if scope["type"] == "http" and is_below(below, prefix):
            await dashboard({**scope, "root_path": root + prefix, "path": root + below}, receive, send)
        else:
            await others(scope, receive, send)

    return both


async def _lifespan(others: ASGIApp, dashboard: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """The lifespan of the other application. Django has none and raises: the dashboard answers, which needs none."""
    is_taken = False

    async def taken() -> Message:
        nonlocal is_taken
        is_taken = True
        return await receive()

    try:
        await others(scope, taken, send)
    except Exception:
        if is_taken:  # the start or the shutdown failed
            raise
        await dashboard(scope, receive, send)


def _at(scope: Scope) -> tuple[str, str]:
    """The root path that a proxy in front strips, as the server is told (`uvicorn --root-path /shop`), and the path
    below it. `path` of a scope begins with the root path (ASGI), though not from every server."""
    root, path = scope.get("root_path", ""), scope["path"]
    return root, path.removeprefix(root) if is_below(path, root) else path


def is_below(path: str, prefix: str) -> bool:
    """Whether a path is the prefix or goes on below it."""
    return path == prefix or path.startswith(prefix + "/")
