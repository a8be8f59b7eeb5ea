"""Names of queues within a pipeline: short names become full names; errors name the nearest known one."""

import difflib
from collections.abc import Sequence

from jobrunner.broker.keys import split_queue
from jobrunner.errors import PipelineError


def full_name(pipeline: str, name: object) -> str:
    """`pipeline/name` of a short or full name. Raises InvalidName, PipelineError for a queue of another pipeline."""
    if isinstance(name, str) and "/" in name:
        tag, short = split_queue(name)
        if tag != pipeline:
            raise PipelineError(
                f"queue {name!r} is of pipeline {tag!r}, not of {pipeline!r}: a move is one step within one pipeline "
                f"only; write {short!r} for its queue of that name, or push from a sink into the other pipeline"
            )
        return name
    split_queue(name)
    return f"{pipeline}/{name}"


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint for an error: the nearest known name, or all of them."""
    near = difflib.get_close_matches(name.rpartition("/")[2], known, n=1, cutoff=0.4)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(map(repr, known)) or 'none'}"
