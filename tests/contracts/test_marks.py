"""Modules are passed over that do not name the mark that -m asks for, nor the conftest.py beside them, so no mark may
come from elsewhere."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MARKS = ("spark", "processes", "reliability", "topology", "browser")
OF_THEIR_FOLDERS = ("spark/conftest.py", "browser/conftest.py", "unit/spark/lake/conftest.py")


@pytest.mark.parametrize("mark", MARKS)
def test_no_mark_comes_from_another_module(mark):
    places = [
        str(path.relative_to(TESTS))
        for path in sorted(TESTS.rglob("*.py"))
        if not path.name.startswith("test_") and f"mark.{mark}" in path.read_text("utf-8")
    ]
    assert [place for place in places if place not in OF_THEIR_FOLDERS] == []
