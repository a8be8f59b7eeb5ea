"""Names of the data source's options: Spark passes them in any case, and people write them with underscores, too."""

import difflib
from collections.abc import Mapping, Sequence

from jobrunner.errors import UnknownOption
from jobrunner.option_names import retired


def folded(name: str) -> str:
    """The form in which two spellings of one option are equal."""
    return name.replace("_", "").lower()


def settle_names(
    given: Mapping[str, str], known: Sequence[str], what: str, *, unsaid: Sequence[str] = ()
) -> dict[str, str]:
    """The options under their canonical names. `unsaid` are accepted, too, and not suggested.

    Raises UnknownOption, which names the nearest one.
    """
    names = {folded(name): name for name in (*known, *unsaid)}
    for name in given:
        if folded(name) not in names:
            near = difflib.get_close_matches(folded(name), names, n=1, cutoff=0.5)
            hint = f"did you mean {names[near[0]]!r}?" if near else f"known are {', '.join(known)}"
            hint = retired(name, known) or hint
            raise UnknownOption(f"unknown option {name!r} of {what}; {hint}")
    return {names[folded(name)]: value for name, value in given.items()}


def listed(text: str) -> tuple[str, ...]:
    """The parts of an option that takes several, by comma."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
