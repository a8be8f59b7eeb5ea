"""Each sentence of docs/security.md, and of "Authentication and roles" in docs/dashboard.md, has an attack as its test.

A sentence that is new or changed fails here until `tests/security/sentences.py` says which test attacks it. In a table
each row counts as a sentence; code blocks and headings do not.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.security.sentences import DASHBOARD_NOTHING, DASHBOARD_TESTS, NOTHING_TO_ATTACK, TESTS

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def sentences(text: str) -> list[str]:
    """The sentences of a page, one line each."""
    found: list[str] = []
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n\s*\n", text):
        lines = [line.strip() for line in paragraph.strip().splitlines()]
        if not lines or lines[0].startswith("#"):
            continue
        if lines[0].startswith("|"):
            found += [" ".join(line.split()) for line in lines[2:]]
            continue
        flat = _LINK.sub(r"\1", " ".join(lines)).replace("**", "")
        found += [part.strip() for part in re.split(r"(?<=[.?!:])\s+(?=[A-Z`“(])", flat) if part.strip()]
    return found


def _matches(begin: str, sentence: str) -> bool:
    return sentence.startswith(begin)


def _section(page: str, title: str) -> str:
    """The text of a section with a heading of the second level."""
    return (ROOT / "docs" / page).read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("page_name", ["security", "dashboard"])
def test_every_sentence_of_the_page_is_attacked_by_a_test_or_says_why_not(page_name: str) -> None:
    if page_name == "security":
        begins, page = [*TESTS, *NOTHING_TO_ATTACK], sentences((ROOT / "docs" / "security.md").read_text())
    else:
        begins = [*DASHBOARD_TESTS, *DASHBOARD_NOTHING]
        page = sentences(_section("dashboard.md", "Authentication and roles"))

    unknown = [one for one in page if not any(_matches(begin, one) for begin in begins)]
    stale = [begin for begin in begins if not any(_matches(begin, one) for one in page)]
    twice = [one for one in page if sum(_matches(begin, one) for begin in begins) > 1]

    assert unknown == [], "sentences without a test: add them to tests/security/sentences.py"
    assert stale == [], "the page does not say this any more"
    assert twice == [], "more than one entry fits"


def test_every_test_that_is_named_is_there() -> None:
    missing = [
        f"{begin}: {test}"
        for begin, tests in [*TESTS.items(), *DASHBOARD_TESTS.items()]
        for test in tests
        if test.partition("::")[2] not in _functions(test.partition("::")[0])
    ]

    assert missing == []
    assert all(TESTS.values())
    assert all(DASHBOARD_TESTS.values())


@cache
def _functions(path: str) -> set[str]:
    file = ROOT / "tests" / path
    if not file.is_file():
        return set()
    tree = ast.parse(file.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def test_sentences_are_found_as_they_stand() -> None:
    page = "# Title\n\n**One.** Two [three](x.md#y): four\nfive. Six `a.b` seven.\n\n```\nno. Nothing.\n```\n\n"
    page += "| a | b |\n|---|---|\n| c. D | e |\n"

    assert sentences(page) == ["One.", "Two three: four five.", "Six `a.b` seven.", "| c. D | e |"]
