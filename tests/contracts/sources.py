"""What the rules ask of the source files, read once per test process: parsing all of them takes seconds.

Tests that read many files carry `ONE_PROCESS`, so that one process parses them, not each.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "jobrunner"
ONE_PROCESS = pytest.mark.xdist_group("sources")


@dataclass(frozen=True)
class Source:
    """A module: its docstring, the names that it imports and those that it defines, at any depth."""

    docstring: str
    imports: tuple[str, ...]
    """`x` of each `import x`."""
    froms: tuple[tuple[str, tuple[str, ...]], ...]
    """`(module, names)` of each `from module import names`."""
    classes: tuple[str, ...]
    functions: tuple[tuple[str, str], ...]
    """`(name, docstring)` of each function and method."""

    @property
    def imported(self) -> set[str]:
        """Full names of what the module imports, and of the modules that it imports from."""
        names = {f"{module}.{name}" for module, names in self.froms for name in names}
        return {*self.imports, *(module for module, _ in self.froms), *names}


@cache
def source(path: Path) -> Source:
    """The facts of one file."""
    return parsed(path.read_text("utf-8"))


def parsed(text: str) -> Source:
    """The facts of a module with this text."""
    tree = ast.parse(text)
    imports, froms, classes, functions = [], [], [], []
    for node in _statements(tree.body):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            froms.append((node.module, tuple(alias.name for alias in node.names)))
        elif isinstance(node, ast.ClassDef):
            classes.append(node.name)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append((node.name, ast.get_docstring(node) or ""))
    return Source(ast.get_docstring(tree) or "", tuple(imports), tuple(froms), tuple(classes), tuple(functions))


def _statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Statements at any depth: `ast.walk` visits every expression, too, and takes five times as long."""
    for node in body:
        yield node
        for inner in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(node, inner, ()))


@cache
def package() -> dict[Path, Source]:
    """Every module of jobrunner, by its path from the root of the repository."""
    return {path.relative_to(ROOT): source(path) for path in sorted(PACKAGE.rglob("*.py"))}
