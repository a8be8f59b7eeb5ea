"""Query and form parameters of a request, typed and bounded. A value out of range is clamped; one that is not a number
is replaced by the default.

Sidekiq and Faktory had advisories for exactly this: an unbounded `days` (CVE-2022-23837, CVE-2023-37279). Pages use no
parameter that did not pass through here.
"""

import asyncio
import math
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import HTTPConnection, Request

from jobrunner.web.errors import Refused, TooLarge, TooSlow

_LARGEST_FORM = 1024 * 1024
_FORM_S = 20.0
_MOST_FIELDS = 2000


class RequestParameters:
    """Named texts of a query or a form. The last of a name counts; `all` gives every one."""

    def __init__(self, pairs: Collection[tuple[str, str]]) -> None:
        self._pairs = list(pairs)
        self._last: Mapping[str, str] = dict(self._pairs)

    def __contains__(self, name: str) -> bool:
        return name in self._last

    def text(self, name: str, default: str = "", *, longest: int = 200) -> str:
        """A text of at most `longest` characters, stripped; longer ones are cut."""
        return self._last.get(name, default)[:longest].strip()

    def whole(self, name: str, default: int, *, lowest: int, highest: int) -> int:
        """A whole number within its range."""
        given = self._last.get(name, "").strip()[:20]
        try:
            return min(max(int(given), lowest), highest)
        except ValueError:
            return default

    def number(self, name: str, default: float | None, *, lowest: float, highest: float) -> float | None:
        """A number within its range; `default` for NaN and for a text that is not a number."""
        try:
            found = float(self._last.get(name, "").strip()[:30])
        except ValueError:
            return default
        return default if math.isnan(found) else min(max(found, lowest), highest)

    def choice(self, name: str, known: Collection[str], default: str) -> str:
        """One of `known`."""
        given = self._last.get(name, default)
        return given if given in known else default

    def flag(self, name: str) -> bool:
        """Whether the parameter is present and is not 0, false, no or off."""
        return self._last.get(name, "").lower() not in ("", "0", "false", "no", "off")

    def all(self, name: str, *, most: int = 1000, longest: int = 200) -> list[str]:
        """All texts of that name except empty ones, at most `most`."""
        return [value[:longest] for key, value in self._pairs if key == name and value][:most]


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
