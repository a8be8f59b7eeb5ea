"""What every handler stands on: who asks, whether they may, and how the answer is written.

The order is fixed and is the same for every page and action: identify, role, (for an action: was it meant), parameters,
endpoint, answer. The role is checked here, in the handler; that a template shows no button is only a courtesy.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response

from jobrunner.client.client import Client
from jobrunner.clock import unix_ms
from jobrunner.errors import JobrunnerError, ServerUnavailable, TaskGone, UnknownJob, UsageError
from jobrunner.inspector.redaction import Redaction
from jobrunner.web import audit, security, sessions
from jobrunner.web.addresses import Network, address_of
from jobrunner.web.auth import Auth, Basic, Identity, Token
from jobrunner.web.context import Context
from jobrunner.web.flash import Flash
from jobrunner.web.guesses import Guesses
from jobrunner.web.live import Live
from jobrunner.web.operations import Operations
from jobrunner.web.parameters import Parameters, parse_pairs
from jobrunner.web.refusals import NotAllowed, NotIdentified, NotThere, Refused, TooLarge, TooMany
from jobrunner.web.rendering import STATIC, as_json, environment, version_of
from jobrunner.web.roles import Role
from jobrunner.web.routing import Action, Done, Page

_LARGEST_FORM = 1024 * 1024
_log = logging.getLogger("jobrunner.web")
Handler = Callable[[Request], Awaitable[Response]]


class Dashboard:
    """The parts that all requests share."""

    def __init__(
        self,
        client: Client,
        auth: Auth,
        *,
        redaction: Redaction,
        acts: bool,
        secret: str,
        trusted: Collection[Network],
    ) -> None:
        self.client = client
        self.auth = auth
        self.redaction = redaction
        self.acts = acts
        self.key = auth.signing_key() + secret.encode()
        self.guesses = Guesses(client, self.key, trusted)
        self.flash = Flash()
        self.live = Live(client)
        self.app: Starlette  # set when the routes are there
        self._trusted = trusted
        self._operations = Operations(client, redaction)
        self._templates = environment()
        self._versioned = version_of(STATIC)

    def page(self, page: Page) -> Handler:
        """The handler of a page."""

        async def handler(request: Request) -> Response:
            identity = await self.identified(request, page.role)
            context = self.context(request, identity, Parameters(()))
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
                raise NotAllowed("this dashboard only shows: it was started without actions")
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
                response = await run_in_threadpool(self.refusal, request, error)
            self.guesses.recognise(request, response, secure=_is_secure(request))
            return response

        return answering

    async def identified(self, request: HTTPConnection, least: Role) -> Identity:
        """Who asks. Raises NotIdentified, or NotAllowed below the least role."""
        identity = self.known(request) or await run_in_threadpool(self._proved, request)
        if identity is None:
            raise NotIdentified("nobody knows who you are: log in")
        if identity.role < least:
            raise NotAllowed(f"a {identity.role.name.lower()} may not do this: it takes the role {least.name.lower()}")
        return identity

    def _proved(self, request: HTTPConnection) -> Identity | None:
        """Who the headers prove it is. Raises TooMany."""
        auth = self.auth
        name = auth.offered(request) if isinstance(auth, Token | Basic) else None
        if name is None or not isinstance(auth, Token | Basic):
            return auth.identify(request)
        return self.guesses.tried(request, name, lambda: auth.identify(request), known=auth.knows(name))

    def known(self, request: HTTPConnection) -> Identity | None:
        """Who has a session of the login page."""
        if not isinstance(self.auth, Token):
            return None
        session = sessions.verified(request.cookies.get(self.session_cookie, ""), self.key, purpose="session")
        return self.auth.session_of(str(session.get("name"))) if session else None

    @property
    def session_cookie(self) -> str:
        """Its name; not the same for two dashboards on one host, whose cookies do not tell ports apart."""
        return f"jobrunner_session_{sessions.signed({}, self.key, purpose='name')[-8:]}"

    def context(self, request: Request, identity: Identity, form: Parameters) -> Context:
        """What the endpoint is given."""
        browser = security.browser_of(request) or request.scope.setdefault("jobrunner.browser", security.new_browser())
        return Context(
            client=self.client,
            identity=identity,
            nonce=security.nonce_of(request),
            csrf_token=security.form_token(self.key, browser, identity.name),
            request=request,
            query=parse_pairs(request.url.query),
            form=form,
            redaction=self.redaction,
            acts=self.acts,
            glance=self.live.glance,
            operations=self._operations,
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
            "has_login": isinstance(self.auth, Token),
        }
        text = self._templates.get_template(template).render({**shared, **values})
        response = Response(text, status, media_type="text/html; charset=utf-8")
        if flash:
            response.delete_cookie("jobrunner_flash", path=context.root or "/")
        return self.with_browser(context.request, response)

    def with_browser(self, request: Request, response: Response) -> Response:
        """Gives a browser its random word, if it has none."""
        browser = request.scope.get("jobrunner.browser")
        if browser:
            self._set_cookie(request, response, security.BROWSER_COOKIE, browser, None)
        return response

    def log_in(self, request: Request, response: Response, identity: Identity) -> None:
        """Gives a browser a session."""
        until = unix_ms() + sessions.LASTS_S * 1000
        cookie = sessions.signed({"name": identity.name, "until": until}, self.key, purpose="session")
        self._set_cookie(request, response, self.session_cookie, cookie, sessions.LASTS_S)

    def refusal(self, request: Request, error: Exception) -> Response:
        """The answer to a request that was not done."""
        status, text = explained(error)
        if status == 401 and isinstance(self.auth, Token) and not wants_json(request) and request.method == "GET":
            onward = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            return RedirectResponse(f"{request.scope.get('root_path', '')}/login?{urlencode({'next': onward})}", 303)
        nobody = Identity(name="", role=Role.VIEWER)
        context = self.context(request, nobody, Parameters(()))
        response = self.answer(context, "error.html", {"error": text, "status": status}, status)
        if status == 401 and self.auth.challenge:
            response.headers["www-authenticate"] = self.auth.challenge
        return self.later(response, error) if isinstance(error, TooMany) else response

    def later(self, response: Response, error: TooMany) -> Response:
        """The answer with when to try again."""
        response.headers["retry-after"] = str(error.wait_s)
        return response

    def _carried_out(self, action: Action, context: Context) -> Done:
        """Does it, and notes who did it, whatever came of it."""
        try:
            done = action.endpoint(context)
        except Exception as error:
            audit.note(context, action.name, outcome=f"refused: {explained(error)[1]}")
            raise
        finally:
            self.live.forget()  # the page that comes next shows what was done
        audit.note(context, action.name, outcome=done.text)
        return done

    def _after(self, context: Context, done: Done) -> Response:
        if wants_json(context.request):
            values = {"done": done.text, "to": done.to, **(done.values or {})}
            return Response(as_json(values), media_type="application/json")
        back = security.local_path(context.form.text("back", longest=2000), done.to)
        response = RedirectResponse(done.to if done.leads else back, 303)
        self.flash.put(response, done.text, "done", path=context.root or "/")
        return response

    def _check_meant(self, request: Request, identity: Identity, form: Parameters) -> None:
        given = request.headers.get(security.TOKEN_HEADER) or form.text(security.TOKEN_FIELD)
        security.check_meant(request, identity, self.key, given)

    def _set_cookie(self, request: Request, response: Response, name: str, value: str, lasts_s: int | None) -> None:
        response.set_cookie(
            name,
            value,
            max_age=lasts_s,
            path=request.scope.get("root_path", "") or "/",
            httponly=True,
            samesite="lax",
            secure=_is_secure(request),
        )


def _is_secure(request: HTTPConnection) -> bool:
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"


async def read_form(request: Request) -> Parameters:
    """The parameters of a form or of a JSON object. Raises Refused, TooLarge."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST_FORM:
            raise TooLarge("the form is too large: at most 1 MiB")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not body:
        return Parameters(())
    if kind == "application/x-www-form-urlencoded":
        return parse_pairs(body.decode("utf-8", "replace"))
    if kind == "application/json":
        return _json_form(bytes(body))
    raise Refused(f"a form is application/x-www-form-urlencoded or application/json, not {kind[:60]!r}")


def _json_form(body: bytes) -> Parameters:
    try:
        found = msgspec.json.decode(body, type=dict[str, str | int | float | bool | list[str] | None])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused("the body is no JSON object of texts, numbers and lists of texts") from error
    pairs = [(name, part) for name, value in found.items() for part in (value if isinstance(value, list) else [value])]
    return Parameters([(name, _as_text(value)) for name, value in pairs if value is not None])


def _as_text(value: Any) -> str:
    return ("1" if value else "0") if isinstance(value, bool) else str(value)


def wants_json(request: HTTPConnection) -> bool:
    """Whether a program asks."""
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def explained(error: Exception) -> tuple[int, str]:
    """Status and one line for a person. What was not foreseen goes to the log, not to whoever asks."""
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
    return 500, "this was not foreseen; the log of the dashboard has the details"
