"""`pyproject.toml` installs a light core; its extras and their licences are those of docs/start/install.md."""

import re
import tomllib
from pathlib import Path

import pytest

from jobrunner.formatting import DISTRIBUTION

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: lines for name, lines in PROJECT["optional-dependencies"].items() if name != "dev"}
PAGE = (ROOT / "docs/start/install.md").read_text()
NAMING = [
    path
    for folder in ("jobrunner", "jobs_example", "docs", ".mkdocs", ".ci", ".github", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".md", ".yml", ".yaml", ".toml", ".html", ".lua") or path.parent.name == ".ci"
    if path.is_file() and path != ROOT / "docs/start/install.md" and "__pycache__" not in path.parts
] + [ROOT / "README.md", ROOT / "pyproject.toml"]


def packages(lines: list[str]) -> set[str]:
    """The names of requirements, those of our own extras left out."""
    return {re.match(r"[\w.-]+", line)[0] for line in lines} - {DISTRIBUTION}  # type: ignore[index]


def rows(title: str) -> dict[str, str]:
    """The first column of the table under a title, and the whole row."""
    text = PAGE.split(title, 1)[1].split("\n## ", 1)[0]
    return {line.split("|")[1].strip().strip("`"): line for line in text.splitlines() if line.startswith("| ")}


def test_the_core_brings_no_server_no_spark_and_no_data() -> None:
    assert packages(PROJECT["dependencies"]) == {"click", "croniter", "msgspec", "redis", "structlog", "tzdata"}


def test_the_demo_needs_no_spark() -> None:
    assert "spark" not in " ".join(EXTRAS["demo"])


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_each_extra_has_its_row(extra: str) -> None:
    assert extra in rows("# Installation and extras")


@pytest.mark.parametrize(
    ("package", "extra"),
    sorted(
        [(package, "core") for package in packages(PROJECT["dependencies"])]
        + [(package, extra) for extra, lines in EXTRAS.items() for package in packages(lines)]
    ),
)
def test_each_package_is_listed_with_its_licence_and_its_extra(package: str, extra: str) -> None:
    row = rows("## Licences")[package]
    assert extra in row.rsplit("|", 2)[1], row


@pytest.mark.parametrize("page", [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"], ids=str)
def test_no_page_names_an_extra_that_does_not_exist(page: Path) -> None:
    named = re.findall(r"pip install [^\n`]*?(?:jobrunner|\.)\[([\w,-]+)\]", page.read_text())
    assert {extra for extras in named for extra in extras.split(",")} <= {*EXTRAS, "dev"}


def test_every_message_names_an_extra_that_exists() -> None:
    sources = [*(ROOT / "jobrunner").rglob("*.py"), *(ROOT / "jobs_example").rglob("*.py")]
    named = {extra for path in sources for extras in re.findall(r"install_command\('([\w,-]+)'\)", path.read_text())
             for extra in extras.split(",")}  # fmt: skip
    assert named
    assert named <= {*EXTRAS, "dev"}


def test_the_package_has_the_name_that_messages_say() -> None:
    assert PROJECT["name"] == DISTRIBUTION


def test_nothing_installs_the_package_of_another_project() -> None:
    """`jobrunner` on the package index is another project's, and no address of ours is public yet."""
    as_extra, as_name = re.compile(r"""(?<![\w./-])["']?jobrunner\["""), re.compile(
        r"""pip\d? install [^\n&;|]*?(?<![\w./-])["']?jobrunner(?![\w/-])"""
    )
    wrong = {}
    for path in NAMING:
        text = path.read_text("utf-8")
        found = as_extra.search(text) or as_name.search(text) or re.search(r"github\.com/jobrunner", text)
        if found:
            wrong[str(path.relative_to(ROOT))] = found[0]

    assert not wrong, f"write .[extra] or {DISTRIBUTION}[extra], and no address that is not ours"
