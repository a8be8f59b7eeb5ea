"""The entry point from the shell: `jobrunner` and `python -m jobrunner`."""

import os
import sys
from io import TextIOWrapper
from pathlib import Path

import jobrunner


def main() -> None:
    """Runs the command, unless another project's package `jobrunner` lies over this one."""
    if "__getattr__" not in vars(jobrunner):  # an __init__.py that is not ours
        from jobrunner.formatting import DISTRIBUTION, OTHER_DISTRIBUTION, REPAIR

        where, other = Path(__file__).parent, OTHER_DISTRIBUTION
        sys.exit(f"Error: another project's package {other!r} was installed over {DISTRIBUTION!r} in {where}: {REPAIR}")
    _open_standard_streams()
    try:
        _escape_what_cannot_be_encoded()
        from jobrunner.cli.main import main as command
    except KeyboardInterrupt:  # before the command listens, which takes a fifth of a second
        sys.exit(130)
    command()


def _open_standard_streams() -> None:
    """Connects closed standard streams, as by `>&-`, to the null device. Otherwise descriptors opened later get their
    numbers, such as pipes of the worker, into which jobs and their programs would print."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 - for good
            setattr(sys, f"__{name}__", getattr(sys, name))


def _escape_what_cannot_be_encoded() -> None:
    """Escapes output characters that an encoding such as Latin-1 lacks; otherwise a list with a `…` raises an error."""
    from jobrunner.formatting import is_utf8

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and not is_utf8(stream.encoding):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
