"""Where the parts of a Lua 5.1 text are: a tokenizer and a parser that keep positions and build no tree.

Mutations need to know where statements, conditions, returned values and operators begin and end, and whether a minus is
a sign or a subtraction. What an expression means is left to the server.
"""

import re
from dataclasses import dataclass, field
from functools import cache

_TOKEN = re.compile(
    r"(?P<space>\s+|--\[\[.*?\]\]|--[^\n]*)|(?P<string>'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|\[\[.*?\]\])"
    r"|(?P<number>0x[0-9a-fA-F]+|\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>\.\.\.|\.\.|==|~=|<=|>=|[-+*/%^#<>=(){}\[\];:,.])",
    re.DOTALL,
)
_BINARY = frozenset(("+", "-", "*", "/", "%", "^", "..", "==", "~=", "<", "<=", ">", ">=", "and", "or"))
_UNARY = frozenset(("-", "#", "not"))
_STATEMENTS = frozenset(("if", "while", "for", "repeat", "do", "function", "local", "return", "break"))
_KEYWORDS = _STATEMENTS | frozenset(
    ("and", "else", "elseif", "end", "false", "in", "nil", "not", "or", "then", "true", "until")
)
_BLOCK_ENDS = frozenset(("end", "else", "elseif", "until", ""))
_OPENING = frozenset(("(", "{", "["))


@dataclass(frozen=True, slots=True)
class Token:
    """A word of the text; `kind` is string, number, name, sign or end."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        """The position behind it."""
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the text. `kind` of a statement: if, while, for, repeat, do, function, local, assign, call, return,
    break; of an expression: condition, values (of an assignment) or returned."""

    kind: str
    start: int
    end: int


@dataclass(slots=True)
class Syntax:
    """What the parser found, in order of the text."""

    tokens: list[Token]
    statements: list[Span] = field(default_factory=list)
    expressions: list[Span] = field(default_factory=list)
    binary: list[Token] = field(default_factory=list)
    unary: list[Token] = field(default_factory=list)


class NotLua(ValueError):
    """The text is not Lua 5.1, or uses a part of it that the parser does not know."""


@cache
def parse(text: str) -> Syntax:
    """Reads a whole file. Raises NotLua with the line."""
    return _Parser(text).parse()


def _tokens(text: str) -> list[Token]:
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise NotLua(f"line {text.count(chr(10), 0, at) + 1}: {text[at : at + 20]!r} begins no word of Lua")
        if match.lastgroup != "space":
            found.append(Token(match.lastgroup or "", match[0], at))
        at = match.end()
    return [*found, Token("end", "", len(text))]


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._syntax = Syntax(_tokens(text))

    def parse(self) -> Syntax:
        self._block()
        self._expect("")
        for found in (self._syntax.statements, self._syntax.expressions):
            found.sort(key=lambda span: (span.start, -span.end))
        return self._syntax

    @property
    def _token(self) -> Token:
        return self._syntax.tokens[self._at]

    @property
    def _behind(self) -> int:
        """The end of the last token that was taken."""
        return self._syntax.tokens[self._at - 1].end

    def _is(self, *texts: str) -> bool:
        return self._token.kind != "string" and self._token.text in texts

    def _take(self) -> Token:
        self._at += 1
        return self._syntax.tokens[self._at - 1]

    def _accept(self, *texts: str) -> bool:
        return self._is(*texts) and bool(self._take())

    def _expect(self, text: str) -> None:
        if not self._is(text):
            line = self._text.count("\n", 0, self._token.start) + 1
            raise NotLua(f"line {line}: {self._token.text!r} where {text or 'the end of the file'} was expected")
        if text:
            self._take()

    def _name(self) -> None:
        if self._token.kind != "name" or self._token.text in _KEYWORDS:
            self._expect("a name")
        self._take()

    def _block(self) -> None:
        while not self._is(*_BLOCK_ENDS):
            start, kind = self._token.start, self._statement()
            self._syntax.statements.append(Span(kind, start, self._behind))
            self._accept(";")

    def _statement(self) -> str:
        word = self._token.text
        if word not in _STATEMENTS:
            return self._assignment_or_call()
        self._take()
        parsers = {
            "if": self._if, "while": self._while, "for": self._for, "repeat": self._repeat, "do": self._do_block,
            "function": self._named_function, "return": self._return,
        }  # fmt: skip
        if word == "local":
            return self._local()
        if word != "break":
            parsers[word]()
        return word

    def _while(self) -> None:
        self._expression_list("condition")
        self._expect("do")
        self._do_block()

    def _repeat(self) -> None:
        self._block()
        self._expect("until")
        self._expression_list("condition")

    def _named_function(self) -> None:
        self._name()
        while self._accept(".", ":"):
            self._name()
        self._function()

    def _return(self) -> None:
        if not self._is(*_BLOCK_ENDS, ";"):
            self._expression_list("returned")

    def _if(self) -> None:
        self._expression_list("condition")
        self._expect("then")
        self._block()
        while self._accept("elseif"):
            self._expression_list("condition")
            self._expect("then")
            self._block()
        if self._accept("else"):
            self._block()
        self._expect("end")

    def _do_block(self) -> None:
        self._block()
        self._expect("end")

    def _for(self) -> None:
        self._name()
        while self._accept(","):
            self._name()
        if not self._accept("="):
            self._expect("in")
        self._expression_list("")
        self._expect("do")
        self._do_block()

    def _local(self) -> str:
        if self._accept("function"):
            self._name()
            self._function()
            return "function"
        self._name()
        while self._accept(","):
            self._name()
        if self._accept("="):
            self._expression_list("values")
        return "local"

    def _assignment_or_call(self) -> str:
        self._suffixed()
        if not self._is("=", ","):
            return "call"
        while self._accept(","):
            self._suffixed()
        self._expect("=")
        self._expression_list("values")
        return "assign"

    def _function(self) -> None:
        self._expect("(")
        while not self._accept(")"):
            self._take()
        self._block()
        self._expect("end")

    def _expression_list(self, kind: str) -> None:
        start = self._token.start
        self._expression()
        while self._accept(","):
            self._expression()
        if kind:
            self._syntax.expressions.append(Span(kind, start, self._behind))

    def _expression(self) -> None:
        while True:
            while self._is(*_UNARY):
                self._syntax.unary.append(self._take())
            self._simple()
            if not self._is(*_BINARY):
                return
            self._syntax.binary.append(self._take())

    def _simple(self) -> None:
        if self._token.kind in ("string", "number") or self._is("nil", "true", "false", "..."):
            self._take()
        elif self._is("{"):
            self._table()
        elif self._accept("function"):
            self._function()
        else:
            self._suffixed()

    def _table(self) -> None:
        self._expect("{")
        while not self._accept("}"):
            if self._accept("["):
                self._expression()
                self._expect("]")
                self._expect("=")
            elif self._token.kind == "name" and self._syntax.tokens[self._at + 1].text == "=":
                self._take()
                self._take()
            self._expression()
            self._accept(",", ";")

    def _suffixed(self) -> None:
        if self._accept("("):
            self._expression()
            self._expect(")")
        else:
            self._name()
        while self._is(".", ":", *_OPENING) or self._token.kind == "string":
            if self._accept(".", ":"):
                self._name()
            elif self._accept("["):
                self._expression()
                self._expect("]")
            elif self._accept("("):
                if not self._is(")"):
                    self._expression_list("")
                self._expect(")")
            elif self._is("{"):
                self._table()
            else:
                self._take()
