"""The mutants of a Lua file: small changes of its text, each of which some test should notice.

Left out are changes that any run of the line notices, such as an unknown command, because they would only raise the
score; and the two lines of a script that name its keys and arguments, which tests/contracts compares with the header.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tests.mutation.lua_syntax import Syntax, Token, parse

_OPERATORS = {
    "==": "~=", "~=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "+": "-", "-": "+", "*": "/", "/": "*",
    "%": "*", "and": "or", "or": "and",
}  # fmt: skip
_NAMES = {
    "true": "false", "false": "true", "math.min": "math.max", "math.max": "math.min", "math.floor": "math.ceil",
    "math.ceil": "math.floor", "math.huge": "0",
}  # fmt: skip
_WORDS_OF_COMMANDS = {
    "ZRANGE": "ZREVRANGE", "ZREVRANGE": "ZRANGE", "ZRANK": "ZREVRANK", "SPOP": "SRANDMEMBER", "RPUSH": "LPUSH",
    "LPOP": "RPOP", "NX": "XX", "PX": "EX", "-inf": "+inf", "+inf": "-inf", "GT": "LT", "INCRBY": "DECRBY",
}  # fmt: skip
_COMMAND_OR_OPTION = re.compile(r"[A-Z]{2,}$")
_SIGNATURE = re.compile(r"local [\w, ]+ = unpack\((KEYS|ARGV)\b")
_CALLS_A_COMMAND = re.compile(r"redis\.p?call\($|call_sliced\($")


@dataclass(frozen=True)
class Mutant:
    """One change of a file. `statement` is the number, within the file, of the innermost statement that has it."""

    file: str
    text: str
    start: int
    end: int
    becomes: str
    statement: int

    @property
    def line(self) -> int:
        """The line on which it begins, from 1."""
        return self.text.count("\n", 0, self.start) + 1

    @cached_property
    def mutated(self) -> str:
        """The whole file with the change; it keeps the number of lines."""
        return self.text[: self.start] + self.becomes + self.text[self.end :]

    @property
    def key(self) -> str:
        """The same in every run as long as its line is the same, whatever becomes of the other lines of the file."""
        lines = [line.strip() for line in self.text.splitlines()[: self.line]]
        words = (self.file, self.before, self.after, str(lines.count(self.before)))
        return hashlib.sha1("\n".join(words).encode(), usedforsecurity=False).hexdigest()[:8]

    @property
    def before(self) -> str:
        """The line without the change, stripped."""
        return self.text.splitlines()[self.line - 1].strip()

    @property
    def after(self) -> str:
        """The line with the change, stripped."""
        return self.mutated.splitlines()[self.line - 1].strip() or "(nothing)"

    @property
    def place(self) -> tuple[str, str, str]:
        """Its file and its line before and after, by which survivors are judged."""
        return self.file, self.before, self.after


def mutants_of(file: str, text: str) -> list[Mutant]:
    """All mutants of a file of lua/, in order of the text."""
    syntax = parse(text)
    found = dict[tuple[int, int, str], None]()
    found |= dict.fromkeys((*_of_statements(syntax), *_of_expressions(syntax)))
    found |= dict.fromkeys((*_of_operators(syntax), *_of_words(text, syntax)))
    covered = {text.count("\n", 0, start) for start, _, _ in found}
    for start, end, becomes in _of_values(syntax):
        if text.count("\n", 0, start) not in covered:
            found.setdefault((start, end, becomes))
    signature = {number for number, line in enumerate(text.splitlines()[:2]) if _SIGNATURE.match(line)}
    return [
        Mutant(file, text, start, end, _same_lines(text[start:end], becomes), statement_at(syntax, start, end))
        for start, end, becomes in sorted(found)
        if text.count("\n", 0, start) not in signature
    ]


def statement_at(syntax: Syntax, start: int, end: int) -> int:
    """The number of the innermost statement that contains a part of the text; -1 if there is none."""
    inside = [n for n, one in enumerate(syntax.statements) if one.start <= start and end <= one.end]
    return inside[-1] if inside else -1


def _same_lines(before: str, after: str) -> str:
    # Not empty ones: to the linker these would be the end of the function.
    return after + "\n " * (before.count("\n") - after.count("\n"))


def _of_statements(syntax: Syntax) -> Iterator[tuple[int, int, str]]:
    for one in syntax.statements:
        # A declaration that is left out is an unknown name, which any run notices; a condition is made false below.
        if one.kind in ("call", "assign", "for", "break"):
            yield one.start, one.end, "do end"


def _of_expressions(syntax: Syntax) -> Iterator[tuple[int, int, str]]:
    for one in syntax.expressions:
        if one.kind == "condition":
            yield one.start, one.end, "true"
            yield one.start, one.end, "false"
        elif one.kind == "returned":
            yield one.start, one.end, "nil"


def _of_values(syntax: Syntax) -> Iterator[tuple[int, int, str]]:
    """For lines that have nothing else to change."""
    for one in syntax.expressions:
        if one.kind == "values":
            yield one.start, one.end, "nil"


def _of_operators(syntax: Syntax) -> Iterator[tuple[int, int, str]]:
    number_at = {token.start for token in syntax.tokens if token.kind == "number"}
    for token in syntax.binary:
        # Beside `x + 2`, `x - 1` would be noticed by the same tests.
        if token.text in _OPERATORS and not (token.text in "+-" and _operand(syntax, token) in number_at):
            yield token.start, token.end, _OPERATORS[token.text]
    for token in syntax.unary:
        if token.text != "#":
            yield token.start, _operand(syntax, token), ""


def _of_words(text: str, syntax: Syntax) -> Iterator[tuple[int, int, str]]:
    for n, token in enumerate(syntax.tokens):
        if token.kind == "number":
            yield token.start, token.end, str(int(token.text) + 1) if token.text.isdigit() else f"({token.text} + 1)"
        elif token.kind == "string":
            yield from _of_string(text, token)
        elif token.kind == "name":
            name = "".join(one.text for one in syntax.tokens[n : n + 3]) if token.text == "math" else token.text
            if name in _NAMES:
                yield token.start, token.start + len(name), _NAMES[name]


def _operand(syntax: Syntax, sign: Token) -> int:
    """The start of what a sign is before."""
    return next(token.start for token in syntax.tokens if token.start > sign.start)


def _of_string(text: str, token: Token) -> Iterator[tuple[int, int, str]]:
    word = token.text[1:-1]
    if " " in word:
        return  # the text of an error
    if word in _WORDS_OF_COMMANDS:
        yield token.start, token.end, f"'{_WORDS_OF_COMMANDS[word]}'"
    elif not _COMMAND_OR_OPTION.match(word) and not _CALLS_A_COMMAND.search(text, 0, token.start):
        yield token.start, token.end, f"'{word}_'"
