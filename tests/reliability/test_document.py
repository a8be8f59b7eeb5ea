"""The page with the figures of full runs has every row, and writing new figures loses none of the others."""

import re

from tests.reliability.document import PAGE, with_figures
from tests.reliability.rows.every import SCENARIOS

_R9 = {
    "sizes": {"tasks": 7}, "seconds": 66, "figures": {"tasks": 7},
    "checks": [["acknowledged tasks lost", 0, "= 0", True], ["resets", "1|2", "≥ 59", False]],
}  # fmt: skip


def test_the_page_tells_of_every_row() -> None:
    page = PAGE.read_text("utf-8")

    assert [row for row in SCENARIOS if f"<summary>{row}: " not in page or f"| {row} | " not in page] == []


def test_the_page_is_as_it_would_be_written() -> None:
    page = PAGE.read_text("utf-8")

    assert with_figures(page, {}) == page


def test_ci_plays_the_short_sizes_by_the_command_that_the_page_names() -> None:
    commands = (PAGE.parents[1] / ".ci" / "run").read_text("utf-8").replace("'", '"')
    named = re.search(r"Every run of CI plays the short sizes \(`(pytest [^`]+)`\)", PAGE.read_text("utf-8"))

    assert named is not None
    assert f"\n{named[1]}\n" in commands


def test_a_row_that_was_played_again_takes_the_place_of_its_figures_and_no_others() -> None:
    page = PAGE.read_text("utf-8")

    written = with_figures(page, {"R9": _R9})

    assert "| 7 tasks | 0 | 1 of 2 | 1.1 |" in written
    assert "| resets | 1\\|2 **broken** | ≥ 59 |" in written
    kept = [line for line in written.splitlines() if line.startswith("| R") and not line.startswith("| R9 |")]
    assert kept == [line for line in page.splitlines() if line.startswith("| R") and not line.startswith("| R9 |")]
    assert written.count("<details") == page.count("<details")
    assert with_figures(written, {"R9": _R9}) == written
