"""The error for a module with jobs that cannot be imported: cause, line of the user's code, and remedy; and the advice
for modules that declare none."""

import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from pkgutil import iter_modules
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


def not_loadable(name: str, error: Exception | SystemExit) -> ModuleNotLoadable:
    """The error to raise for the `error` from the import of module `name`."""
    # For Python the name is relative, or the package above lacks it: neither tells what to write here.
    is_broken = not all(name.split("."))
    reason = "a part of its name is empty" if is_broken else f"{type(error).__name__}: {error}".split("\n")[0]
    place = _place(error)
    if any(word in reason for word in _NO_SESSION):
        remedy = _ON_TYPES
    elif isinstance(error, SystemExit):
        reason = f"it exits with code {error.code or 0}"
        remedy = "code that ends the program belongs below if __name__ == '__main__':"
    else:
        remedy = _remedy(name, error) or ("mend it there" if place else "mend its name or code")
    return ModuleNotLoadable(f"module {name!r} cannot be imported: {reason}{place}; {remedy}")


def where_jobs_may_be(names: Iterable[str]) -> str:
    """The advice for modules that were imported and declare no job: those inside them, where they are packages."""
    inside = [
        f"{name}.{found.name}"
        for name in names
        for found in iter_modules(getattr(sys.modules.get(name), "__path__", ()))
        if found.name != "__main__"
    ]
    if inside:
        return f"name the module that has @job, such as {', '.join(inside[:3])}, or import it in its package"
    return "put @job() above a Job class or a function, and name its module"


def is_exit_of_module(error: SystemExit) -> bool:
    """Whether a module ended the program with a code while it was imported, as by parsing arguments. False for an exit
    with a text, which is the module's own error, and for one by a signal, which this package raises."""
    frames = extract_tb(error.__traceback__)
    return not isinstance(error.code, str) and not frames[-1].filename.startswith(_NOT_THE_USERS[1])


def _remedy(name: str, error: BaseException) -> str:
    """The advice for a wrong name, as other programs take a path or `module:name`, and for a wrong folder. Empty when
    the code is wrong."""
    dotted = name.partition(":")[0].removesuffix(".py").strip("./").replace("/", ".")
    if not dotted:
        return "a module has a dotted name, such as myapp.jobs"
    if dotted != name:
        return f"a module has a dotted name, without a path or a colon: {dotted}"
    here = working_folder()
    if isinstance(error, ModuleNotFoundError) and error.name and "." not in error.name:
        if here is not None and (above := _folder_above(error.name, here)) is not None:
            its_name = name if error.name == name.partition(".")[0] else _name_in(above, here, name)
            return f"{error.name} is in {above}: run this there, with {its_name}"
        if error.name == name.partition(".")[0]:
            return f"mend its name, or run this in the folder that has it; here is {here or 'a deleted folder'}"
        return "install it in this environment, or mend it there"
    if "no known parent package" in str(error) and here is not None and (here / "__init__.py").is_file():
        return f"it is part of a package: run this in {here.parent}, with {_name_in(here.parent, here, name)}"
    return ""


def _folder_above(name: str, here: Path) -> Path | None:
    """The nearest folder above this one that has the module or package: a command was typed too deep in a project."""
    for folder in here.parents:
        if (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file():
            return folder
    return None


def _name_in(folder: Path, here: Path, name: str) -> str:
    """The name that a module of this folder has in a folder above."""
    return ".".join((*here.relative_to(folder).parts, name))


def _place(error: BaseException) -> str:
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
