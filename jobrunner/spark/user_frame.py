"""Finds the place in the user's code at which an error on Spark was raised.

The traceback of a Python worker reaches the driver as text inside a Java exception, below dozens of frames of Spark and
its libraries. The innermost frame outside of these and of this package is the useful one.
"""

import os
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from traceback import extract_tb

from jobrunner.spark.running import text_of

_FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>[^\n]+)$', re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_LIBRARY_ELSEWHERE = re.compile(r"/lib(64)?/python3\.\d+/")
_SPARK = ("/pyspark/", "pyspark.zip/", "/py4j/", "/cloudpickle/", "-packages/jobrunner/", "jobrunner.zip/")
_INSTALLED = ("/site-packages/", "/dist-packages/")
"""Parts of paths, also on other machines, of installed packages: those that run the user's code, and the user's
dependencies."""


def user_frame(error: BaseException) -> str:
    """`file:line function` of the innermost frame of the user's own code; '' when there is none.

    A traceback of a Python worker in the text of the error comes before that of the driver: there the error began.
    """
    text = text_of(error)
    if _TRACEBACK in text:
        found = [(match["file"], match["line"], match["function"])
                 for match in _FRAME.finditer(text[text.rindex(_TRACEBACK) :])]  # fmt: skip
        if frame := _innermost(found):
            return frame
    return _innermost([(at.filename, str(at.lineno), at.name) for at in extract_tb(error.__traceback__)])


def _innermost(frames: Sequence[tuple[str, str, str]]) -> str:
    """The innermost frame of the user's code; a frame of an installed package counts when there is no other."""
    known = [frame for frame in frames if not _is_known(frame[0])]
    own = [frame for frame in known if not any(part in _plain(frame[0]) for part in _INSTALLED)] or known
    if not own:
        return ""
    file, line, function = own[-1]
    return f"{Path(file).name}:{line} {function.strip()}"


def _is_known(file: str) -> bool:
    """Whether the file belongs to Python itself, to Spark, or to this package."""
    if file.startswith(("<frozen", "<string>", _PACKAGE)) or any(part in _plain(file) for part in _SPARK):
        return True
    is_library = file.startswith(_LIBRARIES) or _LIBRARY_ELSEWHERE.search(file) is not None
    return is_library and not any(part in _plain(file) for part in _INSTALLED)


def _plain(file: str) -> str:
    return file.replace("\\", "/")
