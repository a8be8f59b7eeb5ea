"""start/tutorial.md, followed as a newcomer would, up to the deployment: files, commands and what they print."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.newcomer import ROOT, Block, Newcomer, blocks, with_commands

pytestmark = pytest.mark.processes

PAGE = (ROOT / "docs" / "start" / "tutorial.md").read_text("utf-8")
SKIPPED = r"\bvenv\b|^pip install|docker compose|git clone"
"""The tests run in an environment that has everything; tests.acceptance.first_hour types these, too."""


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    (tmp_path / "jobrunner").symlink_to(ROOT)
    one = Newcomer(tmp_path, with_commands(tmp_path), SKIPPED)
    yield one
    one.close()


@pytest.mark.timeout(300)
def test_every_block_of_the_tutorial_runs_and_prints_what_the_page_says(newcomer: Newcomer) -> None:
    for block in blocks(PAGE):
        newcomer.follow(block)

    assert [*newcomer.terminals] == ["jobrunner work --reload", "jobrunner dashboard"]
    assert all(process.poll() is None for process in newcomer.terminals.values())
    root = newcomer.link.partition("/login")[0]
    assert "bob-1" not in newcomer.open_page(f"{root}/dead")
    assert "report" in newcomer.open_page(f"{root}/periodic")
    assert {path.name for path in newcomer.folder.iterdir()} >= {"compose.yml", "Dockerfile", ".env", ".jobrunner"}


def test_an_output_that_the_page_only_claims_fails_the_test(newcomer: Newcomer) -> None:
    newcomer.follow(Block("sh", "echo 1 passed\n", 0))
    with pytest.raises(AssertionError, match="2 passed"):
        newcomer.follow(Block("text", "2 passed\n", 0))
    with pytest.raises(AssertionError, match="no-such-command"):
        newcomer.follow(Block("sh", "no-such-command\n", 0))


def test_the_image_is_that_of_the_page_on_deployment() -> None:
    images = [
        re.findall(r"^```dockerfile\n(?:# Dockerfile\n)?(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        for text in (PAGE, (ROOT / "docs" / "deploy" / "README.md").read_text("utf-8"))
    ]
    assert images[0] == images[1] != []
