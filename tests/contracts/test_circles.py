"""No circle of imports in any tree, imports in functions and for types counted; import-linter knows one tree only."""

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.contracts.sources import ONE_PROCESS, ROOT, source

pytestmark = ONE_PROCESS


def _modules(top: str) -> dict[str, Path]:
    found = {}
    for path in (ROOT / top).rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    module = source(path)
    yield from module.imports
    for origin, names in module.froms:
        for name in names:
            inner = f"{origin}.{name}"
            yield inner if inner in known else origin


def graph_of(top: str) -> dict[str, set[str]]:
    """Each module of a tree with those of the tree that it imports."""
    known = _modules(top)
    return {name: {one for one in _imported(path, known) if one in known} - {name} for name, path in known.items()}


@pytest.mark.parametrize("top", ["jobrunner", "jobs_example", "benchmarks", "tests"])
def test_no_modules_import_each_other(top: str) -> None:
    graph = graph_of(top)
    assert len(graph) > 30
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"these import each other: {' → '.join(error.args[1])}")
