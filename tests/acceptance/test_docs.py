"""The examples of the documentation run unchanged, and print the output that they announce.

Each Python block of each page is run, in one process for a page, or has a mark on the line before it:

* ``<!-- fragment: why -->``: not run, because it needs what the page does not have;
* ``<!-- varies: why -->``: run, and what the page prints is not compared, as it differs from run to run.

Pages whose blocks are files that name themselves (``# tasks.py``) are copied out and run by other tests.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs"
ELSEWHERE = {  # copied out by
    "testing.md": "test_recipes.py",
    "recipes/django.md": "test_recipes.py",
    "recipes/fastapi.md": "test_recipes.py",
    "recipes/managed-servers.md": "test_managed_servers.py",
    "start/first-job.md": "test_readme.py",
    "start/tutorial.md": "test_tutorial.py",
}
BLOCK = re.compile(r"^(?:<!-- (fragment|varies): ([^\n]+) -->\n)?```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
QUIET = "import structlog; structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))\n"


def pages() -> list[str]:
    """Pages with Python blocks that are not run elsewhere."""
    found = sorted(str(path.relative_to(PAGES)) for path in PAGES.rglob("*.md"))
    return [page for page in found if page not in ELSEWHERE and blocks(page)]


def blocks(page: str) -> list[tuple[str, str, str]]:
    """(mark, why, code) of the fenced Python blocks of a page, in order."""
    return BLOCK.findall((PAGES / page).read_text("utf-8"))


def promised(code: str) -> list[str]:
    """The output that comments announce: after `print(…)` or `asyncio.run(…)`, or on lines of their own."""
    behind = r"^[ ]*(?:print|asyncio\.run)\(.*\)[ ]+# (.+)$"
    return [own or said for own, said in re.findall(rf"^# (.+)$|{behind}", code, re.MULTILINE)]


@pytest.mark.parametrize("page", pages())
def test_the_examples_of_a_page_print_what_they_promise(page: str, shell: Any) -> None:
    run = [(mark, code) for mark, _, code in blocks(page) if mark != "fragment"]
    code = "\n".join(code for _, code in run)
    said = subprocess.run(
        [sys.executable, shell.write("example.py", QUIET + code)],
        cwd=shell.folder,
        env=shell.environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert said.returncode == 0, said.stderr
    if all(mark != "varies" for mark, _ in run):
        assert said.stdout.splitlines() == promised(code)


def test_pages_that_are_run_elsewhere_are_there_and_consist_of_files() -> None:
    for page, by in ELSEWHERE.items():
        assert page in (ROOT / "tests" / "acceptance" / by).read_text("utf-8"), f"{by} does not run {page}"
        assert all(code.startswith("# ") for mark, _, code in blocks(page) if not mark), page


def test_no_python_block_is_written_so_that_it_is_neither_run_nor_marked() -> None:
    for path in PAGES.rglob("*.md"):
        fences = re.findall(r"^ *```py", path.read_text("utf-8"), re.MULTILINE)
        assert len(fences) == len(blocks(str(path.relative_to(PAGES)))), f"{path}: write ```python at the margin"


@pytest.mark.timeout(240)
def test_the_examples_have_no_type_errors(tmp_path: Path) -> None:
    """What a page writes is right for an editor, too: one gave an option that no signature had.

    Of the pages that consist of files, that on tests alone: the frameworks of the recipes have no types everywhere.
    """
    for page in pages():
        code = [code for mark, _, code in blocks(page) if mark != "fragment"]
        (tmp_path / f"page_{re.sub(r'[^a-z]', '_', page)}.py").write_text("\n".join(code), "utf-8")
    for _, _, code in blocks("testing.md"):
        if named := re.match(r"# (\w+\.py)\n", code):
            (tmp_path / named[1]).write_text(code, "utf-8")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--check-untyped-defs", "--ignore-missing-imports", "."],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )

    wrong_on_purpose = re.compile(r'page_jobs_md.*"times"')
    errors = [line for line in checked.stdout.splitlines() if "error:" in line and not wrong_on_purpose.search(line)]
    assert not errors, checked.stderr or "\n".join(errors)
    assert "checked" in checked.stdout, checked.stderr
