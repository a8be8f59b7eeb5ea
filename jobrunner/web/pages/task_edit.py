"""Edits the parameters of a dead task before it is requeued: the content of the form, and its checks."""

import json
from collections import Counter
from typing import Any

from jobrunner.client.item import read_payload
from jobrunner.encryption.envelope import claimed_encoding
from jobrunner.errors import JobrunnerError
from jobrunner.jobs.registry import find
from jobrunner.redaction import HIDDEN
from jobrunner.task import TaskState
from jobrunner.task_record import TaskRecord
from jobrunner.web.errors import Refused
from jobrunner.web.pages.json_text import json_text
from jobrunner.web.routing import Context

_LONGEST = 200_000


def editable(context: Context, record: TaskRecord) -> str:
    """The parameters as JSON for the form that changes them, secrets hidden; '' where they cannot be changed."""
    try:
        plain = context.redaction.shown(_parameters(record))
    except Refused:
        return ""
    text, is_whole = json_text(plain, _LONGEST)
    return text if is_whole else ""


def _parameters(record: TaskRecord) -> Any:
    """The parameters of a dead task. Raises Refused for a state or a payload that does not allow changing them."""
    if record.state is not TaskState.DEAD:
        raise Refused(f"task {record.id} is {record.state}: only the parameters of a dead task can be changed")
    if record.is_encrypted:
        why = "" if record.unread is None else f" and cannot be decrypted: {record.unread}"
        missing = why or " and this dashboard has no key (JOBRUNNER_PAYLOAD_KEYS)"
        raise Refused(f"the parameters of task {record.id} are encrypted{missing}; requeue it unchanged")
    if record.unread is not None:
        raise Refused(f"the parameters of task {record.id} cannot be read: {record.unread}; requeue it unchanged")
    encoding = claimed_encoding(record.fields.get("encoding")) or (b"json" if record.type else b"")
    if encoding != b"json":  # parameters of a job are JSON without saying so; an item without an encoding is bytes
        raise Refused(f"the payload of task {record.id} is not JSON; requeue it unchanged")
    try:
        return read_payload(record.payload, b"json")
    except (JobrunnerError, ValueError, RecursionError) as error:
        raise Refused(f"the payload of task {record.id} is not JSON; requeue it unchanged") from error


def edited(context: Context, record: TaskRecord) -> tuple[Any, list[str]]:
    """The parameters of the form, and the names of changed parameters. Raises Refused, ParameterError."""
    before = _parameters(record)
    text = context.form.text("params", longest=_LONGEST + 1)
    if len(text) > _LONGEST:
        raise Refused(f"the parameters are too long to be edited here: at most {_LONGEST:,} characters")
    try:
        given = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the parameters are not JSON: {error}") from error
    after = _with_secrets(given, before, context.redaction.shown(before))
    changed = _changed_names(before, after)
    if not changed:
        raise Refused(f"nothing of the parameters of task {record.id} was changed; requeue it as it is")
    _check_types(record.type, after)
    return after, changed


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def _with_secrets(given: Any, before: Any, shown: Any) -> Any:
    """The edited parameters with values that the form hid put back where they are unchanged. Raises Refused."""
    if _same(given, shown):  # not by ==, to which true is 1 and 1 is 1.0
        return before
    if isinstance(given, dict):
        old, seen = (one if isinstance(one, dict) else {} for one in (before, shown))
        return {name: _with_secrets(part, old.get(name), seen.get(name)) for name, part in given.items()}
    if isinstance(given, list):
        return [_with_secrets(part, *pair) for part, pair in zip(given, _origins(given, before, shown), strict=True)]
    if isinstance(given, str) and HIDDEN in given:
        raise Refused(f"a value contains {HIDDEN}, which stands for a hidden one elsewhere: write the value itself")
    return given


def _origins(given: list[Any], before: Any, shown: Any) -> list[tuple[Any, Any]]:
    """For each element of an edited list, its previous value and the form's text of it; Nones when it is not certain.

    Positions are certain only if no element was moved: an account must not get the password of its neighbour.
    """
    if not isinstance(before, list) or not isinstance(shown, list):
        return [(None, None)] * len(given)
    both = list(zip(before, shown, strict=True))
    seen, texts = [_text(one) for one in shown], [_text(one) for one in given]
    places, count = {text: at for at, text in enumerate(seen)}, Counter(seen)
    is_moved = any(texts[at] != there and texts[at] in places for at, there in enumerate(seen[: len(texts)]))
    if len(texts) == len(seen) and not is_moved:
        return both
    return [both[places[text]] if count[text] == 1 else (None, None) for text in texts]


def _changed_names(before: Any, after: Any) -> list[str]:
    """Names of parameters that differ: the audit log keeps their names, not their values."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return [] if _same(before, after) else ["the payload"]
    names = [*before, *(name for name in after if name not in before)]
    kept = {name for name in before if name in after and _same(before[name], after[name])}
    return [str(name)[:60] for name in names if name not in kept]


def _same(one: Any, other: Any) -> bool:
    return _text(one) == _text(other)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def _check_types(job: str, params: Any) -> None:
    """Refuses parameters that the job would not accept, where this process knows the job. Raises ParameterError."""
    definition = find(job) if job else None
    if job and not isinstance(params, dict):
        raise Refused(f"the parameters of job {job!r} are an object of names and values, not {type(params).__name__}")
    if definition is not None:
        known = definition.parameters.struct.__struct_fields__
        if unknown := [name for name in params if name not in known]:
            raise Refused(f"job {job!r} has no parameter {unknown[0][:60]!r}; it has {', '.join(known)}")
        definition.parameters.read(json.dumps(params, ensure_ascii=False).encode())
