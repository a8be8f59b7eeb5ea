"""Reads a history (see recorder.py); refuses a history with a gap, or with calls without a rule."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NEVER = float("inf")
ENTERING = ("enqueue", "enqueue_unique", "periodic_fire", "join_prepare")
ADDED = ("new", "fired")
_KNOWN = frozenset((*ENTERING, "reserve", "commit", "fail", "release", "crash", "extend", "move", "cancel"))
_NOT_HELD = {"gone", "not_reserved", "lost"}
_UNCHANGED = _NOT_HELD | {"refused", "full", "hops", "missed", "fenced", "skipped", "disabled", "reserved"}
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
    most: int = 0  # attempts, 0: no limit
    unseen: int = 0  # most attempts that began and ended in reserves of its queue without a reply
    end_ms: float = 0.0  # of the lease, by the server's clock, as is now_ms
    now_ms: float = NEVER
    to: str = ""
    priority: int = 1
    due: str | bool = ""  # '' at once, '+N' in N ms, 'N' at that Unix ms, True at a time that is not known
    due_ms: float = 0.0  # the earliest
    since_ms: float = 0.0  # the server's clock when it began
    unpaid: bool = True  # of a release: the task had not begun, so its token was returned


@dataclass(slots=True)
class RecordedHistory:
    """All operations by task, and records that concern no single task."""

    tasks: dict[str, list[Op]] = field(default_factory=dict)
    runs: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)  # attempts by file and number
    lost_reserves: list[tuple[Op, int]] = field(default_factory=list)  # without a reply; first lease number and count
    refused: list[tuple[str, Op]] = field(default_factory=list)  # reports
    sent: dict[tuple[str, str], Op] = field(default_factory=dict)  # by task and name of the call
    vague: set[tuple[str, int | None]] = field(default_factory=set)  # leases that an extend may have made longer
    set_at: dict[tuple[str, str], float] = field(default_factory=dict)  # when a setting of a queue was last set
    settings: dict[str, dict[str, str]] = field(default_factory=dict)


def read(folder: Path) -> RecordedHistory:
    """Reads all files of a folder. Raises NotJudged."""
    history, boots, snapshots = RecordedHistory(), set[str](), []
    for path in _sealed(folder):
        begun: dict[int, dict[str, Any]] = {}
        for line in _lines(path, boots):
            try:
                match line:
                    case {"op": number, "calls": _} if number not in begun:
                        begun[number] = line
                    case {"op": number, "replies": _} | {"op": number, "unknown": _} | {"op": number, "fail": _}:
                        _take(history, begun.pop(number), line)
                    case {"run": number, "task": _}:
                        history.runs[path.name, number] = line
                    case {"snapshot": {"since": _, "queues": _} as shown}:
                        snapshots.append((shown, line["t"]))
                    case _:
                        history.runs[path.name, line["run"]]["ended"] = line["t"]
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                raise NotJudged(f"{path}: line {line['n'] + 1} does not fit those before it: {error!r}") from None
        for line in begun.values():  # the process was killed
            _take(history, line, {})
    if len(boots) != 1 or len(snapshots) != 1:
        raise NotJudged(f"{folder} has files of {len(boots)} machines and {len(snapshots)} final snapshots; a history "
                        "is of one machine, whose processes share a clock, and one snapshot ends it")  # fmt: skip
    _take_snapshot(history, *snapshots[0])
    return history


def _sealed(folder: Path) -> list[Path]:
    try:
        sealed = dict(json.loads((folder / "seal.json").read_text())["files"])
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise NotJudged(f"{folder / 'seal.json'} cannot be read ({error}); only a sealed history counts") from None
    found = {path.name: path.stat().st_size for path in folder.glob("*.jsonl")}
    for name in sorted(found.keys() | sealed.keys()):
        if (has := found.get(name, "no")) != (had := sealed.get(name, "no")):
            raise NotJudged(f"{folder / name} has {has} bytes, and had {had} when it was sealed; change no file")
    return [folder / name for name in sorted(found)]


def _lines(path: Path, boots: set[str]) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for number, raw in enumerate(file):
            try:
                line = json.loads(raw if raw.endswith(b"\n") else b"")
                place, is_start = line["n"], line.get("start", {"format": None})["format"] == 1
            except (AttributeError, LookupError, TypeError, ValueError):
                raise NotJudged(f"{path}: line {number + 1} is cut off or damaged: {raw[:60]!r}") from None
            if place != number:
                raise NotJudged(f"{path}: line {number + 1} has the number {place} instead of {number}: a gap")
            if is_start != (number == 0):
                raise NotJudged(f"{path}: line {number + 1}: a process has its start in the first line, in format 1")
            boots |= {line["start"]["boot"]} if is_start else set()
            yield from () if is_start else (line,)


def _take(history: RecordedHistory, begun: dict[str, Any], answer: dict[str, Any]) -> None:
    """Adds an exchange. Calls without a reply may be applied at any time after they began."""
    calls = () if "fail" in answer else begun["calls"]
    for call, reply in zip(calls, answer.get("replies", [{}] * len(calls)), strict=True):
        do, said = call["do"], reply.get("ok")
        known = {"do": do, "queue": call["queue"], "began": begun["t"], "ended": NEVER if said is None else answer["t"]}
        if do in ("configure", "queue_declare"):
            history.set_at.update({(call["queue"], name): known["ended"] for name in call["fields"]})
        elif do not in _KNOWN:
            raise NotJudged(f"the history has a call of {do} on {call['queue']}, for which this program has no rule")
        elif do != "reserve":
            for (task, *own), outcome in zip(call["tasks"], said or [said] * len(call["tasks"]), strict=True):
                more = zip(("priority", "due") if do in ENTERING else ("lease", "due", "unpaid"), own, strict=False)
                _take_task(history, task, Op(**known, said=outcome, to=call.get("to", ""), **dict(more)), call)
        elif said is None:
            history.lost_reserves.append((Op(**known, lease=call["first"]), call["count"]))
        for task, *own in said or () if do == "reserve" else ():
            more = zip(("lease", "attempt", "end_ms", "most"), own, strict=False)
            history.tasks.setdefault(task, []).append(Op(**known, said="ok", now_ms=reply["now"], **dict(more)))


def _take_task(history: RecordedHistory, task: str, op: Op, call: dict[str, Any]) -> None:
    is_added = op.said in (None, *ADDED) and "sent" in call
    old = history.sent.setdefault((task, call["sent"]), op) if is_added else op
    if op.said in _UNCHANGED or (op.do, op.said) == ("extend", None):  # no proof of a later end
        history.vague |= {(task, op.lease)} if op.said is None else set()
        history.refused += [(task, op)] if op.said in _NOT_HELD and op.do != "cancel" else []
    elif old is not op and abs(op.began - old.began) < _NOTED_S:  # sent again: it takes effect once
        old.began, old.ended, old.said = min(op.began, old.began), min(op.ended, old.ended), old.said or op.said
    else:
        op.end_ms = float(op.said.lstrip("!")) if op.do == "extend" else 0.0
        history.tasks.setdefault(task, []).append(op)


def _take_snapshot(history: RecordedHistory, seen: dict[str, Any], at: float) -> None:
    places: dict[str, list[tuple[str, str]]] = {task: [] for task in history.tasks}
    for name, sets in seen["queues"].items():
        history.settings[name] = sets.pop("settings")
        for task, state in ((task, state) for state, ids in sets.items() for task in ids):
            places.setdefault(task, []).append((name, state))
    known = {name for name, settings in history.settings.items() if not settings.get("dead_letter_queue")}
    if unfit := {op.queue for ops in history.tasks.values() for op in ops} - known:
        raise NotJudged(f"queues the final snapshot lacks, or with a dead letter queue: {', '.join(sorted(unfit))}")
    for task, said in places.items():
        history.tasks.setdefault(task, []).append(Op(do="snapshot", queue="", began=seen["since"], ended=at, said=said))
