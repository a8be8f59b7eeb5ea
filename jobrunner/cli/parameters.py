"""Parameters of a job from `key=value` words: JSON where it is JSON of the parameter's type, else text."""

from collections.abc import Iterable
from typing import Any, get_type_hints

import msgspec

from jobrunner.cli.options import redaction
from jobrunner.errors import ParameterError
from jobrunner.jobs.registry import JobDefinition
from jobrunner.settings import check_options


def read_parameters(definition: JobDefinition, words: Iterable[str]) -> Any:
    """The parameters of a job. Raises ParameterError, UnknownOption for one that the job does not have."""
    struct = definition.parameters.struct
    hints = get_type_hints(struct, include_extras=True)
    given: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise ParameterError(f"{word!r} is no parameter; write name=value")
        check_options([name], struct.__struct_fields__, f"parameter of job {definition.name!r}")
        if name in given:
            raise ParameterError(f"parameter {name} is given twice; give it once")
        given[name] = _read(name, text, hints.get(name, Any), definition.name)
    return struct(**given)


def _read(name: str, text: str, expected: Any, job: str) -> Any:
    try:
        return msgspec.json.decode(text.encode(), type=expected)
    except (msgspec.MsgspecError, ValueError):
        pass
    try:
        return msgspec.convert(text, expected)
    except (msgspec.MsgspecError, ValueError) as error:
        hides = redaction().hides(name)
        given, why = ("not" if hides else f"{text!r}; it must be"), ("" if hides else f": {error}")
        wanted = getattr(expected, "__name__", str(expected))
        raise ParameterError(f"parameter {name} of job {job!r} is {given} {wanted}{why}") from error
