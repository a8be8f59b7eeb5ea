"""docs/contributing.md names paths that exist, and every package has a row."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "contributing.md").read_text("utf-8")
PLACES = {
    ".ci", ".mkdocs", "CHANGELOG.md", "benchmarks", "docs", "jobrunner", "jobs_example", "pyproject.toml", "tests",
}  # fmt: skip
NAMED = sorted(
    {
        path
        for words in re.findall(r"`([^`\n]+)`", PAGE)
        for path in words.split()
        if path.partition("/")[0] in PLACES and ("/" in path or "." in path) and not path.startswith("jobrunner.")
    }
)


def test_the_page_names_paths() -> None:
    assert {"jobrunner/broker/calls/queues.py", "tests/lua/", ".ci/fast"} <= set(NAMED)


@pytest.mark.parametrize("path", NAMED)
def test_each_path_on_the_page_exists(path: str) -> None:
    assert (ROOT / path).exists(), f"docs/contributing.md names {path}: write where it is now"


def test_every_package_has_a_row() -> None:
    packages = [path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "jobrunner").glob("*/__init__.py")]
    missing = [path for path in sorted(packages) if f"`{path}/`" not in PAGE]
    assert not missing, f"docs/contributing.md has no row for {missing}: say in one line what they hold"
