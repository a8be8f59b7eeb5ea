"""What the server did, as lines that a reader of the documentation understands: tasks, leases and batches by short
names, each script as a sentence."""

import itertools
import re
from typing import Any

from tests.simulation.scheduler import STARTED_MS, Actor, World

_MADE_ID = re.compile(r"[0-9a-f]{28}-\w+")
_LEASE = re.compile(r"(?<![\w.])\d{12,15}(?![\w.])")
_LONGEST = 2000
_UNTOLD = ("register", "take_leadership", "leader_scan", "stats_sample")


class Trace:
    """Describes the commands of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._names: dict[str, str] = {}
        self._numbers = itertools.count(1)

    def __call__(self, actor: Actor, name: str, keys: list[bytes], args: list[bytes], reply: Any) -> None:
        """One line about what a script did."""
        if name in _UNTOLD or self._world.trace is None:
            return
        words = [word[:_LONGEST].decode("utf-8", "replace") for word in args]
        if name.startswith("join_"):
            words.insert(0, keys[0].rpartition(b":")[2].decode())
        self._world.note(actor, self._short(f"{_SAYS.get(name, _any)(name, words, reply)}"))

    def _short(self, line: str) -> str:
        line = _MADE_ID.sub(self._named, line)
        return _LEASE.sub(lambda found: f"…{found[0][-4:]}", line)

    def _named(self, found: re.Match[str]) -> str:
        return self._names.setdefault(found[0], f"#{next(self._numbers)}")


def _any(name: str, words: list[str], reply: Any) -> str:
    return f"{name} → {_said(reply)}"


def _said(reply: Any) -> str:
    if isinstance(reply, list):
        return ", ".join(map(_said, reply)) or "nothing"
    return reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)


def _enqueue(_: str, words: list[str], reply: Any) -> str:
    shared, own = int(words[3]), words[4:]
    ids, at = [], shared
    while at < len(own):
        ids.append(own[at])
        at += 3 + int((own[at + 2].split(" ") or ["0"])[-1] or 0)
    if reply[:1] == [b"full"]:
        return f"pushes {', '.join(ids)}: {own[1]} is full"
    return f"pushes {', '.join(ids)} to {own[1]}"


def _unique(_: str, words: list[str], reply: Any) -> str:
    return f"enqueues {words[5]}, unique until {words[8]}, to {words[3]} → {_said(reply)}"


def _reserve(_: str, words: list[str], reply: Any) -> str:
    ids = [one.decode() for one in reply[6::5]]
    if not ids:
        return "reserves and gets nothing"
    ends = (float(reply[2]) - STARTED_MS) / 1000
    return f"is handed out {', '.join(ids)} under leases from {words[2]} on, until {ends:.4f} s"


def _commit(_: str, words: list[str], reply: Any) -> str:
    refused = {position: word.decode() for position, word in zip(reply[::2], reply[1::2], strict=True)}
    said, position, at = [], 0, 3
    while at < len(words):
        for n in range(at + 7, at + 7 + 2 * int(words[at]), 2):
            position += 1
            said.append(f"{words[n]} under {words[n + 1]}: {refused.get(position, 'ended')}")
        at += 7 + 2 * int(words[at])
    return f"commits {'; '.join(said)}"


def _reports(first: int, width: int) -> Any:
    def say(name: str, words: list[str], reply: Any) -> str:
        start = first + 3 * int(words[4]) if name == "fail" else first
        said = [
            f"{words[at]} under {words[at + 1]}: {_said(word)}"
            for at, word in zip(range(start, len(words), width), reply, strict=True)
        ]
        return f"{name}s {'; '.join(said)}"

    return say


def _move(_: str, words: list[str], reply: Any) -> str:
    said, at = [], 5
    for word in reply:
        said.append(f"{words[at]} under {words[at + 1]}: {_said(word)}")
        at += 5 + int(words[at + 4])
    return f"moves to {words[2]} {'; '.join(said)}"


def _fan_out(_: str, words: list[str], reply: Any) -> str:
    children, at = [], 8
    while at < len(words):
        children.append(words[at])
        at += 6 + int(words[at + 5])
    return f"fans {words[3]} out under {words[4]} into {', '.join(children)}: {_said(reply)}"


def _fill(_: str, words: list[str], reply: Any) -> str:
    return f"fills batch {words[2]} (had {words[5]}, {words[6]} more): has {_said(reply[0])}"


def _batch(at: int) -> Any:
    def say(name: str, words: list[str], reply: Any) -> str:
        more = f", {words[at + 2]}" if name == "batch_fail" else ""
        return f"{name} of {words[at]}, epoch {words[at + 1]}{more} → {_said(reply)}"

    return say


def _claim(_: str, words: list[str], reply: Any) -> str:
    if len(reply) < 2:
        return f"claims batch {words[1]}: {'it is gone' if reply else 'it is not due'}"
    return f"claims batch {words[1]}: {_said(reply[1])}, epoch {reply[0]}, {reply[3]} members"


def _advance(_: str, words: list[str], reply: Any) -> str:
    moved, _, dead, ended = reply[1:5]
    return f"advances batch {words[3]}: {_said(reply[0])}; {moved} moved, {dead} dead, {ended} ended or put back"


def _prepare(_: str, words: list[str], reply: Any) -> str:
    fields = dict(zip(words[2::2], words[3::2], strict=False))
    then = f", then {fields['id']}" if "id" in fields else ""
    return f"prepares join {words[0]} of {fields['total']} members ({fields['rule']}{then}) → {_said(reply)}"


def _arrive(_: str, words: list[str], reply: Any) -> str:
    ends = [f"member {member} {outcome}" for member, outcome in zip(words[2::3], words[3::3], strict=True)]
    return f"notifies join {words[0]}: {', '.join(ends)} → {_said(reply)}"


def _collect(_: str, words: list[str], reply: Any) -> str:
    return f"collects results in join {words[0]} → {_said(reply)}"


def _fire(_: str, words: list[str], reply: Any) -> str:
    return f"ticks {words[2]} of {words[4]} → {_said(reply)}"


_SAYS: dict[str, Any] = {
    "enqueue": _enqueue, "enqueue_unique": _unique,
    "reserve": _reserve, "commit": _commit, "move": _move, "fan_out": _fan_out, "fail": _reports(5, 6),
    "release": _reports(2, 3), "extend": _reports(2, 3), "crash": _reports(4, 3),
    "batch_fill": _fill, "batch_claim": _claim,
    "batch_stage": _batch(0), "batch_decide": _batch(0), "batch_renew": _batch(0), "batch_fail": _batch(1),
    "batch_advance": _advance,
    "periodic_fire": _fire, "join_prepare": _prepare, "join_arrive": _arrive, "join_collect": _collect,
}  # fmt: skip
