"""Readers during a scenario: every read-only command, and every page of the dashboard, in this process."""

import io
import os
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from starlette.testclient import TestClient

from jobrunner.cli.error_boundary import guarded
from jobrunner.cli.main import jobrunner
from jobrunner.client.client import Client, keys_of
from jobrunner.web.app import create_app
from jobrunner.web.auth import Loopback
from jobrunner.web.pages import all_pages

_UNFORESEEN, _LONGEST = "not foreseen", 1_500
_COMMANDS = (
    "status", "status --json", "queues list", "queues list --json", "queues settings t", "queues settings t --json",
    "tasks list t", "tasks list t --json", "tasks show {task}", "tasks show {task} --json", "dead list t",
    "dead list t --json", "history list t", "history list t --json", "periodic list", "periodic list --json",
    "events", "events --json", "doctor", "doctor --json", "top --once --every 0.1", "top --json --every 0.1",
    "pipeline list", "pipeline show parts",
)  # fmt: skip
_QUESTIONS = ("/queues/t?state=scheduled", "/queues/t?state=dead", "/tasks?queue=t&text=a", "/dead?queue=t", "/metrics")


class Onlookers:
    """Calls them one after the other and keeps unexpected errors. `answers` counts exit codes and HTTP statuses."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.unforeseen: list[str] = []
        self.answers: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        """Pages that could not be rendered, with the reason."""
        app = create_app(client, auth=Loopback())
        self._browser = TestClient(
            app, base_url="http://127.0.0.1", client=("127.0.0.1", 50000), follow_redirects=False,
            raise_server_exceptions=False, headers={"accept": "text/html"},
        )  # fmt: skip
        self._paths = [page.path for page in all_pages()] + list(_QUESTIONS)
        self._at = 0

    def look(self, task: str, count: int) -> None:
        """So many commands and as many pages, in turn."""
        for _ in range(count):
            self._ask(_COMMANDS[self._at % len(_COMMANDS)].format(task=task))
            self._get(self._paths[self._at % len(self._paths)], task)
            self._at += 1

    def look_at_all(self, task: str) -> None:
        """Everything once."""
        for words in _COMMANDS:
            self._ask(words.format(task=task))
        for path in self._paths:
            self._get(path, task)

    def _ask(self, words: str) -> None:
        here = {"JOBRUNNER_URL": self.client.settings.url, "JOBRUNNER_PREFIX": keys_of(self.client).prefix}
        before = {name: os.environ.get(name) for name in here}
        out, err = io.StringIO(), io.StringIO()
        os.environ.update(here)
        try:
            with redirect_stdout(out), redirect_stderr(err):
                code: Any = guarded(jobrunner, [*words.split(), "--debug"])
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        self.answers[f"exit {code}"] += 1
        if code not in (0, 1) or _UNFORESEEN in err.getvalue():
            self.unforeseen.append(f"jobrunner {words}: {code}, {err.getvalue()[-_LONGEST:].strip()}")

    def _get(self, path: str, task: str) -> None:
        filled = path.replace("{task}", task).replace("{queue:path}", "t").replace("{pipeline}", "parts")
        filled = filled.replace("{operation}", "1")
        answer = self._browser.get(filled)
        status = answer.status_code
        self.answers[f"status {status}"] += 1
        if status in (502, 503):
            self.refused[path] += 1
        elif status not in (200, 404):
            self.unforeseen.append(f"{filled}: {status}, {answer.text[-_LONGEST:] if status == 400 else ''}")
