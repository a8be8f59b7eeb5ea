"""Programs beside the package import names that it has: mypy reads `jobrunner` and `jobs_example` only."""

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", ".mkdocs", "tests")
PROGRAMS = sorted(str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def missing(source: str) -> list[str]:
    """`module.name` of each name that the source imports from jobrunner and that is not there."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "jobrunner":
            try:
                module = importlib.import_module(node.module)
            except ModuleNotFoundError:
                found.append(node.module)
                continue
            for one in node.names:
                name = f"{node.module}.{one.name}"
                if not hasattr(module, one.name) and not (
                    hasattr(module, "__path__") and importlib.util.find_spec(name)
                ):
                    found.append(name)
    return found


def test_every_name_that_is_imported_from_the_package_is_there() -> None:
    wrong = {path: names for path in PROGRAMS if (names := missing((ROOT / path).read_text("utf-8")))}
    assert not wrong, "renamed or moved in jobrunner/, not here"


@pytest.mark.parametrize("name", ["jobrunner.nowhere import x", "jobrunner.settings import NoSuchSettings"])
def test_a_name_that_is_gone_is_found(name: str) -> None:
    assert missing(f"from {name}") == [
        "jobrunner.nowhere" if "nowhere" in name else "jobrunner.settings.NoSuchSettings"
    ]
