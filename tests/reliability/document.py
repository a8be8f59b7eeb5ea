"""Writes the figures of full runs into docs/reliability.md: ``python -m tests.reliability.document FILE.json …``.

``python -m tests.reliability ROW … --full --json FILE.json`` writes such a file. Of a row that is in several files the
last one counts; a row in none keeps its figures. Titles and promises are always those of the scenarios, so without a
file the command only renews these.
"""

import json
import re
import sys
from html import escape
from pathlib import Path
from typing import Any

from tests.reliability.__main__ import words
from tests.reliability.rows.every import SCENARIOS
from tests.reliability.scenario import Scenario

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
_BETWEEN = re.compile(r"(<!-- figures -->\n).*?(<!-- end -->)", re.DOTALL)
_LINE = re.compile(r"^\| (\w+) \|.*$", re.MULTILINE)
_DETAILS = re.compile(r"^<details[^>]*><summary>(\w+):.*?^</details>\n", re.MULTILINE | re.DOTALL)
_LOST = "acknowledged tasks lost"
_LONGEST_CELL = 200
_HEAD = "| row | what happens | size | lost | checks that hold | minutes |"

Played = dict[str, Any]


def main() -> int:
    """Rewrites the page. Exit code: 0."""
    played: dict[str, Played] = {}
    for name in sys.argv[1:]:
        played |= json.loads(Path(name).read_text("utf-8"))
    PAGE.write_text(with_figures(PAGE.read_text("utf-8"), played), "utf-8")
    print(f"{len(played)} rows written")
    return 0


def with_figures(page: str, played: dict[str, Played]) -> str:
    """The page with a line for each row, and after it every figure."""
    found = _BETWEEN.search(page)
    if found is None:
        raise SystemExit(f"{PAGE} has no figures between <!-- figures --> and <!-- end -->")
    table = found[0].partition("<details")[0]
    lines = {one[1]: _with_title(one[0], one[1]) for one in _LINE.finditer(table) if one[1] in SCENARIOS}
    details = {one[1]: _with_promise(one[0], one[1]) for one in _DETAILS.finditer(found[0]) if one[1] in SCENARIOS}
    for row, result in played.items():
        lines[row], details[row] = _line(SCENARIOS[row], result), _details(SCENARIOS[row], result)
    rows = sorted(lines, key=_order)
    table = "\n".join([_HEAD, "|---|---|---|---|---|---|", *(lines[row] for row in rows)])
    text = "\n".join([table, "", *(details[row] for row in rows)])
    return page[: found.start()] + found[1] + text + found[2] + page[found.end() :]


def _with_title(line: str, row: str) -> str:
    """The line of a row that was not played again, with the title that the scenario has now."""
    _, _, rest = line.removeprefix(f"| {row} | ").partition(" | ")
    return f"| {row} | {SCENARIOS[row].title} | {rest}"


def _with_promise(details: str, row: str) -> str:
    """The figures of a row that was not played again, under the promise that the scenario has now."""
    _, _, figures = details.partition("</summary>")
    return f'<details markdown="1">{_summary(SCENARIOS[row])}{figures}'


def _summary(one: Scenario) -> str:
    return f"<summary>{one.row}: {escape(one.promise)}</summary>"


def _order(row: str) -> tuple[bool, int, str]:
    number = row[1:].rstrip("sw")
    return (not number.isdigit(), int(number) if number.isdigit() else 0, row)


def _line(one: Scenario, result: Played) -> str:
    checks = result["checks"]
    lost = next((str(value) for name, value, *_ in checks if name == _LOST), "–")
    held = sum(holds for *_, holds in checks)
    minutes = f"{result['seconds'] / 60:.1f}"
    cells = (one.row, one.title, _short(words(result["sizes"])), lost, f"{held} of {len(checks)}", minutes)
    return "| " + " | ".join(cells) + " |"


def _details(one: Scenario, result: Played) -> str:
    lines = [f'<details markdown="1">{_summary(one)}', "", "| | found | bound |", "|---|---|---|"]
    for name, value, bound, holds in result["checks"]:
        broken = "" if holds else " **broken**"
        lines.append(f"| {_cell(name)} | {_cell(value)}{broken} | {_cell(bound)} |")
    lines += [f"| {_cell(name)} | {_cell(value)} | |" for name, value in result["figures"].items()]
    return "\n".join([*lines, "", "</details>", ""])


def _cell(value: object) -> str:
    return _short(str(value).replace("|", "\\|").replace("\n", " "))


def _short(text: str) -> str:
    text = escape(text, quote=False)
    return text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + "…"


if __name__ == "__main__":
    sys.exit(main())
