"""The error for a module with jobs that cannot be imported: cause, line of the user's code, and remedy."""

import sysconfig
from pathlib import Path
from traceback import extract_tb

from jobrunner.errors import ModuleNotLoadable
from jobrunner.settings import working_folder

_NO_SESSION = ("SESSION_OR_CONTEXT_NOT_EXISTS", "SparkContext or SparkSession should be created first")
_ON_TYPES = (
    "Spark parses a type that is given as text with a session, and there is none yet: give a type, udf(IntegerType()) "
    'for udf("int"), and make sessions and DataFrames in functions'
)
_INSTALLED = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
_NOT_THE_USERS = ("<", *(f"{folder}/" for folder in _INSTALLED))


def not_loadable(name: str, error: Exception) -> ModuleNotLoadable:
    """The error to raise for the `error` from the import of module `name`."""
    # For Python the name is relative, or the package above lacks it: neither tells what to write here.
    is_broken = not all(name.split("."))
    reason = "a part of its name is empty" if is_broken else f"{type(error).__name__}: {error}".split("\n")[0]
    place = _place(error)
    if any(word in reason for word in _NO_SESSION):
        remedy = _ON_TYPES
    else:
        remedy = _remedy(name, error) or ("mend it there" if place else "mend its name or code")
    return ModuleNotLoadable(f"module {name!r} cannot be imported: {reason}{place}; {remedy}")


def _remedy(name: str, error: Exception) -> str:
    """The advice for a wrong name: other programs take a path or `module:name`. Empty when the code is wrong."""
    dotted = name.partition(":")[0].removesuffix(".py").strip("./").replace("/", ".")
    if not dotted:
        return "a module has a dotted name, such as myapp.jobs"
    if dotted != name:
        return f"a module has a dotted name, without a path or a colon: {dotted}"
    if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
        return f"mend its name, or run this in the folder that has it; here is {working_folder() or 'a deleted folder'}"
    return ""


def _place(error: Exception) -> str:
    """` (shop/jobs.py:12)`: the innermost line of the user's code."""
    if isinstance(error, SyntaxError) and error.filename:
        found = [(error.filename, error.lineno)]
    else:
        frames = extract_tb(error.__traceback__)
        found = [(at.filename, at.lineno) for at in frames if not at.filename.startswith(_NOT_THE_USERS)]
    if not found:
        return ""
    file, line, here = Path(found[-1][0]), found[-1][1], working_folder()
    return f" ({file.relative_to(here) if here is not None and file.is_relative_to(here) else file}:{line})"
