"""Request handling of all pages and actions: authentication, role, endpoint, answer.

The order is the same for every page and action: identify, check the role, (for an action: check the CSRF token), read
parameters, run the endpoint, answer. The handler checks the role; a template that hides a button is no protection.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from jobrunner.client.client import Client
from jobrunner.errors import JobrunnerError, ServerUnavailable, TaskGone, UnknownJob, UsageError
from jobrunner.inspector import audit
from jobrunner.web import cookies, security
from jobrunner.web.addresses import Network, address_of
from jobrunner.web.audit_notes import NOTED, AccessAudit
from jobrunner.web.auth import Auth, Basic, Identity, LoginAuth
from jobrunner.web.context import Context
from jobrunner.web.errors import NotAllowed, NotIdentified, NotThere, Refused, TooLarge, TooMany, TooSlow
from jobrunner.web.flash import Flash
from jobrunner.web.live import LiveUpdates
from jobrunner.web.login_throttle import LoginThrottle
from jobrunner.web.operations import Operations
from jobrunner.web.parameters import RequestParameters, parse_pairs
from jobrunner.web.rendering import STATIC, as_json, environment, version_of
from jobrunner.web.roles import Role
from jobrunner.web.routing import Action, Done, Page
from jobrunner.web.sessions import LASTS_S, Session, Sessions

_LARGEST_FORM = 1024 * 1024
_FORM_S = 20.0
_IDENTITY, _REFUSING = "jobrunner.identity", "jobrunner.refusing"
_log = logging.getLogger("jobrunner.web")
Handler = Callable[[Request], Awaitable[Response]]


class Dashboard:
    """The handlers of pages and actions, and what they share."""

    def __init__(
        self,
        client: Client,
        auth: Auth,
        *,
        acts: bool,
        secret: str,
        trusted: Collection[Network],
    ) -> None:
        self.client = client
        self.auth = auth
        self.acts = acts
        # Without any secret a random key of this process: with an empty key, any client could forge a form's token.
        self.key = auth.signing_key() + secret.encode() or secrets.token_bytes(32)
        self.notes = AccessAudit(client)
        self.guesses = LoginThrottle(client, self.key, trusted, self.notes)
        self.sessions = Sessions(client, self.key)
        self.flash = Flash()
        self.live = LiveUpdates(client)
        self.app: Starlette  # set when the routes are there
        self._trusted = trusted
        self._operations = Operations(client)
        self._templates = environment()
        self._versioned = version_of(STATIC)

    def page(self, page: Page) -> Handler:
        """The handler of a page."""

        async def handler(request: Request) -> Response:
            identity = await self.identified(request, page.role)
            context = self.context(request, identity, RequestParameters(()))
            template, values = await run_in_threadpool(page.endpoint, context)
            return await run_in_threadpool(self.answer, context, template, values)

        return self.guarded(handler)

    def action(self, action: Action) -> Handler:
        """The handler of an action."""

        async def handler(request: Request) -> Response:
            identity = await self.identified(request, action.role)
            form = await read_form(request)
            self._check_meant(request, identity, form)
            if not self.acts:
                raise NotAllowed("this dashboard is read-only: it was started without actions")
            context = self.context(request, identity, form)
            done = await run_in_threadpool(self._carried_out, action, context)
            return self._after(context, done)

        return self.guarded(handler)

    def guarded(self, handler: Handler) -> Handler:
        """The handler with an answer for every error, inside of what puts the headers on."""

        async def answering(request: Request) -> Response:
            try:
                response = await handler(request)
            except Exception as error:
                response = await run_in_threadpool(self._refused_somehow, request, error)
            self.guesses.recognise(request, response)
            return response

        return answering

    def _refused_somehow(self, request: Request, error: Exception) -> Response:
        try:
            return self.refusal(request, error)
        except Exception:  # inside of what puts the headers on, which an error that goes on up would not have
            _log.exception("a refusal could not be written")
            return PlainTextResponse("internal error; the log of the dashboard has the details\n", 500)

    async def identified(self, request: HTTPConnection, least: Role) -> Identity:
        """Returns the identity of the user. Raises NotIdentified, or NotAllowed below the least role."""
        identity = await run_in_threadpool(lambda: self.known(request) or self._proved(request))
        if identity is None:
            raise NotIdentified("you are not logged in: log in first")
        request.scope[_IDENTITY] = identity
        if identity.role < least:
            raise NotAllowed(f"a {identity.role.name.lower()} may not do this: it takes the role {least.name.lower()}")
        return identity

    def _proved(self, request: HTTPConnection) -> Identity | None:
        """Returns the identity that the headers prove. Raises TooMany."""
        auth = self.auth
        name = auth.offered(request) if isinstance(auth, LoginAuth | Basic) else None
        if name is None or not isinstance(auth, LoginAuth | Basic):
            identity = auth.identify(request)
        else:
            identity = self.guesses.tried(request, name, lambda: auth.identify(request), known=auth.knows(name))
        if identity is not None:
            address = address_of(request, self._trusted)
            self.notes.came_in(who=identity.name, role=identity.role.name.lower(), address=address)
        return identity

    def known(self, request: HTTPConnection) -> Identity | None:
        """Returns the identity of a session of the login page. Raises ServerError."""
        session = self.session(request)
        return self.auth.session_of(session.name) if session and isinstance(self.auth, LoginAuth) else None

    def session(self, request: HTTPConnection) -> Session | None:
        """The session that the browser's cookie stands for. Raises ServerError."""
        return self.sessions.of(request) if isinstance(self.auth, LoginAuth) else None

    def context(self, request: Request, identity: Identity, form: RequestParameters) -> Context:
        """The request context of an endpoint."""
        browser = security.browser_of(request) or request.scope.setdefault("jobrunner.browser", security.new_browser())
        return Context(
            client=self.client,
            identity=identity,
            nonce=security.nonce_of(request),
            csrf_token=security.form_token(self.key, browser, identity.name),
            request=request,
            query=_query(request),
            form=form,
            acts=self.acts,
            glance=self.live.glance,
            operations=self._operations,
            sessions=self.sessions if isinstance(self.auth, LoginAuth) else None,
            path_for=self.app.url_path_for,
            address=address_of(request, self._trusted),
            root=request.scope.get("root_path", ""),
        )

    def answer(self, context: Context, template: str, values: Any, status: int = 200) -> Response:
        """A page for a browser, its values for a program."""
        if wants_json(context.request):
            return Response(as_json(values), status, media_type="application/json")
        flash = self.flash.take(context.request)
        shared = {
            "context": context,
            "url": context.url,
            "static": lambda name: f"{context.root}/static/{self._versioned(name)}",
            "may": context.may,
            "nonce": context.nonce,
            "csrf": context.csrf_token,
            "identity": context.identity,
            "flash": flash,
            "has_login": isinstance(self.auth, LoginAuth),
        }
        text = self._templates.get_template(template).render({**shared, **values})
        response = Response(text, status, media_type="text/html; charset=utf-8")
        if flash:
            self.flash.forget(context.request, response)
        return self.with_browser(context.request, response)

    def with_browser(self, request: Request, response: Response) -> Response:
        """Sets the cookie with a browser's random id, if the request has none."""
        browser = request.scope.get("jobrunner.browser")
        if browser:
            cookies.give(request, response, security.BROWSER_COOKIE, browser, None)
        return response

    def log_in(self, request: Request, response: Response, identity: Identity) -> None:
        """Gives a browser a session. Raises ServerError."""
        word = self.sessions.begin(identity.name, address_of(request, self._trusted))
        cookies.give(request, response, self.sessions.cookie, word, LASTS_S)
        self.noted(request, identity, "login", "logged in")

    def noted(self, request: HTTPConnection, identity: Identity, action: str, outcome: str, what: str = "") -> None:
        """Writes into the audit log who did what."""
        audit.write(
            self.client,
            who=identity.name,
            role=identity.role.name.lower() if identity.name else "",
            action=action,
            what=what,
            outcome=outcome,
            address=address_of(request, self._trusted),
        )

    def refusal(self, request: Request, error: Exception) -> Response:
        """The answer to a refused request."""
        status, text = explained(error)
        if status >= 500 and _IDENTITY not in request.scope:
            text = "the server is away" if status == 503 else "internal error"  # no more for strangers
        self._note_refusal(request, error, text)
        if status == 401 and isinstance(self.auth, LoginAuth) and not wants_json(request) and request.method == "GET":
            onward = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            return RedirectResponse(f"{request.scope.get('root_path', '')}/login?{urlencode({'next': onward})}", 303)
        nobody = Identity(name="", role=Role.VIEWER)
        request.scope[_REFUSING] = True
        context = self.context(request, nobody, RequestParameters(()))
        response = self.answer(context, "error.html", {"error": text, "status": status}, status)
        if status == 401 and self.auth.challenge:
            response.headers["www-authenticate"] = self.auth.challenge
        return self.later(response, error) if isinstance(error, TooMany) else response

    def _note_refusal(self, request: Request, error: Exception, text: str) -> None:
        """Writes a refusal into the audit log, unless it is the first visit of a browser without a session."""
        is_first_visit = isinstance(error, NotIdentified) and request.method in ("GET", "HEAD")
        if not isinstance(error, NotIdentified | NotAllowed) or is_first_visit or NOTED in request.scope:
            return
        identity = request.scope.get(_IDENTITY)
        self.notes.refused(
            who=identity.name if identity else "unknown",
            role=identity.role.name.lower() if identity else "",
            action="refused",
            what=f"{request.method} {request.scope['path']}",
            outcome=f"refused: {text}",
            address=address_of(request, self._trusted),
        )

    def later(self, response: Response, error: TooMany) -> Response:
        """The answer with when to try again."""
        response.headers["retry-after"] = str(error.wait_s)
        return response

    def _carried_out(self, action: Action, context: Context) -> Done:
        """Runs the endpoint and logs user and outcome in the audit log, also on errors."""
        try:
            done = action.endpoint(context)
        except Exception as error:
            self._note_action(context, action, f"refused: {explained(error)[1]}")
            context.request.scope[NOTED] = True
            raise
        finally:
            self.live.forget()  # the page that comes next shows what was done
        self._note_action(context, action, done.text)
        return done

    def _note_action(self, context: Context, action: Action, outcome: str) -> None:
        what = " ".join(str(part) for part in context.request.path_params.values())
        self.noted(context.request, context.identity, action.name, outcome, what)

    def _after(self, context: Context, done: Done) -> Response:
        if wants_json(context.request):
            values = {"done": done.text, "to": done.to, **(done.values or {})}
            return Response(as_json(values), media_type="application/json")
        back = security.local_path(context.form.text("back", longest=2000), done.to)
        response = RedirectResponse(done.to if done.leads else back, 303)
        self.flash.put(context.request, response, done.text, "done")
        return response

    def _check_meant(self, request: Request, identity: Identity, form: RequestParameters) -> None:
        given = request.headers.get(security.TOKEN_HEADER) or form.text(security.TOKEN_FIELD)
        security.check_meant(request, identity, self.key, given)


def _query(request: Request) -> RequestParameters:
    """The query's parameters; none where a refusal is to be answered to a query that cannot be read."""
    try:
        return parse_pairs(request.url.query)
    except Refused:
        if request.scope.get(_REFUSING):
            return RequestParameters(())
        raise


async def read_form(request: Request) -> RequestParameters:
    """The parameters of a form or of a JSON object. Raises Refused, TooLarge, TooSlow."""
    try:
        body = await asyncio.wait_for(_body(request), _FORM_S)
    except TimeoutError as error:
        raise TooSlow(f"the form did not arrive within {_FORM_S:.0f} seconds") from error
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not body:
        return RequestParameters(())
    if kind == "application/x-www-form-urlencoded":
        return parse_pairs(body.decode("utf-8", "replace"))
    if kind == "application/json":
        return _json_form(body)
    raise Refused(f"a form is application/x-www-form-urlencoded or application/json, not {kind[:60]!r}")


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST_FORM:
            raise TooLarge("the form is too large: at most 1 MiB")
    return bytes(body)


def _json_form(body: bytes) -> RequestParameters:
    try:
        found = msgspec.json.decode(body, type=dict[str, str | int | float | bool | list[str] | None])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused("the body is no JSON object of texts, numbers and lists of texts") from error
    pairs = [(name, part) for name, value in found.items() for part in (value if isinstance(value, list) else [value])]
    return RequestParameters([(name, _as_text(value)) for name, value in pairs if value is not None])


def _as_text(value: Any) -> str:
    return ("1" if value else "0") if isinstance(value, bool) else str(value)


def wants_json(request: HTTPConnection) -> bool:
    """Whether a program asks."""
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def explained(error: Exception) -> tuple[int, str]:
    """HTTP status and one line for the user. Unexpected errors are logged in full and reported without details."""
    text = " ".join(str(error).split())[:500]
    if isinstance(error, Refused):
        return error.status, text
    if isinstance(error, TaskGone | UnknownJob):
        return NotThere.status, text
    if isinstance(error, UsageError):
        return Refused.status, text
    if isinstance(error, ServerUnavailable | asyncio.TimeoutError):
        return 503, f"the server is away: {text}"
    if isinstance(error, JobrunnerError):
        return 502, text
    _log.error("a request was not answered", exc_info=error)
    return 500, "internal error; the log of the dashboard has the details"
