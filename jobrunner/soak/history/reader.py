"""Reads a history (see recorder.py); refuses a history with a gap, or with calls without a rule."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NEVER = float("inf")
ENTERING = ("enqueue", "enqueue_unique", "periodic_fire", "join_prepare")
_KNOWN = {*ENTERING, "reserve", "commit", "fail", "release", "crash", "extend", "move", "cancel"}
ADDED, _NOT_HELD = ("new", "fired"), {"gone", "not_reserved", "lost"}
_UNCHANGED = {*_NOT_HELD, "refused", "full", "hops", "missed", "fenced", "skipped", "disabled"}
_NOTED_S = 10.0  # for so long the server knows a call that is sent again


class NotJudged(Exception):
    """This history cannot be judged."""


@dataclass(slots=True, eq=False, kw_only=True)
class Op:
    """The effect of one call on one task, between two instants. `said` is its outcome, None when unknown."""
    do: str
    queue: str
    began: float
    ended: float = NEVER
    said: Any = None
    lease: int | None = None
    attempt: int = 0
    most: float = 0  # attempts, 0: no limit
    unseen: int = 0  # most attempts that began and ended in reserves of its queue without a reply
    end_ms: float = 0.0  # of the lease, by the server's clock, as is now_ms
    now_ms: float = NEVER
    to: str = ""
    priority: int = 1
    due: str | bool = ""  # '' at once, '+N' in N ms, 'N' at that Unix ms, True at a time that is not known
    due_ms: float = 0.0  # the earliest
    since_ms: float = 0.0  # the server's clock when it began
    flag: bool = True  # a release: it had not begun, so its token was returned; a fail: it may die before its time
    options: dict[str, Any] = field(default_factory=dict)  # see call_records.py


@dataclass(slots=True)
class RecordedHistory:
    """All operations by task, and records that concern no single task."""
    tasks: dict[str, list[Op]] = field(default_factory=lambda: defaultdict(list))
    runs: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)  # attempts by file and number
    lost_reserves: list[tuple[Op, int]] = field(default_factory=list)  # without a reply; first lease number and count
    refused: list[tuple[str, Op]] = field(default_factory=list)  # reports
    sent: dict[tuple[str, str | None], Op] = field(default_factory=dict)  # by task and name of the call
    set_at: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))  # when settings were set
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    joins: dict[str, dict[str, Any]] = field(default_factory=dict)  # by their tasks; without one by themselves


def read(folder: Path) -> RecordedHistory:
    """Reads all files of a folder. Raises NotJudged."""
    history, begun, snapshots = RecordedHistory(), dict[tuple[Path, int], dict[str, Any]](), []
    for path, line in _lines(folder):
        try:
            match line:
                case {"op": number, "calls": _} if (path, number) not in begun:
                    begun[path, number] = line
                case {"op": number, "replies": _} | {"op": number, "unknown": _} | {"op": number, "fail": _}:
                    _take(history, begun.pop((path, number)), line)
                case {"run": number, "task": _}:
                    history.runs[path.name, number] = line
                case {"snapshot": {"since": _, "settings": _, "tasks": _} as shown}:
                    snapshots.append((shown, line["t"]))
                case _:
                    history.runs[path.name, line["run"]]["ended"] = line["t"]
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise NotJudged(f"{path}: line {line['n'] + 1} does not fit those before it: {error!r}") from None
    for line in begun.values():  # of processes that were killed
        _take(history, line, {})
    if len(snapshots) != 1:
        raise NotJudged(f"{folder} has {len(snapshots)} final snapshots, not one")
    _take_snapshot(history, *snapshots[0])
    return history


def _lines(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    try:
        sealed = dict(json.loads((folder / "seal.json").read_text())["files"])
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise NotJudged(f"{folder / 'seal.json'} cannot be read ({error}); only a sealed history counts") from None
    sizes, boots = {path.name: path.stat().st_size for path in folder.glob("*.jsonl")}, set[str]()
    if changed := sorted(sizes.items() ^ sealed.items()):
        raise NotJudged(f"{folder} has files of other sizes than when it was sealed; change none: {changed[:4]}")
    texts = ((folder / name, (folder / name).read_bytes().splitlines(keepends=True)) for name in sorted(sizes))
    for path, number, raw in ((path, *line) for path, lines in texts for line in enumerate(lines)):
        try:
            line = json.loads(raw if raw.endswith(b"\n") else b"")
            place, is_start = line["n"], line.get("start", {"format": None})["format"] == 2
        except (AttributeError, LookupError, TypeError, ValueError):
            raise NotJudged(f"{path}: line {number + 1} is cut off or damaged: {raw[:60]!r}") from None
        if place != number:
            raise NotJudged(f"{path}: line {number + 1} has the number {place} instead of {number}: a gap")
        if is_start != (number == 0):
            raise NotJudged(f"{path}: line {number + 1}: a process has its start in the first line, in format 2")
        boots |= {line["start"]["boot"]} if is_start else set()
        yield from () if is_start else ((path, line),)
    if len(boots) != 1:
        raise NotJudged(f"{folder} is of {len(boots)} machines, not of one, whose processes share a clock")


def _take(history: RecordedHistory, begun: dict[str, Any], answer: dict[str, Any]) -> None:
    calls = () if "fail" in answer else begun["calls"]
    for call, reply in zip(calls, answer.get("replies", [{}] * len(calls)), strict=True):
        if "join" in call:
            history.joins[call["tasks"][0][0] if call["tasks"] else call["join"]] = call
        do, said = call["do"], reply.get("ok") if reply.get("ok") != ["reserved"] else None  # ends later
        known = {"do": do, "queue": call["queue"], "began": begun["t"], "ended": NEVER if said is None else answer["t"]}
        if do in ("configure", "queue_declare"):  # a declaration replies what it changed
            for name in call["fields"] if do == "configure" or said is None else said:
                history.set_at[call["queue"], name] = max(history.set_at[call["queue"], name], known["ended"])
        elif do not in _KNOWN:
            raise NotJudged(f"the history has a call of {do} on {call['queue']}, for which this program has no rule")
        elif do != "reserve":
            names = ("priority", "due", "options") if do in ENTERING else ("lease", "due", "flag", "options")
            for (task, *own), outcome in zip(call["tasks"], said or [said] * len(call["tasks"]), strict=True):
                op = Op(**known, said=outcome, to=call.get("to", ""), **dict(zip(names, own, strict=False)))
                _take_task(history, task, op, call.get("sent"))
        elif said is None:
            history.lost_reserves.append((Op(**known, lease=call["first"]), call["count"]))
        for task, *own in said or () if do == "reserve" else ():
            more = zip(("lease", "attempt", "end_ms", "most"), own, strict=False)
            history.tasks[task].append(Op(**known, said="ok", now_ms=reply["now"], **dict(more)))


def _take_task(history: RecordedHistory, task: str, op: Op, sent: str | None) -> None:
    is_added = op.said in (None, *ADDED) and sent is not None
    old = history.sent.setdefault((task, sent), op) if is_added else op
    if op.said in _UNCHANGED:
        history.refused += [(task, op)] if op.said in _NOT_HELD and op.do != "cancel" else []
    elif old is not op and abs(op.began - old.began) < _NOTED_S:  # sent again: it takes effect once
        old.began, old.ended, old.said = min(op.began, old.began), min(op.ended, old.ended), old.said or op.said
    else:
        op.end_ms = float((op.said or "inf").lstrip("!")) if op.do == "extend" else 0.0
        history.tasks[task].append(op)
        if (expires_s := op.options.get("expires_s")) is not None:  # it may be dead from then on, unless it has begun
            history.tasks[task].append(Op(do="expire", queue=op.queue, began=op.began + expires_s))


def _take_snapshot(history: RecordedHistory, seen: dict[str, Any], at: float) -> None:
    history.settings = seen["settings"]
    fit = {name for name, own in history.settings.items() if not own.keys() & {"dead_letter_queue", "expires_in_ms"}}
    if unfit := {op.queue for ops in history.tasks.values() for op in ops} - fit:
        raise NotJudged(f"queues without a final snapshot, with dead letters or expires_in: {', '.join(sorted(unfit))}")
    for task, places in ({task: [] for task in history.tasks} | seen["tasks"]).items():
        history.tasks[task].append(Op(do="snapshot", queue="", began=seen["since"], ended=at, said=places))
