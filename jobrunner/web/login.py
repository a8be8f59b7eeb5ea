"""The login page of `LoginAuth`: exchanges a secret, typed or in a link, for a session."""

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from jobrunner.web import security
from jobrunner.web.auth import Identity, LoginAuth
from jobrunner.web.dashboard import Dashboard
from jobrunner.web.errors import NotAllowed, NotThere, TooMany
from jobrunner.web.login_links import LoginLinks
from jobrunner.web.parameters import RequestParameters, parse_pairs, read_form, wants_json
from jobrunner.web.roles import Role

_NOBODY = Identity(name="", role=Role.VIEWER)
_OWNER = Identity(name="local", role=Role.ADMIN)
_WRONG = "that is not the token"
_USED = "this link is of no use: it was used before, or is of a dashboard that has ended"


class Login:
    """Handlers of the login form, login links, logout, and the end of other sessions."""

    def __init__(self, dashboard: Dashboard, auth: LoginAuth) -> None:
        self._dashboard, self._auth = dashboard, auth

    async def form(self, request: Request) -> Response:
        """GET /login, with `?token=…` of a link."""
        query = parse_pairs(request.url.query)
        onward, given = query.text("next", longest=2000), query.text("token", longest=1000)
        if not given or not self._auth.by_link:
            return await run_in_threadpool(self._shown, request, onward, "")
        # A preview of the link in a chat, a browser that guesses what is clicked next: the token is for the click.
        if request.method == "HEAD" or "prefetch" in request.headers.get("sec-purpose", ""):
            response = await run_in_threadpool(self._shown, request, onward, "")
        elif await run_in_threadpool(self._dashboard.access.known, request):
            return RedirectResponse(self._home(request, onward), 303)  # a click on a link whose session is here
        else:
            response = await self._tried(request, onward, given, _USED)
        response.headers["referrer-policy"] = "strict-origin"  # the address of this page has the token
        return response

    async def enter(self, request: Request) -> Response:
        """POST /login."""
        form = await read_form(request)
        security.check_meant(request, _NOBODY, self._dashboard.access.key, form.text(security.TOKEN_FIELD))
        return await self._tried(request, form.text("next", longest=2000), form.text("token", longest=1000), _WRONG)

    async def leave(self, request: Request) -> Response:
        """POST /logout. Ends the session on the server, so a copy of its cookie is of no use either."""
        identity = await self._dashboard.access.identified(request, Role.VIEWER)
        form = await read_form(request)
        security.check_meant(request, identity, self._dashboard.access.key, form.text(security.TOKEN_FIELD))
        response = RedirectResponse(f"{request.scope.get('root_path', '')}/login", 303)
        await run_in_threadpool(self._end, request, identity)
        security.delete_cookie(request, response, self._dashboard.access.sessions.cookie)
        return response

    async def end(self, request: Request) -> Response:
        """POST /sessions/end: one (`session`), or all (`all`) that this person has; of an admin, of everybody."""
        identity = await self._dashboard.access.identified(request, Role.VIEWER)
        form = await read_form(request)
        given = request.headers.get(security.TOKEN_HEADER) or form.text(security.TOKEN_FIELD)
        security.check_meant(request, identity, self._dashboard.access.key, given)
        ended = await run_in_threadpool(self._end_some, request, identity, form)
        if wants_json(request):
            return JSONResponse({"ended": ended})
        response = RedirectResponse(f"{request.scope.get('root_path', '')}/sessions", 303)
        self._dashboard.flash.put(request, response, f"{ended} session{'s' * (ended != 1)} ended", "done")
        return response

    def _end_some(self, request: Request, identity: Identity, form: RequestParameters) -> int:
        sessions = self._dashboard.access.sessions
        theirs = [one for one in sessions.all() if identity.role is Role.ADMIN or one.name == identity.name]
        if not form.flag("all"):
            theirs = [one for one in theirs if one.id == form.text("session")]
            if not theirs:
                raise NotThere("there is no such session, or it is not yours to end")
        sessions.end(*(one.id for one in theirs))
        for one in theirs:
            self._dashboard.access.noted(request, identity, "session.end", f"ended the session of {one.name}", one.id)
        return len(theirs)

    async def link(self, request: Request) -> Response:
        """POST /login/links, of `jobrunner dashboard --link`: one more token, for the owner of this process."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if not isinstance(self._auth, LoginLinks) or scheme != "Bearer" or not self._auth.is_owner(given):
            raise NotAllowed("only the user who started this dashboard can have another link")
        await run_in_threadpool(self._dashboard.access.noted, request, _OWNER, "login.link", "made one more login link")
        return JSONResponse({"token": self._auth.new_token()})

    async def _tried(self, request: Request, onward: str, given: str, refusal: str) -> Response:
        return await run_in_threadpool(self._entered, request, onward, given, refusal)

    def _entered(self, request: Request, onward: str, given: str, refusal: str) -> Response:
        dashboard = self._dashboard
        try:
            identity = dashboard.access.throttle.tried(request, "login", lambda: self._auth.accept(given), known=True)
        except TooMany as error:
            return dashboard.later(self._shown(request, onward, str(error), status=error.status), error)
        if identity is None:
            return self._shown(request, onward, refusal, status=403)
        response = RedirectResponse(self._home(request, onward), 303)
        dashboard.access.log_in(request, response, identity)
        return response

    def _end(self, request: Request, identity: Identity) -> None:
        session = self._dashboard.access.session(request)
        if session:
            self._dashboard.access.sessions.end(session.id)
            self._dashboard.access.noted(request, identity, "logout", "logged out", session.id)

    def _home(self, request: Request, onward: str) -> str:
        return security.local_path(onward, request.scope.get("root_path", "") + "/")

    def _shown(self, request: Request, onward: str, error: str, status: int = 200) -> Response:
        context = self._dashboard.context(request, _NOBODY, RequestParameters(()))
        values = {"next": onward, "error": error, "by_link": self._auth.by_link}
        return self._dashboard.answer(context, "login.html", values, status)
