"""Prints the layout of the package in numbers: ``python -m tests.contracts.house [--no-spark]``.

Files, modules with a single importer, long classes and files, constructors with many arguments, attributes that are
first assigned outside of `__init__`, class names with several meanings; and, measured with a profiler, the files that
an enqueue, a task in a worker, a periodic tick, an item of a Spark station and an action of the dashboard run through.
"""

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.contracts.call_traces import TARGETS, trips
from tests.contracts.sources import PACKAGE
from tests.contracts.test_circles import graph_of

SMALL, LONG_CLASS, LONG_FILE, MANY_ARGUMENTS = 60, 200, 300, 6


def _classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield path.relative_to(PACKAGE), node


def _constructor(node: ast.ClassDef) -> ast.FunctionDef | None:
    return next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)


def _set_in(node: ast.AST) -> set[str]:
    """The attributes of self that this code assigns."""
    return {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) and isinstance(one.value, ast.Name)
        and one.value.id == "self"
    }  # fmt: skip


def _born(node: ast.ClassDef, others: dict[str, ast.ClassDef]) -> set[str]:
    """The attributes that a new object has, also by the constructors of its bases. No two classes have one name."""
    made = _constructor(node)
    born = set() if made is None else _set_in(made)
    for one in node.body:
        targets = one.targets if isinstance(one, ast.Assign) else [one.target] if isinstance(one, ast.AnnAssign) else []
        born |= {name.id for name in targets if isinstance(name, ast.Name)}
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    names = [base.id for base in bases if isinstance(base, ast.Name) and base.id in others]
    return born.union(*(_born(others[name], others) for name in names))


def _assigned_late(node: ast.ClassDef, others: dict[str, ast.ClassDef]) -> set[str]:
    return set() if _constructor(node) is None else _set_in(node) - _born(node, others)


@cache  # seconds, too much for the collection of tests in each process
def figures() -> dict[str, object]:
    """Each measure by its title; lists name the modules and classes above the bound."""
    lines = {path: len(path.read_text("utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    importers = defaultdict(set)
    for name, imported in graph_of("jobrunner").items():
        for one in imported:
            importers[one].add(name)
    alone = [
        name
        for name, by in importers.items()
        if len(by) == 1 and lines.get(PACKAGE.parent / (name.replace(".", "/") + ".py"), SMALL + 1) <= SMALL
    ]
    classes = list(_classes())
    names = Counter(node.name.lstrip("_") for _, node in classes)
    by_name = {node.name: node for _, node in classes}
    made = [(node, _constructor(node)) for _, node in classes]
    arguments = {
        node.name: len(one.args.args) + len(one.args.kwonlyargs) - 1 for node, one in made if one is not None
    }  # fmt: skip
    lengths = {node.name: (node.end_lineno or 0) - node.lineno + 1 for _, node in classes}
    return {
        "Python files": len(lines),
        "Lua files": len(list((PACKAGE / "broker" / "lua").rglob("*.lua"))),
        f"modules of at most {SMALL} lines with one importer": len(alone),
        f"files above {LONG_FILE} lines": sorted(
            f"{path.relative_to(PACKAGE)} {count}" for path, count in lines.items() if count > LONG_FILE
        ),
        f"classes above {LONG_CLASS} lines": {name: size for name, size in lengths.items() if size > LONG_CLASS},
        f"constructors above {MANY_ARGUMENTS} arguments": {
            name: count for name, count in arguments.items() if count > MANY_ARGUMENTS
        },
        "classes with attributes first assigned outside __init__": {
            node.name: len(late) for _, node in classes if (late := _assigned_late(node, by_name))
        },
        "class names with several meanings": [name for name, count in names.items() if count > 1],
    }


if __name__ == "__main__":
    for measure, value in figures().items():
        count = value if isinstance(value, int) else len(value)  # type: ignore[arg-type]
        print(f"{count:5}  {measure}" + ("" if isinstance(value, int) or not value else f": {value}"))
    for action, files in trips(spark="--no-spark" not in sys.argv).items():
        print(f"{len(files):5}  files to follow {action} (target {TARGETS[action]}): {files}")
