"""Records of script calls and their replies in a history: the arguments that determine task states, without payloads.

A call becomes ``{"do": script, "queue": …, "tasks": [[id, …], …]}``, its reply ``{"ok": [outcome of each task, …]}``;
the positions of the arguments are those of the scripts' signatures (jobrunner/broker/lua).
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jobrunner.broker.call import Call

UNRELATED = frozenset((
    "archive_note", "await_capacity", "error_groups", "join_abandon", "join_arrive",
    "join_arrive_part", "join_collect", "join_pass_on", "leader_scan", "list_workers", "maintain", "outbox_read",
    "periodic_anchor", "periodic_define", "periodic_set", "pipeline_shards", "probe", "progress", "queue_bulk_counts",
    "queue_counts", "queue_forget", "register", "rights", "slice_forget", "slice_give", "slice_read", "slice_take",
    "stats_add", "stats_read", "stats_sample", "take_leadership", "task_page", "task_read",
    "task_search", "worker_announce",
))  # fmt: skip
"""Scripts that are not recorded: they move no task themselves. The checker allows effects of maintenance at any time,
and refuses histories with batches."""
_QUEUE = re.compile(rb".*?\{(.*?)\}:(.*):[a-z]+")
_JOIN = re.compile(rb".*?\{(.*?)\}:join:(.*)")
_DEFAULT_PRIORITY = 1
_KEPT = ("key", "expires_in_ms", "then")
_LOCK_KEY = 6
SETTING = {"configure": 2, "queue_declare": 3, "slice_enter": 6, "slice_settle": 6}
"""Scripts that set settings of a queue, and where these begin: `field, value, ...`."""
_NAME_AT = {"enqueue": 1, "enqueue_unique": 4}
"""The position of the call's name, which is the same when the call is sent again."""
_Tasks = Iterator[list[Any]]


def of_call(call: Call[Any]) -> dict[str, Any] | None:
    """The record of a call; None for one that changes no task. A script without a parser is recorded by its name only,
    and the checker refuses that history."""
    if call.script is None or call.script.name in UNRELATED:
        return None
    name, words = call.script.name, call.words
    if name == "join_prepare":
        return _prepared(call.keys[0], words)
    record: dict[str, Any] = {"do": name, "queue": queue_of(call.keys[0])}
    if name in ("reserve", "pop"):
        record["count"] = int(_text(words[1]))
        if name == "reserve":
            record["first"] = int(_text(words[2]))
    elif name in SETTING:
        record["fields"] = [_text(word) for word in words[SETTING[name] :: 2]]
        record["do"] = "queue_declare" if name == "queue_declare" else "configure"
    elif name in PARSERS:
        record["tasks"] = list(PARSERS[name](words))
        if name in _NAME_AT:
            record["sent"] = _text(words[_NAME_AT[name]])
        if name == "enqueue_unique":
            record["tasks"][0][3] |= {"lock": _text(call.keys[_LOCK_KEY])}
        if name == "move":
            record["to"] = _text(words[2])
    return record


def _prepared(key: bytes, words: Sequence[Any]) -> dict[str, Any] | None:
    """A join, and the task that enters its queue when it fires, or never. None for a tally, which nothing waits for."""
    known = dict(zip(map(_text, words[1::2]), words[2::2], strict=True))
    found = _JOIN.fullmatch(key)
    if found is None or (rule := _text(known["rule"])) == "tally":
        return None
    shape = {"join": _text(found[2]), "rule": rule, "total": int(known["total"])}
    if "id" not in known:
        return {"do": "join_prepare", "queue": _text(found[1]), "tasks": [], **shape, "then": _joins(known["f:then"])}
    options = _options([word for name in _KEPT if f"f:{name}" in known for word in (name, known[f"f:{name}"])])
    tasks = [[_text(known["id"]), _priority(known["priority"]), True, *options]]
    return {"do": "join_prepare", "queue": _text(known["f:queue"]), "tasks": tasks, **shape}


def of_reply(record: dict[str, Any], reply: Any) -> dict[str, Any]:
    """The outcome of a call. A script that failed may have written before, so its outcome is unknown."""
    if isinstance(reply, Exception):
        return {"unknown": f"{type(reply).__name__}: {reply}"[:200]}
    match record["do"]:
        case "join_prepare":
            return {"unknown": "the task enters when the join fires"}
        case "reserve":
            return {"now": float(reply[0]), "ok": list(_reserved(record["first"], reply))}
        case "enqueue":
            return {"ok": _enqueued(reply, len(record["tasks"]))}
        case "enqueue_unique":
            return {"ok": [reply[0].decode()]}
        case "commit":
            refused = {int(n): _text(word) for n, word in zip(reply[::2], reply[1::2], strict=True)}
            return {"ok": [refused.get(n, "ok") for n in range(1, len(record["tasks"]) + 1)]}
    return {"ok": [_text(word) for word in reply] if isinstance(reply, list) else [_text(reply)]}


def queue_of(key: bytes) -> str:
    """The full name of the queue that a key belongs to."""
    found = _QUEUE.fullmatch(key)
    if found is None:
        return key.decode(errors="replace")
    tag, name = found[1].decode(), found[2].decode()
    return tag if tag == name else f"{tag}/{name}"


def _text(word: Any) -> str:
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)


def _priority(word: Any) -> int:
    text = _text(word)
    return int(float(text)) if text else _DEFAULT_PRIORITY


def _joins(then: Any) -> list[str]:
    """The ids of the joins in a field `then` (see jobrunner/join.py)."""
    return [join for _, join, _ in json.loads(then or "[]")]


def _options(fields: Sequence[Any]) -> list[dict[str, Any]]:
    """What the checker compares among the fields of a task, `field, value, ...`, if it has any of these."""
    known = dict(zip(map(_text, fields[::2]), fields[1::2], strict=True))
    found: dict[str, Any] = {"key": _text(known["key"])} if "key" in known else {}
    if "expires_in_ms" in known:
        found["expires_s"] = float(_text(known["expires_in_ms"])) / 1000
    if "then" in known:
        found["then"] = _joins(known["then"])
    return [found] if found else []


def _enqueue(words: Sequence[Any]) -> _Tasks:
    at = first = 4 + int(_text(words[3]))
    while at < len(words):
        priority, due, own = (_text(words[at + 2]) or "  ").split(" ")
        behind = at + 3 + int(own or 0)
        yield [_text(words[at]), _priority(priority), due, *_options([*words[4:first], *words[at + 3 : behind]])]
        at = behind


def _unique(words: Sequence[Any]) -> _Tasks:
    lasts, ttl_ms, on_clash = map(_text, words[8:11])
    # Of a task that later calls may replace or reschedule, due time, partition and time to start are not known.
    due = bool(_text(words[7])) if on_clash else _text(words[7])
    lock: dict[str, Any] = {"lasts": lasts, "ttl_ms": float(ttl_ms)}
    yield [_text(words[5]), _priority(words[6]), due, lock | dict(*([] if on_clash else _options(words[12:])))]


def _fire(words: Sequence[Any]) -> _Tasks:
    yield [_text(words[4]), _priority(words[5]), True, *_options(words[10:])]


def _commit(words: Sequence[Any]) -> _Tasks:
    at = 3
    while at < len(words):
        behind = at + 7 + 2 * int(_text(words[at]))
        yield from _leased(words[at + 7 : behind], 0, 2)
        at = behind


def _fail(words: Sequence[Any]) -> _Tasks:
    for at in range(5 + 3 * int(_text(words[4])), len(words), 6):
        must_die = _text(words[at + 3]) == "dead"
        yield [_text(words[at]), int(_text(words[at + 1])), _in_ms(words[at + 2]), must_die]


def _move(words: Sequence[Any]) -> _Tasks:
    at = 5
    while at < len(words):
        behind = at + 5 + int(_text(words[at + 4]))
        options = _options(words[at + 5 : behind])
        yield [_text(words[at]), int(_text(words[at + 1])), _in_ms(words[at + 3]), True, *options]
        at = behind


def _release(words: Sequence[Any]) -> _Tasks:
    for at in range(2, len(words), 3):
        delay = _text(words[at + 2])
        has_begun = delay != "" and not delay.startswith("~")
        yield [_text(words[at]), int(_text(words[at + 1])), _in_ms(delay.lstrip("~!")), not has_begun]


def _in_ms(delay: Any) -> str:
    text = _text(delay)
    return "" if text in ("", "0") else f"+{text}"


def _leased(words: Sequence[Any], first: int, width: int) -> _Tasks:
    for at in range(first, len(words), width):
        yield [_text(words[at]), int(_text(words[at + 1]))]


def _ids(first: int) -> Callable[[Sequence[Any]], _Tasks]:
    return lambda words: ([_text(word)] for word in words[first:])


PARSERS: dict[str, Callable[[Sequence[Any]], _Tasks]] = {
    "enqueue": _enqueue,
    "enqueue_unique": _unique,
    "periodic_fire": _fire,
    "commit": _commit,
    "fail": _fail,
    "release": _release,
    "crash": lambda words: _leased(words, 4, 3),
    "extend": lambda words: _leased(words, 2, 3),
    "move": _move,
    "cancel": lambda words: iter([[_text(words[2])]]),
    "delete": _ids(1),
    "remove": _ids(2),
    "run_now": _ids(1),
    "requeue": lambda words: _ids(4 + int(_text(words[3])))(words),
}
"""The tasks of a call by its script: id, then the number of its lease or its priority, then when it is due: '' at once,
'+N' in N ms, 'N' at that Unix ms, true at a time that is not known. Then, of a report, a flag: for a released task
whether its token is returned, as it had not begun, for a failed one whether it is to die before its last attempt. Then
options, if there are any: `key`, the partition, `expires_s`, how long after its enqueue the task may begin, and `then`,
the joins that wait for it; of a unique task `lock`, `lasts` and `ttl_ms`. A call that prepares a join has `join`, its
id, `rule` and `total`, and without a task `then`, the joins behind it (see jobrunner/join.py)."""


def _enqueued(reply: Any, count: int) -> list[str]:
    if reply and reply[0] in (b"full", b"exists"):
        return ["refused"] * count
    old = {int(position) for position in reply}
    return ["old" if n in old else "new" for n in range(1, count + 1)]


def _reserved(lease: int, reply: Sequence[Any]) -> _Tasks:
    """Id, lease number, attempt number, end of the lease and max_attempts of each task."""
    now, usual_end = float(reply[0]), float(reply[2])
    for at in range(6, len(reply), 5):
        more, end, attempt, most = reply[at + 4], usual_end, 1, int(reply[4])
        if more is not None:
            attempt, most = attempt + int(more[0] or 0), int(more[1] or most)
            end = now + float(more[2]) if more[2] else usual_end
        yield [_text(reply[at]), lease + (at - 6) // 5, attempt, end, most]
