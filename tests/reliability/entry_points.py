"""The entry points for input: API, command line, dashboard. Each draws one call with hostile input."""

import io
import re
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jobrunner.web
from jobrunner import Client, RateLimit, Unique, job
from jobrunner.cli.error_boundary import guarded
from jobrunner.cli.main import jobrunner as command_line
from jobrunner.client.item import Item
from jobrunner.due_ticks import due_ticks
from jobrunner.jobs.options import JobOptions
from jobrunner.jobs.registry import forget
from jobrunner.queue_settings import QueueSettings
from jobrunner.retry import Backoff
from jobrunner.schedule import Cron, Every
from jobrunner.settings import ClientSettings
from jobrunner.web.app import create_app
from jobrunner.web.auth import Loopback
from jobrunner.web.pages import all_actions, all_pages
from jobrunner.worker.settings import WorkerSettings
from tests.reliability.hostile_input import Nasty, shown
from tests.unit.web.conftest import Browser

Asked = tuple[str, Callable[[], object]]
"""A call: its description, and the function that makes it."""

_WEB = Path(jobrunner.web.__file__).parent
_READ = sorted(
    {
        name
        for path in _WEB.rglob("*.py")
        for name in re.findall(r"(?:query|form)\.(?:text|whole|number|choice|flag|all)\(\"(\w+)\"", path.read_text())
    }
    | {"limit", "page", "count", "days", "size"}
)
"""Names of all parameters that a page or action reads, and usual names."""
_ITEM = [name for name in Item.__slots__ if name != "payload"]
_PERIODIC = ("every", "cron", "tz", "catch_up", "overlap", "jitter", "no_such_option")
_FACTS = re.compile(r"Traceback|was not foreseen|internal error; the log")
_COMMANDS = (
    "queues list", "queues pause T", "queues pause T --for N", "queues resume T", "queues settings T",
    "queues limit T --max-inflight N", "queues limit T --rate N", "queues limit T --rate N/T",
    "queues limit T --max-size N",
    "queues purge T --yes", "queues purge T --state T --yes", "tasks list T", "tasks list T --limit N",
    "tasks list T --state T",
    "tasks show T", "tasks show T --queue T", "tasks cancel T", "tasks cancel T --queue T",
    "tasks run-now T", "tasks run-now T --queue T", "dead list T --limit N",
    "dead list T --job T --error T", "dead requeue T --id T", "dead requeue T --all --rate N",
    "dead requeue T --id T --payload T",
    "dead purge T --id T --yes", "history list T --limit N", "history list --job T --since T",
    "queues limit T --history T", "jobs T", "history replay T T", "history purge T --yes",
    "periodic list",
    "periodic enable T", "periodic disable T", "periodic run T",
    "periodic remove T", "periodic add T Work n=N --every N -m tests.acceptance.jobs_for_tests", "pipeline list T",
    "pipeline show T --over 0",
    "pipeline show T --over T", "pipeline push T T", "pipeline push shop/raw T --in N --priority N", "enqueue T T",
    "enqueue Work T=N -m tests.acceptance.jobs_for_tests", "enqueue Work n=N --in N -m tests.acceptance.jobs_for_tests",
    "enqueue Work --at T --queue T -m tests.acceptance.jobs_for_tests", "enqueue Work -m T", "events --after T",
    "events --kind T", "status --prefix T", "T", "T T", "queues T", "queues list --url T",
)  # fmt: skip
"""T is replaced by a text, N by a number."""


class Doors:
    """All entry points to one server. `each` names them; a call raises the error that its caller would get."""

    def __init__(self, client: Client, rng: Nasty) -> None:
        self.client = client
        self.rng = rng
        self.browser = Browser(create_app(client, auth=Loopback()), raise_server_exceptions=True)
        self.browser.token(self.browser.dashboard)
        self.each: dict[str, Callable[[], Asked]] = {
            "schedules": self._schedule, "job options": self._job, "enqueue": self._enqueue, "push": self._push,
            "reads": self._read, "changes": self._change, "settings of queues": self._configure, "tasks": self._task,
            "settings": self._settings, "command line": self._command, "pages": self._page, "actions": self._action,
        }  # fmt: skip

    def _schedule(self) -> Asked:
        rng = self.rng
        if rng.random() < 0.2:
            interval = rng.anything()
            return f"Every({shown(interval)})", lambda: _ticks(Every(interval), Nasty(1))
        words, zone, seed = rng.cron(), rng.zone(), rng.random()
        return f"Cron({shown(words)}, {shown(zone)})", lambda: _ticks(Cron(words, zone), Nasty(seed))

    def _job(self) -> Asked:
        rng = self.rng
        options = {"name": "nasty-job"} | rng.some([*JobOptions.__struct_fields__, "name"])
        if rng.random() < 0.4:
            options |= rng.some(_PERIODIC)
        if rng.random() < 0.2:
            made = rng.some(("by", "until", "ttl", "on_clash"), 2)
            return f"Unique({shown(made)})", lambda: Unique(**made)
        return f"@job({shown(options)})", lambda: _declared(options)

    def _enqueue(self) -> Asked:
        rng, given = self.rng, {}
        for name, draw in (
            ("in_", rng.number),
            ("at", rng.number),
            ("priority", rng.anything),
            ("queue", rng.name),
            ("id", rng.name),
        ):
            if rng.random() < 0.3:
                given[name] = draw()
        if rng.random() < 0.1:
            given["wait"] = rng.refused_duration()
        values = {"n": rng.anything()} if rng.random() < 0.3 else {"n": 1}
        given.setdefault("queue", "nasty")
        return f"Probe({shown(values)}).enqueue({shown(given)})", lambda: self._probe(values, given)

    def _call(self) -> Any:
        from tests.reliability.jobs import Probe

        return Probe(n=1)

    def _probe(self, values: dict[str, Any], given: dict[str, Any]) -> object:
        from tests.reliability.jobs import Probe

        return Probe(**values).enqueue(**given)

    def _push(self) -> Asked:
        rng = self.rng
        options = rng.some(_ITEM)
        name, payload = self._queue_name(), rng.anything()
        if rng.random() < 0.1:
            options["wait"] = rng.refused_duration()
        return (
            f"queue({shown(name)}).push({shown(payload)}, {shown(options)})",
            lambda: self.client.queue(name).push(payload, **options),
        )

    def _read(self) -> Asked:
        rng, name = self.rng, self._queue_name()
        one, other = rng.anything(), rng.anything()
        asked: dict[str, Callable[[Any], object]] = {
            "tasks(state=, limit=)": lambda queue: queue.tasks(rng_state(one), limit=other),
            "tasks(after=)": lambda queue: queue.tasks("waiting", after=one),
            "ids": lambda queue: queue.ids(rng_state(one), limit=other),
            "ids(start=)": lambda queue: queue.ids("waiting", start=one),
            "history": lambda queue: queue.history(one),
            "counts": lambda queue: queue.counts(),
            "settings": lambda queue: queue.settings(),
        }
        word = rng.pick(list(asked))
        return f"queue({shown(name)}).{word} {shown(one)}, {shown(other)}", lambda: asked[word](self.client.queue(name))

    def _change(self) -> Asked:
        rng, name = self.rng, self._queue_name()
        one, other, wait = rng.anything(), rng.anything(), rng.refused_duration()
        asked: dict[str, Callable[[Any], object]] = {
            "reserve": lambda queue: _settled(queue.reserve(one, keepalive=other)),
            "reserve(wait=)": lambda queue: _settled(queue.reserve(1, wait=wait)),
            "pop": lambda queue: queue.pop(one),
            "pause": lambda queue: queue.pause(one),
            "resume": lambda queue: queue.resume(),
            "delete": lambda queue: queue.delete(one),
            "replay": lambda queue: queue.replay(one),
            "run_now": lambda queue: queue.run_now(one),
            "requeue_dead": lambda queue: queue.requeue_dead(one, rate=other),
            "requeue_dead(payload=)": lambda queue: queue.requeue_dead(["a"], payload=one),
            "purge": lambda queue: queue.purge(one),
            "rollback": lambda queue: [lease.rollback(one, error=other) for lease in queue.reserve()],
            "commit": lambda queue: [lease.commit(one) for lease in queue.reserve()],
            "move": lambda queue: [lease.move(one, payload=other) for lease in queue.reserve()],
        }
        word = rng.pick(list(asked))
        return f"queue({shown(name)}).{word} {shown(one)}, {shown(other)}", lambda: asked[word](self.client.queue(name))

    def _configure(self) -> Asked:
        rng, name = self.rng, self._queue_name()
        options = rng.some([known.name for known in fields(QueueSettings)] + [rng.text()])
        if rng.random() < 0.3:
            kind = rng.pick((RateLimit, Backoff))
            names = (
                ("max_tokens", "interval", "interval_unit")
                if kind is RateLimit
                else ("base", "factor", "cap", "jitter")
            )
            made = rng.some(names, 4)
            made.setdefault("max_tokens", 3) if kind is RateLimit else None
            option = "rate" if kind is RateLimit else "backoff"
            return f"{kind.__name__}({shown(made)})", lambda: self.client.queue("set").configure(
                **{option: kind(**made)}
            )
        return (
            f"queue({shown(name)}).configure({shown(options)})",
            lambda: self.client.queue(name).configure(**options),
        )

    def _task(self) -> Asked:
        rng = self.rng
        task_id, queue, timeout = rng.name(), rng.pick((None, rng.name())), rng.refused_duration()
        some = rng.some(_PERIODIC)
        asked: dict[str, Callable[[], object]] = {
            "state": lambda: self.client.task(task_id, queue=queue).state,
            "record": lambda: self.client.task(task_id, queue=queue).record(),
            "cancel": lambda: self.client.task(task_id, queue=queue).cancel(),
            "requeue": lambda: self.client.task(task_id, queue=queue).requeue(),
            "result": lambda: self.client.task(task_id, queue=queue).result(timeout=timeout),
            "enable_periodic": lambda: self.client.enable_periodic(task_id),
            "disable_periodic": lambda: self.client.disable_periodic(task_id),
            "add_periodic": lambda: self.client.add_periodic(task_id, self._call(), **some),
            "remove_periodic": lambda: self.client.remove_periodic(task_id),
            "events": lambda: list(self.client.events(after=task_id)),
        }
        word = rng.pick(list(asked))
        return f"task({shown(task_id)}, {shown(queue)}).{word}", asked[word]

    def _settings(self) -> Asked:
        rng = self.rng
        if rng.random() < 0.3:
            chosen = rng.some([known.name for known in fields(WorkerSettings)])
            return f"WorkerSettings({shown(chosen)})", lambda: WorkerSettings(**chosen)
        options = rng.some([known.name for known in fields(ClientSettings) if known.name not in ("url", "prefix")])
        url = rng.pick((self.client.settings.url, rng.text()))
        prefix = rng.pick(("rel", "rel", rng.name()))
        return (
            f"Client({shown(url)}, {shown(prefix)}, {shown(options)})",
            lambda: Client(url, prefix, **options).close(),
        )

    def _command(self) -> Asked:
        rng = self.rng
        words = [self._word(word) for word in rng.pick(_COMMANDS).split()]
        return f"jobrunner {shown(words)}", lambda: self.command(words)

    def _word(self, word: str) -> str:
        rng = self.rng
        if word == "N" or (word == "T" and rng.random() < 0.2):
            return str_of(rng.number())
        if word == "T":
            return rng.pick((rng.text(), rng.text(), "mail", "nasty", "shop/raw"))
        left, sign, right = word.partition("=")
        if sign:
            return f"{self._word(left)}={self._word(right)}"
        left, sign, right = word.partition("/")
        return f"{self._word(left)}/{self._word(right)}" if sign and left in "NT" else word

    def command(self, words: list[str]) -> int:
        """Runs a command in this process. Raises errors that must not reach a user."""
        out = io.TextIOWrapper(io.BytesIO(), "utf-8")
        err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")
        places = {"--url": self.client.settings.url, "--prefix": self.client.settings.prefix}
        given = words + [f"{option}={place}" for option, place in places.items() if option not in words]
        with redirect_stdout(out), redirect_stderr(err):
            code = guarded(command_line, given)
            out.flush()
        err.flush()
        said = err.buffer.getvalue().decode()
        if code not in (0, 1, 2) or _FACTS.search(said):
            raise AssertionError(f"exit code {code}: {said[-300:]}")
        return code

    def _page(self) -> Asked:
        rng = self.rng
        path = self._path(rng.pick(all_pages()).path)
        parameters = {name: rng.text() for name in rng.sample(_READ, rng.randint(0, 4))}
        headers = {"accept": rng.pick(("text/html", "application/json"))}
        return f"GET {path} {shown(parameters)}", lambda: self._answer(
            self.browser.get(path, params=_sendable(parameters), headers=headers)
        )

    def _action(self) -> Asked:
        rng = self.rng
        path = self._path(rng.pick(all_actions()).path)
        form = {
            name: rng.pick((rng.text(), "mail", "dead", "requeue", str_of(rng.number())))
            for name in rng.sample(_READ, rng.randint(0, 5))
        }
        return f"POST {path} {shown(form)}", lambda: self._answer(self.browser.post_form(path, _sendable(form)))

    def _answer(self, answer: Any) -> object:
        if answer.status_code >= 500:
            raise AssertionError(f"{answer.status_code}: {answer.text[:200]}")
        return answer

    def _path(self, path: str) -> str:
        return re.sub(
            r"\{[^}]*\}",
            lambda _: (
                quote(self.rng.text().encode("utf-8", "surrogatepass")[:4000], safe=self.rng.pick(("", "/"))) or "a"
            ),
            path,
        )

    def _queue_name(self) -> Any:
        return self.rng.pick(("mail", "nasty", "shop/raw")) if self.rng.random() < 0.5 else self.rng.name()


def rng_state(value: Any) -> Any:
    """A state as it is, anything that is falsy as `dead`."""
    return value or "dead"


def str_of(number: Any) -> str:
    """A number as a person would type it."""
    try:
        return str(number)
    except ValueError:
        return "9" * 5_000


def _sendable(words: dict[str, str]) -> dict[str, str]:
    return {name: text.encode("utf-8", "replace").decode() for name, text in words.items()}


def _settled(leases: list[Any]) -> None:
    for lease in leases:
        lease.release()


def _ticks(schedule: Any, rng: Nasty) -> None:
    now = datetime(2026, rng.randint(1, 12), 28, rng.randint(0, 23), 30, tzinfo=UTC)
    schedule.describe()
    schedule.spec()
    schedule.next_after(now)
    due_ticks(schedule, datetime(2020, 1, 1, tzinfo=UTC), now, catch_up="last")


def _declared(options: dict[str, Any]) -> None:
    def nasty(n: int = 0) -> None: ...

    declared = job(**options)(nasty)
    forget(declared.definition.name)
