"""The login page of `LoginAuth`, which exchanges a secret, typed or in a link, for a session; and login links.

A link logs in one browser. Two files in a private folder serve the user who started a dashboard. `dashboard-PORT.json`
has the address and a secret with which `jobrunner dashboard --link` requests another link. `open-PORT.html` redirects a
browser to the first link, because `ps` shows the arguments of a browser to all users. Both are removed when the
dashboard ends.
"""

import hmac
import json
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from jobrunner.errors import InvalidOption
from jobrunner.web.access import TOKEN_FIELD, TOKEN_HEADER, check_meant
from jobrunner.web.auth import Identity, Role
from jobrunner.web.cookies import delete_cookie
from jobrunner.web.credentials import LoginAuth
from jobrunner.web.dashboard import Dashboard, local_path
from jobrunner.web.errors import NotAllowed, NotThere, TooMany
from jobrunner.web.routing import RequestParameters, parse_pairs, read_form, wants_json

_NOBODY = Identity(name="", role=Role.VIEWER)
_OWNER = Identity(name="local", role=Role.ADMIN)
_WRONG = "that is not the token"
_USED = "this link is of no use: it was used before, or is of a dashboard that has ended"


class LoginLinks(LoginAuth):
    """Login links: each logs in one browser as an admin. A user who can read this process's output can use one."""

    by_link = True
    _MOST = 20

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self.owner = secrets.token_urlsafe(32)
        """The secret of the user who started the dashboard, for requests of more links (see `left_for_owner`)."""
        self._unused: dict[bytes, None] = {}
        self._lock = threading.Lock()

    def new_token(self) -> str:
        """A token for a new link. It is valid until it is used; of many unused tokens the oldest become invalid."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._unused[self._digest(token)] = None
            while len(self._unused) > self._MOST:
                del self._unused[next(iter(self._unused))]
        return token

    def is_owner(self, given: str) -> bool:
        """Whether `given` is the owner's secret."""
        return hmac.compare_digest(given.encode(), self.owner.encode())

    def accept(self, given: str) -> Identity | None:
        """The admin "local", once for each token."""
        with self._lock:
            # Found by its digest, so the time of the search reveals nothing about the token.
            is_new = self._unused.pop(self._digest(given), False) is None
        return self.session_of("local") if is_new else None

    def session_of(self, name: str) -> Identity | None:
        """The admin "local"."""
        return Identity(name="local", role=Role.ADMIN) if name == "local" else None

    def signing_key(self) -> bytes:
        """A random key of this process: its sessions end with it."""
        return self._key

    def _digest(self, token: str) -> bytes:
        return hmac.digest(self._key, token.encode("utf-8", "surrogatepass"), "sha256")


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
        # A preview of the link in a chat, or a browser that prefetches: the token must stay valid for the click.
        if request.method == "HEAD" or "prefetch" in request.headers.get("sec-purpose", ""):
            response = await run_in_threadpool(self._shown, request, onward, "")
        elif await run_in_threadpool(self._dashboard.access.known, request):
            return RedirectResponse(self._home(request, onward), 303)  # the browser that clicked has a session
        else:
            response = await self._tried(request, onward, given, _USED)
        response.headers["referrer-policy"] = "strict-origin"  # the URL of this page contains the token
        return response

    async def enter(self, request: Request) -> Response:
        """POST /login."""
        form = await read_form(request)
        check_meant(request, _NOBODY, self._dashboard.access.key, form.text(TOKEN_FIELD))
        return await self._tried(request, form.text("next", longest=2000), form.text("token", longest=1000), _WRONG)

    async def leave(self, request: Request) -> Response:
        """POST /logout. Ends the session on the server, so a copy of its cookie is useless, too."""
        identity = await self._dashboard.access.identified(request, Role.VIEWER)
        form = await read_form(request)
        check_meant(request, identity, self._dashboard.access.key, form.text(TOKEN_FIELD))
        response = RedirectResponse(f"{request.scope.get('root_path', '')}/login", 303)
        await run_in_threadpool(self._end, request, identity)
        delete_cookie(request, response, self._dashboard.access.sessions.cookie)
        return response

    async def end(self, request: Request) -> Response:
        """POST /sessions/end: ends one session (`session`), or all of this user (`all`); an admin may end those of all
        users."""
        identity = await self._dashboard.access.identified(request, Role.VIEWER)
        form = await read_form(request)
        given = request.headers.get(TOKEN_HEADER) or form.text(TOKEN_FIELD)
        check_meant(request, identity, self._dashboard.access.key, given)
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
        """POST /login/links, for `jobrunner dashboard --link`: a new token, for the owner of this process."""
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
        return local_path(onward, request.scope.get("root_path", "") + "/")

    def _shown(self, request: Request, onward: str, error: str, status: int = 200) -> Response:
        context = self._dashboard.context(request, _NOBODY, RequestParameters(()))
        values = {"next": onward, "error": error, "by_link": self._auth.by_link}
        return self._dashboard.answer(context, "login.html", values, status)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningDashboard:
    """A running dashboard: its address, and the secret of its owner."""

    url: str
    owner: str


@contextmanager
def left_for_owner(port: int, url: str, owner: str, link: str) -> Iterator[Path | None]:
    """Keeps both files within the block; yields the page that redirects to `link`, None without a safe folder."""
    try:
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(folder)
        page, facts = folder / f"open-{port}.html", _facts_of(folder, port)
        _write(facts, json.dumps({"url": url, "owner": owner}))
        _write(page, f'<meta charset="utf-8"><meta http-equiv="refresh" content="0; url={escape(link)}">')
    except OSError:  # a container without a home, a full disk: serve without the files
        yield None
        return
    try:
        yield page
    finally:
        for path in (page, facts):
            with suppress(OSError):
                path.unlink()


def running_on(port: int) -> RunningDashboard:
    """Reads the file of the dashboard on that port. Raises InvalidOption when this user runs none there."""
    try:
        folder = _folder()
        _check_private(folder)
        facts = json.loads(_facts_of(folder, port).read_text("utf-8"))
        return RunningDashboard(url=str(facts["url"]), owner=str(facts["owner"]))
    except (OSError, ValueError, KeyError) as error:
        raise InvalidOption(
            f"this user runs no dashboard with login links on port {port}; name its --port, or start one"
        ) from error


def _folder() -> Path:
    """The folder of this user for both files. Raises OSError when the user has no home."""
    if named := os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("XDG_STATE_HOME"):
        return Path(named, "jobrunner")
    try:
        return Path.home() / ".local" / "state" / "jobrunner"
    except RuntimeError as error:  # a user id unknown to a container's image, and no HOME
        raise FileNotFoundError(str(error)) from error


def _facts_of(folder: Path, port: int) -> Path:
    return folder / f"dashboard-{port}.json"


def _check_private(folder: Path) -> None:
    at = folder.lstat()
    if not stat.S_ISDIR(at.st_mode) or at.st_uid != os.getuid() or at.st_mode & 0o077:
        raise PermissionError(f"{folder} is not this user's alone")


def _write(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
