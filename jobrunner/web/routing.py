"""Pages and actions as values, and the context of the request that they get: user, parameters, client, URLs.

Invariant: every handler has a role, as there is no other way to register one, and an action that is not in `ROLE_OF`
cannot be declared.

Parameters of a query or a form are typed and bounded. In a query, a value out of range is clamped, and one that is not
a number is replaced by the default; in a form, both are refused (`at_most`, `optional`, `one_of`). Sidekiq and Faktory
had advisories for this: an unbounded `days` (CVE-2022-23837, CVE-2023-37279). Pages read all parameters through this
module.
"""

import asyncio
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import HTTPConnection, Request

from jobrunner.client.client import Client
from jobrunner.redaction import Redaction
from jobrunner.web.auth import Identity, Role
from jobrunner.web.errors import Refused, TooLarge, TooSlow
from jobrunner.web.live import DashboardSnapshot
from jobrunner.web.operations import Operations
from jobrunner.web.sessions_and_login_throttle import Sessions

_PART = re.compile(r"[A-Za-z0-9_.:@-]{1,300}(/[A-Za-z0-9_.:-]{1,300})?")  # @: of a shard
Values = Mapping[str, Any]
_LARGEST_FORM = 1024 * 1024
_FORM_S = 20.0
_MOST_FIELDS = 2000
_LONGEST = 200
_SHARED = ("csrf", "back")
"""Fields of every form."""
_LONG = (*_SHARED, "ids", "params")
"""Fields with their own length limits."""
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
ROLE_OF = MappingProxyType(
    {
        "queue.pause": Role.OPERATOR,
        "queue.resume": Role.OPERATOR,
        "queue.limit": Role.ADMIN,
        "queue.purge": Role.ADMIN,
        "task.requeue": Role.OPERATOR,
        "task.edit": Role.OPERATOR,
        "task.cancel": Role.OPERATOR,
        "task.delete": Role.OPERATOR,
        "task.run-now": Role.OPERATOR,
        "task.replay": Role.OPERATOR,
        "tasks.bulk": Role.OPERATOR,
        "dead.requeue": Role.OPERATOR,
        "dead.purge": Role.ADMIN,
        "periodic.run": Role.OPERATOR,
        "periodic.enable": Role.OPERATOR,
        "periodic.disable": Role.OPERATOR,
        "worker.quiet": Role.ADMIN,
        "worker.resume": Role.ADMIN,
        "worker.stop": Role.ADMIN,
        "operation.cancel": Role.OPERATOR,
    }
)
"""The least role for each action."""


class RequestParameters:
    """Named texts of a query or a form. The last value of a name counts; `all` returns every value."""

    def __init__(self, pairs: Collection[tuple[str, str]]) -> None:
        self._pairs = list(pairs)
        self._last: Mapping[str, str] = dict(self._pairs)

    def __contains__(self, name: str) -> bool:
        return name in self._last

    def check(self, known: Collection[str]) -> None:
        """Raises Refused for an unknown name, and for a condition that is repeated, blank or too long: ignoring a
        condition would widen the action."""
        for name in dict.fromkeys(name for name, _ in self._pairs):
            if name not in known and name not in _SHARED:
                raise Refused(f"there is no field {name[:60]!r} here: give {', '.join(known) or 'none'}")
        for name, value in self._pairs:
            if name in _LONG:
                continue
            if value != self._last[name] and name != "fair":  # a checkbox overrides the hidden field before it
                raise Refused(f"{name} is given twice, as {value[:60]!r} and {self._last[name][:60]!r}: give it once")
            if value and not value.strip():
                raise Refused(f"{name}={value[:60]!r} is blank: give a text, or leave it out")
            if len(value) > _LONGEST:
                raise Refused(f"{name}={value[:60]!r}… has {len(value):,} characters: at most {_LONGEST}; give a part")

    def text(self, name: str, default: str = "", *, longest: int = _LONGEST) -> str:
        """A text, stripped and cut to `longest` characters."""
        return self._last.get(name, default)[:longest].strip()

    def whole(self, name: str, default: int, *, lowest: int, highest: int) -> int:
        """A whole number within its range."""
        given = self._last.get(name, "").strip()[:20]
        try:
            return min(max(int(given), lowest), highest)
        except ValueError:
            return default

    def at_most(self, name: str, *, highest: int, default: int | None = None) -> int | None:
        """A whole number from 1; `default` when empty, and None for 0, which means no limit. Raises Refused."""
        given = self.text(name)
        if not given:
            return default
        if not (given.isascii() and given.isdecimal() and int(given) <= highest):
            raise Refused(f"{name}={given[:60]!r}: give a whole number up to {highest:,}, or 0 or nothing for no limit")
        return int(given) or None

    def optional(self, name: str, *, lowest: float, highest: float, example: str) -> float | None:
        """A number; None when empty. Raises Refused for other texts and for numbers out of range, as a default could
        undo a setting."""
        given = self.text(name)
        try:
            found = float(given) if given else None
        except ValueError:
            found = math.nan
        if found is not None and not lowest <= found <= highest:  # also false for NaN
            raise Refused(f"{name}={given[:60]!r}: give {example}, or nothing; from {lowest:,g} to {highest:,g}")
        return found

    def one_of(self, name: str, known: Collection[str], default: str) -> str:
        """One of `known`; `default` when empty. Raises Refused."""
        given = self.text(name, longest=60)
        if given and given not in known:
            raise Refused(f"{name}={given!r}: give one of {', '.join(known)}")
        return given or default

    def choice(self, name: str, known: Collection[str], default: str) -> str:
        """One of `known`."""
        given = self._last.get(name, default)
        return given if given in known else default

    def flag(self, name: str) -> bool:
        """True for 1, true, yes and on; False for 0, false, no, off, empty and missing. Raises Refused for any other
        value."""
        given = self.text(name, longest=30).lower()
        if given in _YES or given in _NO:
            return given in _YES
        raise Refused(f"{name}={given!r}: give 1 or 0")

    def all(self, name: str, *, most: int = 1000, longest: int = _LONGEST) -> list[str]:
        """All texts of that name except empty ones, at most `most`."""
        return [value[:longest] for key, value in self._pairs if key == name and value][:most]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One request. `query` holds its query parameters, `form` the fields of a form or of a JSON object."""

    client: Client
    identity: Identity
    nonce: str
    csrf_token: str
    request: Request = field(repr=False)
    query: RequestParameters
    form: RequestParameters
    acts: bool
    """False for a read-only dashboard."""
    snapshot: Callable[..., DashboardSnapshot] = field(repr=False)
    """The snapshot that all tabs share, at most a second old. Raises ServerError."""
    operations: Operations = field(repr=False)
    sessions: Sessions | None = field(repr=False)
    """Sessions of the login page; None for other authentication methods."""
    path_for: Callable[..., str] = field(repr=False)
    address: str
    """The client's address (see `auth.address_of`)."""
    root: str
    """Prefix of every URL: empty, or `/jobs`."""

    @property
    def redaction(self) -> Redaction:
        """The names of hidden parameters. Raises ServerError."""
        return self.client.redaction()

    @property
    def role(self) -> Role:
        """The role of the user."""
        return self.identity.role

    def path(self, name: str) -> str:
        """A parameter of the path, such as `queue` of /queues/{queue:path}."""
        return str(self.request.path_params[name])

    def url(self, page: str, **parts: Any) -> str:
        """The URL of a page or action by its name, with the prefix; `parts` are the parameters of its path.

        Empty when a part cannot be in a path, as a program that writes to Redis may give a task or a worker any name.
        The page shows such a row without a link.
        """
        if not all(_is_part(str(part), page) for part in parts.values()):
            return ""
        return self.root + self.path_for(page, **parts)

    def may(self, action: str) -> bool:
        """Whether the user may do this action (a name of `ROLE_OF`)."""
        return self.acts and self.identity.role >= ROLE_OF[action]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """GET `path`: `endpoint` reads and returns (template name, its values). Invariant: it changes nothing."""

    path: str
    name: str
    endpoint: Callable[[Context], tuple[str, Values]]
    role: Role = Role.VIEWER


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The outcome of an action: one line for a person, the page to show next, and `values` for programs."""

    text: str
    to: str
    values: Values | None = None
    leads: bool = False
    """Whether to show that page even when the form names a page to return to."""
    what: str = ""
    """The subject for the audit log, when the path does not name it: a filter, or how many tasks are selected."""
    ids: Sequence[str] = ()
    """The ids of selected tasks, for the audit log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """POST `path`: `endpoint` changes something. Its role is looked up in `ROLE_OF` by its name; a missing role is an
    error."""

    path: str
    name: str
    endpoint: Callable[[Context], Done]
    takes: tuple[str, ...] = ()
    """The fields of its form; others are refused."""
    query: tuple[str, ...] = ()
    """Fields that the action also takes from the query of its URL."""

    def check(self, context: Context) -> None:
        """Raises Refused for fields that the action does not take, as conditions among them would be ignored."""
        context.form.check(self.takes)
        context.query.check(self.query)

    def __post_init__(self) -> None:
        if self.name not in ROLE_OF:
            raise KeyError(f"action {self.name!r} has no role: add it to jobrunner.web.routing.ROLE_OF")

    @property
    def role(self) -> Role:
        """The least role that may do this."""
        return ROLE_OF[self.name]


def _is_part(text: str, page: str) -> bool:
    # Browsers resolve . and .. before a request; servers decode %2F, and ? and # end a path.
    fits = _PART.fullmatch(text) is not None and not {".", ".."} & set(text.split("/"))
    return fits and ("/" not in text or page.startswith("queue"))


def parse_pairs(text: str) -> RequestParameters:
    """The parameters of `a=1&b=2`. Raises Refused for more fields than any form here has."""
    try:
        return RequestParameters(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="replace"))
    except ValueError as error:
        raise Refused(f"too many fields: at most {_MOST_FIELDS}") from error


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
    """Whether the client asks for JSON, as programs do."""
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted
