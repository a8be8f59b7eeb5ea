"""Shortens tracebacks for readers: frames of libraries are folded."""

import os
import re
from pathlib import Path

from jobrunner.settings import working_folder

_FRAME = re.compile(r'(?P<indent>[ |+]*)File "(?P<path>[^"]+)", line (?P<line>\d+)')
_PACKAGE = f"{Path(__file__).parent}{os.sep}"
_STANDARD = f"{Path(os.__file__).parent}{os.sep}"
_STANDARD_ELSEWHERE = re.compile(r"/lib/python3\.\d+/")
"""Paths of the standard library on other machines, for the errors of their workers in the dashboard."""
_MOST_LINES = 40


def short_traceback(text: str) -> str:
    """A traceback for a terminal: neighbouring frames of this package and of the standard library become one line,
    paths below the current folder are relative, and at most the last forty lines are kept. The chain of exceptions
    stays.

    It works on text, because a child process sends text.
    """
    found: list[str] = []
    folded: list[re.Match[str]] = []
    is_folding, indent, here = False, "", working_folder()
    for line in text.splitlines():
        if frame := _FRAME.match(line):
            is_folding, indent = is_of_library(frame["path"]), frame["indent"]
            if is_folding:
                folded.append(frame)
                continue
        elif is_folding and line.startswith((f"{indent}  ", f"{indent}[Previous")):
            continue
        if folded:
            if frame is None or not found[-1:] or not found[-1].endswith("(most recent call last):"):
                found.append(_folded(folded))
            folded = []  # frames from the worker to the job are no part of the error
        is_folding = False
        found.append(line.replace(f'"{here}{os.sep}', '"', 1) if frame and here is not None else line)
    if folded:
        found.append(_folded(folded))
    cut = len(found) - _MOST_LINES
    return "\n".join(found if cut <= 0 else [f"… {cut} lines", *found[cut:]])


def is_of_library(path: str) -> bool:
    """Whether a file belongs to this package or to the standard library, also of other installations."""
    if path.startswith((_PACKAGE, "<frozen ")) or "-packages/jobrunner/" in path:
        return True
    is_standard = path.startswith(_STANDARD) or _STANDARD_ELSEWHERE.search(path) is not None
    return is_standard and "-packages" not in path


def _folded(frames: list[re.Match[str]]) -> str:
    last = frames[-1]
    what = "1 frame" if len(frames) == 1 else f"{len(frames)} frames"
    return f"{last['indent']}… {what} of libraries, to {'/'.join(Path(last['path']).parts[-2:])}:{last['line']}"
