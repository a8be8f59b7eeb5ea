"""Finds the parts of a Spark error's text that Spark itself wrote: Java's class and condition, and the Python error.

The text quotes values of items, which may have any lines: those of a traceback, of another error, of a Java cause.
Invariant: nothing behind the first place where a value may be quoted is trusted. Before it are the class names of Java,
the words that Spark puts around the error of a task, and, in a Python traceback, its frames and the class of the error.
"""

import re
from collections.abc import Container, Iterator
from contextlib import suppress
from typing import Any

from jobrunner.spark.running import text_of

_CLASS = r"(?:\([\w.$]+\) |(?!jobrunner\.)(?:[\w$]+\.)+[\w$]+: )"
_LOST_TASK = (
    r"(?:(?:Job aborted due to stage failure: (?:Task \S+ in stage \S+ failed \d+ times?, most recent failure: )?)?"
    r"Lost task \S+ in stage \S+ \([^()\n]*\) \([^()\n]*\): )"
)
_NOT_WRITTEN = r"(?:\[TASK_WRITE_FAILED\] [^\n]*\n(?:\t[^\n]*\n)*Caused by: )"
"""A failed file write, whose own message has no value, and whose cause is the error."""
_HEAD = rf"\s*(?:An error occurred while calling \S+\n: )?(?:{_CLASS}|{_LOST_TASK}|{_NOT_WRITTEN})*\s*"
_TRACEBACK = "Traceback (most recent call last):"
_OURS = "jobrunner.errors."
"""The start of an error of the data source, which comes without a traceback."""
_PYTHON = re.compile(
    rf"{_HEAD}(?:\[PYTHON_\w+\] (?:Fail[^\n:]*: )?)?"
    r"(?:An exception was thrown from the Python worker(?:\. Please see the stack trace below\.|:)\s+"
    rf"|{_CLASS}|\[PYTHON_EXCEPTION\] )*"
    rf"(?={re.escape(_TRACEBACK)}|\+ Exception Group Traceback |{re.escape(_OURS)})"
)
_CHAINED = re.compile(
    r"\n\n(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):\n\n"
    r"(?=\s*(?:\+ Exception Group )?Traceback)"
)
_OF_A_GROUP = re.compile(r"^  [|+] ", re.MULTILINE)
SQLSTATE = re.compile(r"\s*SQLSTATE: \w{5}.*$")
_DEEPEST = 10


def at_start(pattern: str) -> re.Pattern[str]:
    """A pattern to `match` a text of Java with: behind the names of classes and the words about the lost task only."""
    return re.compile(_HEAD + pattern)


def texts_of_java(error: BaseException) -> Iterator[str]:
    """The text of an error, then class and message of each of its causes in Java, which Spark Connect does not send."""
    yield text_of(error)
    with suppress(Exception):  # Java has ended
        java: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
        for _ in range(_DEEPEST):
            java = java.getCause()
            if java is None:
                return
            yield str(java.toString())


def python_error(text: str, kept: Container[str]) -> str:
    """The Python error in a text of Spark as `Name: message`, without the module; '' without one.

    Errors that were raised while others were handled follow those; the last counts, unless its name is in `kept`: the
    message of an error may imitate a following one, but not the first one's name.
    """
    found = _PYTHON.match(text)
    if found is None:
        return ""
    text = text[found.end() :]
    if text.startswith(_OURS):
        return _named(text.splitlines()[0])
    blocks = _CHAINED.split(text)
    last = _last_of_traceback(blocks[-1])
    return _last_of_traceback(blocks[0]) if last.partition(":")[0] in kept else last


def _last_of_traceback(text: str) -> str:
    """The first line behind the frames."""
    if text.lstrip().startswith("+"):
        text = _OF_A_GROUP.sub("", text)
    ends = next((line for line in text.splitlines()[1:] if line and not line[0].isspace()), None)
    return "PythonError: no reason given" if ends is None else _named(ends)


def _named(line: str) -> str:
    name, colon, words = SQLSTATE.sub("", line).rstrip().partition(":")
    return f"{name.rpartition('.')[2]}{colon}{words}"
