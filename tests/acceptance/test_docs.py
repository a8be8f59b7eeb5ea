"""The examples of the documentation run as they stand, and print what they say they print."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGES = Path(__file__).parents[2] / "docs"
RUNNABLE = ["dead-and-history.md", "flows.md", "limits.md", "pipelines.md", "queues.md", "tracing.md", "unique.md"]
QUIET = "import structlog; structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))\n"


def blocks(page: str) -> list[str]:
    """The fenced Python blocks of a page, in order."""
    text = (PAGES / page).read_text("utf-8")
    text = re.sub(r"^<!-- fragment: .+ -->\n```python\n.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert found, f"docs/{page} has no Python examples"
    return found


def promised(code: str) -> list[str]:
    """What the comments say is printed: behind `print(…)` or `asyncio.run(…)`, or on lines of their own."""
    behind = r"^[ ]*(?:print|asyncio\.run)\(.*\)[ ]+# (.+)$"
    return [own or said for own, said in re.findall(rf"^# (.+)$|{behind}", code, re.MULTILINE)]


@pytest.mark.parametrize("page", RUNNABLE)
def test_the_examples_of_a_page_print_what_they_promise(page: str, shell: Any) -> None:
    code = "\n".join(blocks(page))
    said = subprocess.run(
        [sys.executable, shell.write("example.py", QUIET + code)],
        cwd=shell.folder,
        env=shell.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines() == promised(code)
