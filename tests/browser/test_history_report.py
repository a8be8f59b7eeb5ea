"""The page of `jobrunner history report`: on a phone and a desk, light and dark."""

from pathlib import Path
from typing import Any

import pytest

from tests.browser.accessible import problems
from tests.browser.conftest import SIZES, THEMES


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pyspark")
    from jobrunner.spark.history.report_html import write_page
    from tests.support.history_report import report

    return write_page(report(hours=30), tmp_path_factory.mktemp("report") / "report.html")


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES)
def test_the_page_is_accessible_and_its_cards_fill_their_rows(look: Any, file: Path, size: str, theme: str) -> None:
    tab = look(size=size, theme=theme)
    tab.goto(file.as_uri())
    tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")

    assert problems(tab) == []
    tops = tab.evaluate("[...document.querySelectorAll('.facts > div')].map(one => one.offsetTop)")
    rows = {tops.count(top) for top in tops}
    assert rows == {2 if size == "phone" else 6}
