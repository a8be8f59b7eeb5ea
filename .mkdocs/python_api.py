"""The page of the reference on the Python API: each public name, with its signature and its docstring.

Names that users do not call are left out: constructors of objects that jobrunner makes, parameters for its own tests,
methods that only jobrunner calls.
"""

import ast
import dataclasses
import importlib
import inspect
import re
from enum import Enum
from types import ModuleType
from typing import Any

MODULES = (
    "jobrunner", "jobrunner.etl", "jobrunner.logs", "jobrunner.middleware", "jobrunner.spark", "jobrunner.testing",
    "jobrunner.tracing", "jobrunner.types", "jobrunner.web",
)  # fmt: skip
"""Where users import from."""
GROUPS = {
    "Declare jobs and queues": ("job", "Job", "PeriodicJob", "Backoff", "Unique", "queue", "job_defaults"),
    "Enqueue and follow tasks": ("configure", "current_client", "Client", "TaskHandle", "TaskState"),
    "Workflows": ("chain", "group", "FlowHandle"),
    "Inside a running job": ("current_task", "Retry", "Snooze", "Fail", "Cancel"),
    "Workers": ("Worker",),
    "Queues without jobs": ("Queue", "Lease", "Item", "RateLimit"),
    "asyncio": ("async_client", "AsyncClient", "AsyncTaskHandle", "AsyncFlowHandle", "AsyncQueue", "AsyncLease"),
}
"""The names of `jobrunner` under headings; a test compares them with `jobrunner.__all__`."""
MADE_BY = {
    "AsyncFlowHandle": "`await chain(…).aenqueue()`, `await group(…).aenqueue()`",
    "AsyncLease": "`await queue.reserve()`",
    "AsyncQueue": "`client.queue(name)` of an `AsyncClient`",
    "AsyncTaskHandle": "`await job.aenqueue(…)`, `client.task(id)` of an `AsyncClient`",
    "BoundCall": "`job.bind(…)`, `using(…)` of a call",
    "Chain": "`chain(…)`",
    "Enqueued": "the fixture `enqueued`",
    "EnqueuedTask": "`enqueued.of(job)`",
    "Event": "`client.events()`",
    "Failure": "`failures` of a record",
    "FlowHandle": "`chain(…).enqueue()`, `group(…).enqueue()`",
    "FlowProgress": "`flow.progress()`, `client.flow_progress(id)`",
    "FunctionJob": "`@job` of a function",
    "Group": "`group(…)`",
    "ItemRecord": "`queue.tasks()`, `queue.history()`",
    "JobrunnerWorker": "the fixture `jobrunner_worker`",
    "Lease": "`queue.reserve()`",
    "Metadata": "`self.metadata`, `current_task().metadata`",
    "PeriodicRecord": "`client.periodics()`",
    "PeriodicTick": "`recent` of a periodic job",
    "Popped": "`queue.pop()`",
    "QueueCounts": "`client.stats()`",
    "QueueSettings": "`queue.settings()`",
    "Queue": "`client.queue(name)`",
    "RunningAttempt": "`running` of a worker",
    "RunningTask": "`current_task()`, `self.task`",
    "SettingOrigin": "`queue.origins()`",
    "SinkBatch": "jobrunner, for a sink on Spark",
    "SparkStation": "`@pipeline.spark_station(…)`, `@pipeline.spark_sink(…)`",
    "StationItem": "jobrunner, for a station",
    "TaskHandle": "`job.enqueue(…)`, `client.task(id)`",
    "TaskRecord": "`task.record()`",
    "Travel": "the fixture `travel`",
    "WorkerRecord": "`client.workers()`",
}
"""What returns an object whose constructor is not called by users."""
TITLES = {"job": "job, the decorator", "queue": "queue, a declaration"}
"""Headings that are not the name alone: those of `job` and `Job`, `queue` and `Queue` would have the same anchor."""
_HIDDEN_PARAMETERS = {"self", "now_ms", "wrongly", "unknown"}
_HIDDEN_MEMBERS = {
    "AsyncClient.like", "Backoff.delay", "BoundCall.task", "Chain.node", "Group.node", "Enqueued.recording",
    "RateLimit.seconds", "Travel.now_ms", "Unique.check", "Unique.lock", "SparkStation.targets",
    "SparkStation.is_sink", "SparkStation.fan_out", "SparkStation.rest", "FunctionJob.definition", "TaskRecord.after",
    "TaskRecord.tag", "TaskRecord.placeholder",
}  # fmt: skip
_HIDDEN_METHODS = {"accept", "identify", "is_owner", "knows", "new_token", "offered", "session_of", "signing_key"}
"""Of the objects for `auth=`: the dashboard calls them."""
_WIDTH = 100
_SHORTER = (
    (r"<function \w+ at 0x\w+>", "…"),
    (r"\b(?:jobrunner|collections|typing|datetime|msgspec|starlette)\.(?:\w+\.)*", ""),
    (r"timedelta \| int \| float|float \| timedelta", "Duration"),
    (r"Union\[Literal\['existing', 'raise'\], Callable\[\[list\[str\]\], object\]\]",
     "'existing' | 'raise' | Callable[[list[str]], object]"),
    (r"~(\w+)", r"\1"),
    (r"\*<class '(\w+)'>|Unpack\[(\w+)\]", lambda found: found[1] or found[2]),  # before and since Python 3.12
    (r"-> '(\w+)'$", r"-> \1"),
    (r"Callable\[\[MutableMapping.*?Awaitable\[None\]\](?=[,)]| ->|$)", "ASGIApp"),
    (r"Literal\[([^\]]*)\]", lambda found: found[1].replace(", ", " | ")),
)  # fmt: skip


def api() -> str:
    """Every name that users import, with its signature and its docstring."""
    intro = (
        "Import each name from the module in the heading above it. Names that are not listed here may change. "
        "`Duration` is a number of seconds or a `timedelta`."
    )
    parts = ["# Python API", intro]
    for name in MODULES:
        module = importlib.import_module(name)
        parts.append(f"## {name}")
        if name != "jobrunner":
            parts.append(prose(inspect.cleandoc(module.__doc__ or "").partition("\n\n")[0]))
        for heading, names in _grouped(module):
            parts += [f"**{heading}:** " + ", ".join(_link(one) for one in names)] if heading else []
        for _, names in _grouped(module):
            parts += [_described(module, one) for one in names]
    return "\n\n".join(parts)


def _link(name: str) -> str:
    return f"[`{name}`](#{TITLES.get(name, name).lower().replace(',', '').replace(' ', '-')})"


def _grouped(module: ModuleType) -> list[tuple[str, tuple[str, ...]]]:
    if module.__name__ == "jobrunner":
        return [*GROUPS.items()]
    return [("", tuple(module.__all__))]


def _described(module: ModuleType, name: str) -> str:
    found = getattr(module, name)
    title = f"### {TITLES.get(name, name)}"
    if not callable(found):
        return f"{title}\n\n`{found!r}`"
    if name == "job":
        said = prose((inspect.getdoc(found) or "").partition("\n")[0])
        made = "A class stays a [`Job`](#job), a function becomes a [`FunctionJob`](#functionjob)."
        return f"{title}\n\n{said}\n\n[Options](job-options.md). {made}"
    made = f"Returned by {MADE_BY[name]}." if name in MADE_BY else signature(found, name)
    parts = [title, made, prose(inspect.getdoc(found))]
    if module.__name__ == "jobrunner.types":
        fields = [_field(*one) for one in declared_in(found) if _is_shown(name, one[0])]
        parts += ["\n".join(fields)] if fields else []
    if isinstance(found, type):
        parts += [_member(found, one) for one in _members(found)]
        if any(_is_repeated(inspect.getdoc(inspect.getattr_static(found, one))) for one in _all_members(found)):
            parts.append(f"The other members are those of `{name.removeprefix('Async')}`, awaited.")
    return "\n\n".join(parts)


def declared_in(owner: type) -> list[tuple[str, str, str, str]]:
    """(name, annotation, default as written, docstring) of the fields of a class."""
    tree = ast.parse(inspect.getsource(importlib.import_module(owner.__module__)))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner.__name__)
    found = []
    for node, behind in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            is_said = isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant)
            said = " ".join(str(behind.value.value).split()) if is_said else ""  # type: ignore[union-attr]
            default = "" if node.value is None else ast.unparse(node.value)
            found.append((node.target.id, ast.unparse(node.annotation), default, said))
    return found


def _is_shown(owner: str, name: str) -> bool:
    return not name.startswith("_") and f"{owner}.{name}" not in _HIDDEN_MEMBERS


def _field(name: str, annotation: str, _: str, said: str) -> str:
    return f"- `{name}`: `{shorter(annotation)}`{'. ' if said else ''}{said}"


def _all_members(owner: type) -> list[str]:
    own = [one for base in owner.__mro__ if _is_documented_here(base, owner) for one in vars(base)]
    public = [one for one in dict.fromkeys(own) if not one.startswith("_") and one not in _HIDDEN_METHODS]
    shown = [one for one in public if f"{owner.__name__}.{one}" not in _HIDDEN_MEMBERS]
    return [one for one in shown if _is_told(inspect.getattr_static(owner, one))]


def _members(owner: type) -> list[str]:
    return [one for one in _all_members(owner) if not _is_repeated(inspect.getdoc(inspect.getattr_static(owner, one)))]


def _is_documented_here(base: type, owner: type) -> bool:
    """Members of a public base class are described there."""
    if not base.__module__.startswith("jobrunner"):
        return False
    public = [*importlib.import_module("jobrunner").__all__, *importlib.import_module("jobrunner.types").__all__]
    return base is owner or base.__name__ not in public


def _is_told(member: Any) -> bool:
    is_method = isinstance(member, property | classmethod | staticmethod) or inspect.isfunction(member)
    return bool((is_method or _is_own_descriptor(member)) and inspect.getdoc(member))


def _is_own_descriptor(member: Any) -> bool:
    """Whether it returns a method, as `Job.using`, which a class and its instances have alike."""
    return type(member).__module__.startswith("jobrunner.jobs.job") and hasattr(type(member), "__get__")


def _is_repeated(doc: str | None) -> bool:
    return bool(re.fullmatch(r"As [A-Z]\w+\.\w+\.", doc or ""))


def _member(owner: type, name: str) -> str:
    member = inspect.getattr_static(owner, name)
    head = "" if isinstance(member, property) else f"\n\n{signature(getattr(owner, name), name)}"
    told = getattr(owner, name) if _is_own_descriptor(member) else member
    return f"#### {owner.__name__}.{name}{head}\n\n{prose(inspect.getdoc(told))}"


def signature(found: Any, name: str) -> str:
    """A call in a block: on one line if it is short, else a line for each parameter. Of an enumeration its members."""
    if isinstance(found, type) and issubclass(found, Enum):
        return f"```text\n{', '.join(f'{name}.{one}' for one in found.__members__)}\n```"
    try:
        whole = inspect.signature(found)
    except (TypeError, ValueError):
        return f"```text\n{name}(…)\n```"
    kept = [one for one in whole.parameters.values() if one.name not in _HIDDEN_PARAMETERS]
    returned = "" if isinstance(found, type) else str(whole).rpartition(" -> ")[2] if " -> " in str(whole) else ""
    shown, is_keyword = [], False
    for one in kept:
        if one.kind is one.KEYWORD_ONLY and not is_keyword and not any(p.kind is p.VAR_POSITIONAL for p in kept):
            shown, is_keyword = [*shown, "*"], True
        shown.append(shorter(str(one.replace(default=_default(one.default)))))
    behind = f" -> {shorter(returned).strip(chr(39))}" if returned and returned != "None" else ""
    line = f"{name}({', '.join(shown)}){behind}"
    if len(line) > _WIDTH:
        line = f"{name}(\n" + "".join(f"    {one},\n" for one in shown) + f"){behind}"
    return f"```text\n{line}\n```"


class _Shown:
    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _default(value: Any) -> Any:
    """A default that reads the same in every process."""
    is_made = dataclasses.is_dataclass(value) or callable(value) or " object at 0x" in repr(value)
    return _Shown("…") if is_made and value is not inspect.Parameter.empty else value


def shorter(text: str) -> str:
    """An annotation without the modules of its types."""
    for pattern, by in _SHORTER:
        text = re.sub(pattern, by, text)  # type: ignore[arg-type]
    return text


def prose(doc: str | None) -> str:
    """A docstring: paragraphs as they are, what is laid out in columns as it is laid out."""
    shown = []
    for paragraph in (doc or "").split("\n\n"):
        is_laid_out = re.search(r"^\s|\S {2,}\S", paragraph, re.MULTILINE) is not None
        shown.append(f"```text\n{paragraph}\n```" if is_laid_out else paragraph.replace("<", "\\<"))
    return "\n\n".join(shown)
