"""Request handling of all pages and actions: authentication, role, endpoint, answer.

The order is the same for every page and action: identify, check the role, (for an action: check the CSRF token), read
parameters, run the endpoint, answer. The handler checks the role; hiding a button in a template is no protection.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode, urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from jobrunner.client.client import Client
from jobrunner.clock import unix_ms
from jobrunner.inspector.snapshot import waiting_once
from jobrunner.web.access import (
    BROWSER_COOKIE,
    TOKEN_FIELD,
    TOKEN_HEADER,
    Access,
    browser_of,
    check_meant,
    form_token,
    new_browser,
    nonce_of,
)
from jobrunner.web.addresses import Network
from jobrunner.web.auth import Auth, Identity, Role
from jobrunner.web.cookies import delete_cookie, read_cookie, set_cookie
from jobrunner.web.errors import NOTED, NotAllowed, Refused, TooMany, explained
from jobrunner.web.live import AlertThresholds, LiveUpdates
from jobrunner.web.operations import Operations
from jobrunner.web.rendering import STATIC, as_json, environment, escape_invisible, version_of
from jobrunner.web.routing import Action, Context, Done, Page, RequestParameters, parse_pairs, read_form, wants_json
from jobrunner.web.sessions_and_login_throttle import RECOGNISED, signed, verified

_REFUSING = "jobrunner.refusing"
_FLASH_COOKIE = "jobrunner_flash"
_FLASH_LASTS_S = 20
_log = logging.getLogger("jobrunner.web")
Handler = Callable[[Request], Awaitable[Response]]


class Dashboard:
    """The handlers of pages and actions, with the client, access control and templates that they share."""

    def __init__(
        self,
        client: Client,
        auth: Auth,
        *,
        acts: bool,
        secret: str,
        trusted: Collection[Network],
        alerts: AlertThresholds,
    ) -> None:
        self.client = client
        self.acts = acts
        # Without any secret, a random key for this process: with an empty key, any client could forge a form token.
        key = auth.signing_key() + secret.encode() or secrets.token_bytes(32)
        self.access = Access(client, auth, key=key, trusted=trusted)
        self.flash = Flash()
        self.live = LiveUpdates(client, alerts)
        self.app: Starlette  # set once the routes exist
        self._operations = Operations(client)
        self._templates = environment()
        self._versioned = version_of(STATIC)

    def page(self, page: Page) -> Handler:
        """The handler of a page."""

        async def handler(request: Request) -> Response:
            identity = await self.access.identified(request, page.role)
            context = self.context(request, identity, RequestParameters(()))
            with waiting_once():
                template, values = await run_in_threadpool(page.endpoint, context)
                return await run_in_threadpool(self.answer, context, template, values)

        return self.guarded(handler)

    def action(self, action: Action) -> Handler:
        """The handler of an action."""

        async def handler(request: Request) -> Response:
            identity = await self.access.identified(request, action.role)
            form = await read_form(request)
            self._check_meant(request, identity, form)
            if not self.acts:
                raise NotAllowed("this dashboard is read-only: it was started without actions")
            context = self.context(request, identity, form)
            done = await run_in_threadpool(self._carried_out, action, context)
            return self._after(context, done)

        return self.guarded(handler)

    def guarded(self, handler: Handler) -> Handler:
        """Wraps the handler so that every error has an answer, and error answers get the security headers, too."""

        async def answering(request: Request) -> Response:
            try:
                response = await handler(request)
            except Exception as error:
                response = await run_in_threadpool(self._refused_somehow, request, error)
            if RECOGNISED in request.scope:
                self.access.throttle.recognise(request, response)
            return response

        return answering

    def _refused_somehow(self, request: Request, error: Exception) -> Response:
        try:
            return self.refusal(request, error)
        except Exception:  # an error raised from the handler would bypass the security headers
            _log.exception("a refusal could not be written")
            return PlainTextResponse("internal error; the log of the dashboard has the details\n", 500)

    def context(self, request: Request, identity: Identity, form: RequestParameters) -> Context:
        """The request context of an endpoint."""
        browser = browser_of(request) or request.scope.setdefault("jobrunner.browser", new_browser())
        return Context(
            client=self.client,
            identity=identity,
            nonce=nonce_of(request),
            csrf_token=form_token(self.access.key, browser, identity.name),
            request=request,
            query=_query(request),
            form=form,
            acts=self.acts,
            snapshot=self.live.snapshot,
            operations=self._operations,
            sessions=self.access.sessions if self.access.has_login else None,
            path_for=self.app.url_path_for,
            address=self.access.address_of(request),
            root=request.scope.get("root_path", ""),
        )

    def answer(self, context: Context, template: str, values: Any, status: int = 200) -> Response:
        """The response: a page for a browser, its values as JSON for a program."""
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
            "has_login": self.access.has_login,
        }
        text = escape_invisible(self._templates.get_template(template).render({**shared, **values}))
        response = Response(text, status, media_type="text/html; charset=utf-8")
        if flash:
            self.flash.forget(context.request, response)
        return self.with_browser(context.request, response)

    def with_browser(self, request: Request, response: Response) -> Response:
        """Sets the cookie with a browser's random id, if the request has none."""
        browser = request.scope.get("jobrunner.browser")
        if browser:
            set_cookie(request, response, BROWSER_COOKIE, browser, None)
        return response

    def refusal(self, request: Request, error: Exception) -> Response:
        """The answer to a refused request."""
        status, text = explained(error)
        if status >= 500 and not self.access.is_identified(request):
            text = "the server is away" if status == 503 else "internal error"  # no details for unknown clients
        self.access.note_refusal(request, error, text)
        values: dict[str, Any] = {"error": text, "status": status}
        if status == 401 and self.access.has_login and not wants_json(request):
            to = f"{request.scope.get('root_path', '')}/login?{urlencode({'next': _page_of(request)})}"
            if request.method != "GET":
                values["login"] = to
            elif _takes_html(request):  # Prometheus would take the form for metrics
                return RedirectResponse(to, 303)
        nobody = Identity(name="", role=Role.VIEWER)
        request.scope[_REFUSING] = True
        context = self.context(request, nobody, RequestParameters(()))
        response = self.answer(context, "error.html", values, status)
        if status == 401 and self.access.auth.challenge:
            response.headers["www-authenticate"] = self.access.auth.challenge
        return self.later(response, error) if isinstance(error, TooMany) else response

    def later(self, response: Response, error: TooMany) -> Response:
        """The answer with a Retry-After header."""
        response.headers["retry-after"] = str(error.wait_s)
        return response

    def _carried_out(self, action: Action, context: Context) -> Done:
        """Runs the endpoint and logs user and outcome in the audit log, also on errors."""
        try:
            action.check(context)
            done = action.endpoint(context)
        except Exception as error:
            self._note_action(context, action, f"refused: {explained(error)[1]}")
            context.request.scope[NOTED] = True
            raise
        finally:
            self.live.forget()  # the next page must show the change
        self._note_action(context, action, done.text, done.what, done.ids)
        return done

    def _note_action(
        self, context: Context, action: Action, outcome: str, what: str = "", ids: Sequence[str] = ()
    ) -> None:
        what = " ".join([*(str(part) for part in context.request.path_params.values()), what]).strip()
        self.access.noted(context.request, context.identity, action.name, outcome, what, ids)

    def _after(self, context: Context, done: Done) -> Response:
        if wants_json(context.request):
            values = {"done": done.text, "to": done.to, **(done.values or {})}
            return JSONResponse(values)
        back = local_path(context.form.text("back", longest=2000), done.to)
        response = RedirectResponse(done.to if done.leads else back, 303)
        self.flash.put(context.request, response, done.text, "done")
        return response

    def _check_meant(self, request: Request, identity: Identity, form: RequestParameters) -> None:
        given = request.headers.get(TOKEN_HEADER) or form.text(TOKEN_FIELD)
        check_meant(request, identity, self.access.key, given)


def _takes_html(request: Request) -> bool:
    accepted = request.headers.get("accept", "*/*")
    return accepted == "*/*" or "text/html" in accepted


def _page_of(request: Request) -> str:
    """Path and query of the requested page, or of the page whose form was sent; '' when unknown."""
    url = str(request.url) if request.method == "GET" else request.headers.get("referer", "")
    with suppress(ValueError):
        _, _, path, query, _ = urlsplit(url)
        return path + (f"?{query}" if query else "")
    return ""


def _query(request: Request) -> RequestParameters:
    """The query's parameters; none when the answer is a refusal of a query that cannot be parsed."""
    try:
        return parse_pairs(request.url.query)
    except Refused:
        if request.scope.get(_REFUSING):
            return RequestParameters(())
        raise


def local_path(path: str, default: str) -> str:
    """The path of a redirect if it stays on this site, else `default`."""
    plain = path.isprintable() and path.startswith("/") and not path.startswith("//") and "\\" not in path
    return path if plain else default


class Flash:
    """A line about the last action, carried over a redirect in a short-lived signed cookie, and shown once.

    Signed with a key of this process, as the line is needed only for some seconds.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def put(self, request: Request, response: Response, text: str, kind: str) -> None:
        """Stores a line for the next page. `kind` is done or refused."""
        value = {"text": text[:500], "kind": kind, "until": unix_ms() + _FLASH_LASTS_S * 1000}
        word = signed(value, self._key, purpose="flash")
        set_cookie(request, response, _FLASH_COOKIE, word, _FLASH_LASTS_S, strict=True)

    def take(self, request: Request) -> dict[str, str] | None:
        """The line for this page, if there is one: {"text": …, "kind": …}."""
        return verified(read_cookie(request, _FLASH_COOKIE), self._key, purpose="flash")

    def forget(self, request: Request, response: Response) -> None:
        """Deletes the line in the browser after it was rendered."""
        delete_cookie(request, response, _FLASH_COOKIE)
