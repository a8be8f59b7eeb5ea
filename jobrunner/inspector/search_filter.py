"""The filter of a search, its translation for the server, and the check that a match is not by hidden text alone."""

from dataclasses import dataclass, replace
from datetime import datetime

import msgspec

from jobrunner.broker.calls.search import LONGEST_PAYLOAD, Match, SearchChunk
from jobrunner.redaction import Redaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A search filter; an empty field matches everything. Texts match substrings, ignoring the case of ASCII."""

    queue: str = ""
    state: str = ""
    type: str = ""
    """The whole name of the job."""
    job: str = ""
    """A part of the job's name."""
    error: str = ""
    id: str = ""
    """A part of the id."""
    param: str = ""
    """A part of the payload, as it is stored (JSON); or `name=value`, the whole value of a parameter."""
    group: str = ""
    """The id of a group of errors: only tasks that died with one of them."""
    since: datetime | None = None
    """The earliest time: of death, of finishing, or the due time; for waiting and pending tasks the time of
    enqueueing."""
    until: datetime | None = None
    """The first instant after the span of the same time."""

    @property
    def is_narrow(self) -> bool:
        """Whether tasks have to be examined one by one, because of conditions other than queue and state."""
        return self != Filter(queue=self.queue, state=self.state)


def match_of(wanted: Filter) -> Match:
    """The filter in the form that the server applies."""
    return Match(
        id_part=wanted.id,
        type=wanted.type,
        job_part=wanted.job,
        error_part=wanted.error,
        payload_part=_parts(wanted.param),
        group=wanted.group,
        since_ms=wanted.since.timestamp() * 1000 if wanted.since else None,
        until_ms=wanted.until.timestamp() * 1000 if wanted.until else None,
    )


def without_hidden(chunk: SearchChunk, wanted: Filter, redaction: Redaction | None) -> SearchChunk:
    """The chunk without tasks that match only by text which the redaction hides."""
    if redaction is None or not (wanted.param or wanted.error):
        return chunk
    kept = chunk.tasks
    if wanted.param:
        parts = _parts(wanted.param).lower().splitlines()
        kept = [one for one in kept if _is_in_what_is_shown(one[2]["payload"], parts, redaction)]
    if part := wanted.error.lower():
        kept = [one for one in kept if _is_in_shown_error(one[2]["error"], part, redaction)]
    return replace(chunk, tasks=kept)


def _is_in_shown_error(error: str, part: str, redaction: Redaction) -> bool:
    shown = redaction.text(error)
    if shown == error:
        return True  # the server compares letters beyond ASCII differently
    return part in shown.lower()


def _is_in_what_is_shown(payload: str, parts: list[str], redaction: Redaction) -> bool:
    try:
        value = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, RecursionError):
        return len(payload) <= LONGEST_PAYLOAD  # not JSON, so without names; or truncated
    shown = redaction.shown(value)
    text = msgspec.json.encode(shown).decode().lower()
    return shown == value or any(part in text for part in parts)


def _parts(param: str) -> str:
    """Substrings, a line each, of which a matching payload contains at least one. For `name=value` they are the whole
    value in JSON: a text has quotes, and a comma or a brace follows a number, true, false or null."""
    name, sign, value = param.partition("=")
    if not sign or not name.strip().isidentifier():
        return param.replace("\n", "\\n")  # escaped as in JSON; two lines would be two parts
    key, value = f'"{name.strip()}":', value.strip()
    parts = [f"{key}{msgspec.json.encode(value).decode()}"]
    if _is_json(value.lower()) and "\n" not in value:
        parts += [f"{key}{value},", f"{key}{value}}}"]
    return "\n".join(parts)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True
