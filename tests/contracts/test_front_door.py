"""README and the landing page: what a newcomer sees first is there, is light, and leads somewhere."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PICTURE_MAX = 200_000


def command(marker: str) -> str:
    """The commands between a marker and its end."""
    found = re.findall(rf"<!-- {marker} -->\n```sh\n(.*?)```\n<!-- end -->", README, re.DOTALL)
    assert len(found) == 1, f"README has one block <!-- {marker} --> … <!-- end -->"
    return str(found[0])


def test_the_first_screen_installs_the_light_part_first_and_has_a_picture() -> None:
    screen = README.partition("## Why jobrunner")[0]
    pips = re.findall(r"^(?:.*?)(pip install .*)$", screen, re.MULTILINE)

    assert pips[0] == 'pip install ".[embedded,web]"'
    assert len(screen.splitlines()) < 45
    picture = re.search(r"!\[[^\]]{20,}\]\(([^)]+\.png)\)", screen)
    assert picture, "a picture of the dashboard, with a text in its place"
    assert 10_000 < (ROOT / picture[1]).stat().st_size < PICTURE_MAX


def test_the_commands_that_others_read_are_between_their_markers() -> None:
    assert "venv" in command("install")
    assert command("demo") == 'pip install -e ".[demo]" && jobrunner demo\n'
    assert command("test") == 'pip install -e ".[dev]" && pytest\n'


def test_readme_says_why_in_eight_lines() -> None:
    why = README.partition("## Why jobrunner\n")[2].partition("\n## ")[0]
    assert len(re.findall(r"^- \*\*", why, re.MULTILINE)) == 8
    assert not [line for line in why.splitlines() if line.startswith("  ")], "a line each"
