"""Tests wait for facts: a sleep in `tests/` is one of four kinds."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
_OF_A_JOB = ("run", "act")
_FOR_EVER_S = 30


def _sleeps(tree: ast.AST, inside: tuple[ast.AST, ...] = ()) -> Iterator[tuple[ast.Call, tuple[ast.AST, ...]]]:
    """Each call of time.sleep or asyncio.sleep with the statements around it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("sleep", "time.sleep", "asyncio.sleep"):
            yield node, inside
        yield from _sleeps(node, (*inside, node))


def _is_allowed(call: ast.Call, inside: tuple[ast.AST, ...]) -> bool:
    """A step of the event loop, work that is to be cut short, a pause between two readings of a fact, or a job."""
    lasts = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
    if lasts == 0 or (lasts is not None and lasts >= _FOR_EVER_S) or any(isinstance(one, ast.While) for one in inside):
        return True
    functions = [one for one in inside if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    is_decorated = any(ast.unparse(name).partition("(")[0] == "job" or ".s" in ast.unparse(name)
                       for one in functions for name in one.decorator_list)  # fmt: skip
    return is_decorated or any(one.name in _OF_A_JOB for one in functions)


def test_a_sleep_is_a_poll_a_job_or_says_why() -> None:
    """Any other sleep carries a comment in its line: the fault that it makes, or the span that is measured."""
    unexplained = []
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text("utf-8")
        lines = text.splitlines()
        for call, inside in _sleeps(ast.parse(text)) if "sleep(" in text else ():
            if not _is_allowed(call, inside) and "  # " not in lines[call.lineno - 1]:
                unexplained.append(f"{path.relative_to(TESTS)}:{call.lineno}: {lines[call.lineno - 1].strip()}")

    assert not unexplained, "wait for a fact (tests/support/waiting.py), or say why time must pass"
