"""The way in from the shell: `jobrunner` and `python -m jobrunner`."""

import sys
from pathlib import Path

import jobrunner


def main() -> None:
    """Runs the command, unless another project's package `jobrunner` lies over this one."""
    if "__getattr__" not in vars(jobrunner):  # an __init__.py that is not ours
        from jobrunner.formatting import DISTRIBUTION, OTHER_DISTRIBUTION, REPAIR

        where, other = Path(__file__).parent, OTHER_DISTRIBUTION
        sys.exit(f"Error: another project's package {other!r} was installed over {DISTRIBUTION!r} in {where}: {REPAIR}")
    from jobrunner.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
