"""README and the landing page: what a newcomer sees first is there, is light, and leads somewhere."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PICTURE_MAX = 200_000

INDEX = (ROOT / "docs" / "index.md").read_text("utf-8")
NAVIGATION = (ROOT / ".mkdocs" / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]


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


def test_the_landing_page_has_code_a_picture_and_three_ways_in_and_no_table() -> None:
    assert "```python\n" in INDEX
    assert "](images/dashboard-overview.png)" in INDEX
    assert re.findall(r"^-   \*\*(.+)\*\*$", INDEX, re.MULTILINE) == ["Learn", "How to …", "Look up"]
    assert not re.search(r"^\|", INDEX, re.MULTILINE)


def test_how_tos_are_in_groups_and_none_is_an_explanation() -> None:
    how_to = NAVIGATION.partition("  - How-to:\n")[2].partition("\n  - Migrate:")[0]
    groups = re.split(r"^ {6}- (.+):$", how_to, flags=re.MULTILINE)
    pages = {name: re.findall(r"- (\S+\.md)", text) for name, text in zip(groups[1::2], groups[2::2], strict=True)}

    assert groups[0] == ""
    assert 4 <= len(pages) <= 6
    assert all(2 < len(listed) < 9 for listed in pages.values()), pages
    assert not {"reliability.md", "soak.md"} & {page for listed in pages.values() for page in listed}


def test_every_page_begins_with_a_title_of_standard_words() -> None:
    odd = re.compile(r"Coming from|as queues|Words|What died|What is proved")
    for path in sorted((ROOT / "docs").rglob("*.md")):
        title = re.search(r"^# (.+)$", path.read_text("utf-8"), re.MULTILINE)
        assert title, f"{path}: begin with a title"
        assert not odd.search(title[1]), f"{path}: {title[1]}"


def test_the_files_that_a_forge_shows_are_there_and_link_to_files() -> None:
    for name in ("CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md"):
        page = ROOT / ".github" / name
        links = re.findall(r"\]\(([^)#:\s]+)\)", page.read_text("utf-8"))
        assert not [link for link in links if not (page.parent / link).is_file()], name


def test_every_migration_page_has_a_module_side_by_side_and_says_what_to_do_without_an_equivalent() -> None:
    pages = {path.stem: path.read_text("utf-8") for path in (ROOT / "docs" / "migrating").glob("*.md")}
    of_python = {"arq", "celery", "dramatiq", "huey", "rq", "saq"}
    assert {*pages} == of_python | {"bullmq", "mosquito", "oban", "river", "sidekiq"}
    language = "python|crystal|elixir|go|ruby|typescript"
    for name, text in pages.items():
        module = text.partition("\n## A module side by side\n")[2].partition("\n## ")[0]
        theirs, ours = re.findall(rf"^```(?:{language})\n(.*?)^```$", module, re.DOTALL | re.MULTILINE)
        assert "jobrunner" not in theirs, name
        assert ours.count("\n") > 20, name
        rows = text.partition("\n## No equivalent, do this instead\n")[2].partition("\n## ")[0]
        assert rows.count("\n| ") >= 6, name


def test_an_hour_of_another_systems_schedule_has_its_minute() -> None:
    """Celery, arq and Huey fire each minute of an hour that is named alone."""
    for path in (ROOT / "docs" / "migrating").glob("*.md"):
        lines = [line for line in path.read_text("utf-8").splitlines() if re.search(r"cron(tab)?\(.*hour=", line)]
        assert not [line for line in lines if "minute" not in line], path.name


def test_every_migration_page_is_in_the_navigation_readme_the_landing_page_and_the_comparison() -> None:
    compare = (ROOT / "docs" / "compare.md").read_text("utf-8")
    for path in (ROOT / "docs" / "migrating").glob("*.md"):
        page = f"migrating/{path.name}"
        assert all(page in text for text in (NAVIGATION, README, INDEX, compare)), page
