"""Writes the figures of full runs into docs/reliability.md: ``python -m tests.reliability.document FILE.json …``.

A file is what ``python -m tests.reliability ROW … --full --json FILE.json`` has written; of a row that is in several,
the last one counts.
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
_LOST = "acknowledged tasks lost"
_LONGEST_CELL = 200

Played = dict[str, Any]


def main() -> int:
    """Takes the place of the figures that are there."""
    played: dict[str, Played] = {}
    for name in sys.argv[1:]:
        played |= json.loads(Path(name).read_text("utf-8"))
    text = PAGE.read_text("utf-8")
    PAGE.write_text(_BETWEEN.sub(lambda found: found[1] + tables(played) + found[2], text), "utf-8")
    missing = [row for row in SCENARIOS if row not in played]
    print(f"{len(played)} rows written" + (f"; not played: {', '.join(missing)}" if missing else ""))
    return 0


def tables(played: dict[str, Played]) -> str:
    """A line for each row that was played, and behind it every figure."""
    rows = [(one, played[row]) for row, one in SCENARIOS.items() if row in played]
    lines = ["| row | what happens | size | lost | checks that hold | minutes |", "|---|---|---|---|---|---|"]
    lines += [_line(one, result) for one, result in rows]
    return "\n".join([*lines, "", *(_details(one, result) for one, result in rows)])


def _line(one: Scenario, result: Played) -> str:
    checks = result["checks"]
    lost = next((str(value) for name, value, *_ in checks if name == _LOST), "–")
    held = sum(holds for *_, holds in checks)
    minutes = f"{result['seconds'] / 60:.1f}"
    cells = (one.row, one.title, _short(words(result["sizes"])), lost, f"{held} of {len(checks)}", minutes)
    return "| " + " | ".join(cells) + " |"


def _details(one: Scenario, result: Played) -> str:
    summary = f"<summary>{one.row}: {escape(one.promise)}</summary>"
    lines = [f'<details markdown="1">{summary}', "", "| | found | bound |", "|---|---|---|"]
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
