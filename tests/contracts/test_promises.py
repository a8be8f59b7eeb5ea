"""Each sentence of the pages that promise is listed in `tests/contracts/promises/` with the tests that attack it.

A file there is the list for one page, or for one section of it: a sentence as a quotation, below it
`- tests/…py::test_…` or `- python -m tests.reliability ROW` for each attack, or `- explains` for a sentence that
promises nothing, such as advice. A row of a table counts as a sentence; headings, code blocks and generated figures do
not. A sentence that is new or changed fails here until its entry names what attacks it.
"""

import ast
import re
import textwrap
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "tests" / "reliability" / "rows"
PAGES = ("durability", "reliability", "security")
"""The pages of which every sentence is listed."""
ROW = "python -m tests.reliability "
LISTS = sorted((Path(__file__).parent / "promises").glob("*.md"))
_NOT_PROSE = (
    r"^```.*?^```$",
    r"<!-- [a-z]+ -->\n.*?<!-- end -->",
    r"<details.*?</details>",
    r"<!--.*?-->",
    r"^#[^\n]*$",
    r"^!\[[^\n]*$",
    r"^\|[^\n]*\n\|[-:| ]+\|$",
)
"""Code, generated figures, folded tables, comments, headings, images, and the first two lines of tables."""
_BEGIN = re.compile(r"^(?=[-*] |\d+\. |\|)", re.MULTILINE)
"""Where an item of a list or a row of a table begins."""
_END = re.compile(r"(?<=[.?!])(\s+)(?=[A-Z`“(\[])")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@dataclass
class Listed:
    """The list for one page, from `tests/contracts/promises/`."""

    page: str
    section: str
    attacks: dict[str, list[str]] = field(default_factory=dict)
    """The entries below each sentence."""


def sentences(text: str) -> list[tuple[int, str]]:
    """The sentences of a page without links and bold type, each with the line in which it begins."""
    text = text.replace("**", "")
    for pattern in _NOT_PROSE:
        text = re.sub(pattern, lambda found: "\n" * found[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    found, line = [], 1
    for block in re.split(r"(\n\s*\n)", text):
        for item in _BEGIN.split(block):
            for piece in [item] if item.startswith("|") else _END.split(item):
                flat = " ".join(re.sub(r"^([-*]|\d+\.) ", "", _LINK.sub(r"\1", piece)).split())
                if flat:
                    found.append((line, flat))
                line += piece.count("\n")
    return found


def page_of(made: Listed) -> str:
    """The text of the page or section of a list, with the line numbers of the page."""
    text = (ROOT / made.page).read_text("utf-8")
    if not made.section:
        return text
    before, title, after = text.partition(f"\n## {made.section}\n")
    assert title, f"{made.page} has no section {made.section!r}: correct the first line of its list"
    return "\n" * (before + title).count("\n") + after.partition("\n## ")[0]


def listed(text: str) -> Listed:
    """A list from its text."""
    title = re.match(r'# (docs/\S+\.md)(?:, section "(.+)")?\n', text)
    assert title, 'the first line names the page: # docs/page.md, or # docs/page.md, section "Title"'
    made, sentence = Listed(title[1], title[2] or ""), ""
    for paragraph in re.split(r"\n\s*\n", text[title.end() :].strip()):
        if paragraph.startswith(">"):
            sentence = " ".join(re.sub(r"^> ?", "", paragraph, flags=re.MULTILINE).split())
            assert sentence not in made.attacks, f"{made.page}: listed twice: {sentence}"
            made.attacks[sentence] = []
        elif paragraph.startswith("- ") and sentence:
            made.attacks[sentence] += [line[2:] for line in paragraph.splitlines()]
    return made


def entry(sentence: str, *attacks: str) -> str:
    """The entry for a sentence, as a list has it."""
    quoted = textwrap.fill(sentence, 118, break_long_words=False, break_on_hyphens=False)
    return textwrap.indent(quoted, "> ") + "\n\n" + "".join(f"- {one}\n" for one in attacks)


@cache
def known_tests(path: str) -> frozenset[str]:
    """The tests of a file."""
    if not (ROOT / path).is_file():
        return frozenset()
    body = ast.parse((ROOT / path).read_text("utf-8")).body
    inner = [one for node in body if isinstance(node, ast.ClassDef) for one in node.body]
    return frozenset(one.name for one in [*body, *inner] if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))


@cache
def rows() -> frozenset[str]:
    """The names of the rows of the reliability table."""
    found = [re.findall(r'@scenario\(\s*"(\w+)"', path.read_text("utf-8")) for path in ROWS.glob("*.py")]
    return frozenset(name for names in found for name in names)


def missing(attack: str) -> str:
    """The problem of an entry; empty when it names a test or a row that exists, or explains."""
    if re.fullmatch(r"explains(: .+)?", attack):
        return ""
    if attack.startswith(ROW):
        return "" if attack.removeprefix(ROW) in rows() else "there is no such row"
    path, _, name = attack.partition("::")
    if not path.startswith("tests/") or not name.startswith("test_"):
        return f"write tests/…py::test_…, {ROW}…, or explains"
    return "" if name in known_tests(path) else "there is no such test"


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_sentence_of_the_page_is_attacked_or_promises_nothing(path: Path) -> None:
    made = listed(path.read_text("utf-8"))
    found = sentences(page_of(made))

    new = [f"{made.page}:{line}\n{entry(one, 'tests/…py::test_…')}" for line, one in found if one not in made.attacks]
    gone = sorted(made.attacks.keys() - {one for _, one in found})
    where = path.relative_to(ROOT)
    if new:
        new.insert(0, f"add to {where}, with the tests that attack it, or `- explains`:")
    if gone:
        gone.insert(0, f"change or remove in {where} what {made.page} does not say any more:")
    assert not new + gone, "\n".join([*new, *gone])


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_attack_that_is_listed_exists(path: Path) -> None:
    made = listed(path.read_text("utf-8"))

    wrong = [
        f"{said}\n  {attack}: {problem}"
        for said, attacks in made.attacks.items()
        for attack in attacks or ["nothing"]
        if (problem := missing(attack))
    ]
    assert not wrong, "\n".join([f"correct these entries of {path.relative_to(ROOT)}:", *wrong])


def test_pages_that_promise_have_their_lists() -> None:
    made = [listed(path.read_text("utf-8")) for path in LISTS]

    assert {one.page for one in made if not one.section} == {f"docs/{name}.md" for name in PAGES}


def test_sentences_are_found_with_their_lines() -> None:
    page = """# Title

**One.** Two [three
four](x.md#y), five.
Six: `a.b` seven.

```
No. Nothing.
```

- **a**: b
  c. D
- e

| a | b |
|---|---|
| c. D | e |
<!-- figures -->
| x |
<!-- end -->
<details markdown="1"><summary>No.</summary>

No.

</details>
![no](no.svg)

End.
"""
    assert sentences(page) == [
        (3, "One."), (3, "Two three four, five."), (5, "Six: `a.b` seven."), (11, "a: b c."), (12, "D"), (13, "e"),
        (17, "| c. D | e |"), (28, "End."),
    ]  # fmt: skip


def test_an_entry_is_read_as_it_was_written() -> None:
    said = "A sentence with `code` | that is folded, " + "since it is long, " * 10

    made = listed("# docs/page.md, section \"S\"\n\n" + entry(said.strip(), "explains: advice") + "\n" + entry("b"))
    assert (made.page, made.section) == ("docs/page.md", "S")
    assert made.attacks == {said.strip(): ["explains: advice"], "b": []}


@pytest.mark.parametrize(
    "attack", ["tests/contracts/test_promises.py::test_no", "tests/no.py::test_x", ROW + "R0",
               "explain", "nothing"],
)  # fmt: skip
def test_an_entry_that_names_nothing_is_found(attack: str) -> None:
    assert missing(attack)
    assert not missing("tests/contracts/test_promises.py::test_an_entry_that_names_nothing_is_found")
    assert not missing("python -m tests.reliability R1")
