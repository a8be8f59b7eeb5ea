"""The examples on the empty pages of the dashboard run unchanged, copied as a newcomer would."""

import html
import re
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import Shell

pytestmark = pytest.mark.processes

TEMPLATES = Path(__file__).parents[2] / "jobrunner" / "web" / "templates"
EXAMPLE = re.compile(r'<pre data-example="([^"]+)">(.*?)</pre>', re.DOTALL)


def examples(page: str) -> list[tuple[str, str]]:
    """The examples of a page: a file, "python" or "terminal", and the text."""
    found = EXAMPLE.findall((TEMPLATES / page).read_text())
    return [(kind, html.unescape(text)) for kind, text in found]


@pytest.fixture
def project(shell: Shell) -> Shell:
    """A folder with the module of the overview."""
    (shell.folder / "myapp").mkdir()
    for name, text in examples("overview.html"):
        if name.endswith(".py"):
            shell.write(name, text)
    return shell


def in_terminal(project: Shell, text: str) -> list[Any]:
    """Runs the lines of a terminal; a worker ends when it has nothing to do."""
    lines = [line.removeprefix("$ jobrunner ").split() for line in text.splitlines()]
    return [project.run(*words, *(["--burst"] if words[0] == "work" else [])) for words in lines]


def test_every_example_says_what_it_is() -> None:
    for page in TEMPLATES.glob("*.html"):
        for text in re.findall(r"<pre>(.*?)</pre>", page.read_text(), re.DOTALL):
            assert "{{" in text or "{%" in text, f"{page.name} shows {text!r}: write <pre data-example=…>"


def test_the_first_job_of_the_overview_runs(project: Shell) -> None:
    (enqueued, worked) = in_terminal(project, dict(examples("overview.html"))["terminal"])

    assert (enqueued.code, enqueued.err) == (0, "")
    shown = project.run("tasks", "show", enqueued.out.strip(), "--json")
    assert (worked.code, shown.value["state"], shown.value["result"]) == (0, "succeeded", "Hello, Ada!"), worked.err


@pytest.mark.parametrize("page", ["queues.html", "workers.html"])
def test_commands_of_other_pages_run(page: str, project: Shell) -> None:
    (result,) = in_terminal(project, dict(examples(page))["terminal"])

    assert result.code == 0, result.err


@pytest.mark.parametrize("page", ["periodic.html", "flows.html", "history.html", "pipelines.html"])
def test_code_of_other_pages_runs(page: str, project: Shell) -> None:
    project.write("shown.py", dict(examples(page))["python"])

    result = project.run("work", "shown", "myapp.jobs", "--burst")

    assert result.code == 0, result.err
