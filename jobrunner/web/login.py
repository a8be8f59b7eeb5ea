"""The login page of `Token`: the secret is typed once, and a signed session cookie stands for it afterwards."""

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from jobrunner.web import security
from jobrunner.web.auth import Identity, Token
from jobrunner.web.dashboard import Dashboard, read_form
from jobrunner.web.parameters import Parameters, parse_pairs
from jobrunner.web.refusals import TooMany
from jobrunner.web.roles import Role

_NOBODY = Identity(name="", role=Role.VIEWER)


class Login:
    """Three handlers: the form, what it sends, and the way out."""

    def __init__(self, dashboard: Dashboard, auth: Token) -> None:
        self._dashboard, self._auth = dashboard, auth

    async def form(self, request: Request) -> Response:
        """GET /login."""
        return self._shown(request, parse_pairs(request.url.query).text("next", "/", longest=2000), "")

    async def enter(self, request: Request) -> Response:
        """POST /login."""
        form = await read_form(request)
        security.check_meant(request, _NOBODY, self._dashboard.key, form.text(security.TOKEN_FIELD))
        onward = form.text("next", longest=2000)
        given = form.text("token", longest=1000)
        try:
            identity = await run_in_threadpool(
                self._dashboard.guesses.tried, request, "login", lambda: self._auth.accept(given), known=True
            )
        except TooMany as error:
            return self._dashboard.later(self._shown(request, onward, str(error), status=error.status), error)
        if identity is None:
            return self._shown(request, onward, "that is not the token", status=403)
        home = request.scope.get("root_path", "") + "/"
        response = RedirectResponse(security.local_path(onward, home), 303)
        self._dashboard.log_in(request, response, identity)
        return response

    async def leave(self, request: Request) -> Response:
        """POST /logout."""
        identity = await self._dashboard.identified(request, Role.VIEWER)
        form = await read_form(request)
        security.check_meant(request, identity, self._dashboard.key, form.text(security.TOKEN_FIELD))
        root = request.scope.get("root_path", "")
        response = RedirectResponse(f"{root}/login", 303)
        response.delete_cookie(self._dashboard.session_cookie, path=root or "/")
        return response

    def _shown(self, request: Request, onward: str, error: str, status: int = 200) -> Response:
        context = self._dashboard.context(request, _NOBODY, Parameters(()))
        return self._dashboard.answer(context, "login.html", {"next": onward, "error": error}, status)
