"""CHANGELOG.md has one section per release, newest first; its merge keeps both sides, which can bring old text back."""

import re
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
REMEDY = "take CHANGELOG.md of main again and add your lines below Unreleased, as a merge keeps the lines of both sides"


def sections() -> dict[str, str]:
    """The text of each release by its heading."""
    parts = re.split(r"^## (.+)$", CHANGELOG, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_releases_are_unreleased_and_then_those_with_a_date() -> None:
    headings = re.findall(r"^## (.+)$", CHANGELOG, flags=re.MULTILINE)
    assert headings[0] == "Unreleased", headings
    released = headings[1:]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", heading) for heading in released), headings
    versions = [tuple(int(number) for number in heading.split()[0].split(".")) for heading in released]
    assert versions == sorted(set(versions), reverse=True), headings


def test_the_newest_release_is_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    newest = next(heading for heading in sections() if heading != "Unreleased")
    assert newest.split()[0] == version


def test_every_subject_and_line_is_there_once() -> None:
    for release, text in sections().items():
        subjects = Counter(re.findall(r"^### (.+)$", text, flags=re.MULTILINE))
        assert not [subject for subject, times in subjects.items() if times > 1], f"{release}: {subjects}; {REMEDY}"
        kinds = {"Added", "Changed", "Fixed", "Removed", "Security", "Deprecated"} & set(subjects)
        assert not kinds, f"{release}: sort lines by subject, not by {sorted(kinds)}; {REMEDY}"
    lines = Counter(line for line in CHANGELOG.splitlines() if line.startswith("- "))
    assert not [line for line, times in lines.items() if times > 1], REMEDY


def test_lines_are_at_most_120_wide() -> None:
    assert not [line for line in CHANGELOG.splitlines() if len(line) > 120]
