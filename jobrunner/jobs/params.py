"""Typed parameters: checked when a task is enqueued, converted when it is run.

A job's parameters are the fields of a msgspec Struct. The check is a round trip through JSON, as the worker will read
it: equal values are valid. Only unequal values are compared field by field, to find the wrong field.
"""

import dataclasses
import inspect
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from jobrunner.codec import NULL, NoJsonForm, not_finite, refuse
from jobrunner.errors import ParameterError, UsageError
from jobrunner.formatting import describe
from jobrunner.jobs.enqueue_options import OPTIONS
from jobrunner.option_names import meant, no_attribute

_PLAIN = (int, str, float, bool, bytes, type(None), Any)
_CONTAINERS = (list, dict, tuple, set, frozenset, Union, UnionType)
P = TypeVar("P", bound=msgspec.Struct)
IMPORT_IT = "parameters are checked while the program runs: import it outside of `if TYPE_CHECKING`, above the job"
_KEPT_AS_THEY_ARE = (bytes, bytearray, datetime, date, time, timedelta, uuid.UUID, Decimal)


class ParametersMeta(msgspec.StructMeta):
    """Raises errors of this package for missing or unknown parameters; for methods of other frameworks they hint at
    ours."""

    if not TYPE_CHECKING:  # a type checker would take these signatures for those of every job

        def __new__(mcls, name, bases, namespace, **config):
            for method in ("__init__", "__new__"):
                if method in namespace:
                    raise UsageError(
                        f"job class {name} defines {method}: a job gets its parameters by its annotated attributes "
                        "(customer: str), as a dataclass does; code that runs when one is made goes into "
                        "__post_init__, and what run() needs, such as a connection, is made in before() or run()"
                    )
            for attribute, value in list(namespace.items()):
                if isinstance(value, dataclasses.Field):
                    _replace_field(name, namespace, attribute, value)
            try:
                return super().__new__(mcls, name, bases, namespace, **config)
            except TypeError as error:
                raise _wrong_default(name, namespace, error) from error

        def __getattr__(cls, name):  # noqa: N805
            if name == "bind":  # of functions: a class has its parameters in its constructor
                raise AttributeError(f"job class {cls.__name__} has no attribute 'bind'; write {cls.__name__}(…)")
            raise no_attribute(cls, f"job class {cls.__name__}", name)

        def __setattr__(cls, name, value):  # noqa: N805
            if name == "__dataclass_params__":  # the first attribute that @dataclass sets; the next is read-only
                raise UsageError(f"job class {cls.__name__} needs no @dataclass: a Job is one by itself; remove it")
            super().__setattr__(name, value)

        def __call__(cls, *args, **kwargs):  # noqa: N805
            try:
                return super().__call__(*args, **kwargs)
            except TypeError as error:
                if cls.__mro__[1] is msgspec.Struct:
                    raise UsageError("Job(…) is the base class of jobs, not the decorator: write @job(), as in "
                                     "`from jobrunner import job`") from error  # fmt: skip
                its = f"its parameters are {found}" if (found := _signature(cls)) else "it has no parameters"
                raise ParameterError(f"{cls.__name__}(…): {error}; {its}{_meant(cls, kwargs)}") from error


def _replace_field(job: str, namespace: dict[str, Any], name: str, given: "dataclasses.Field[Any]") -> None:
    """Replaces the `field(…)` of a dataclass by its default. Raises UsageError."""
    if not given.init:
        raise UsageError(
            f"job class {job}: parameter {name} has field(init=False), but a job gets all its parameters from the "
            "task; make what it computes in before() or run()"
        )
    if given.default_factory is not dataclasses.MISSING:
        namespace[name] = msgspec.field(default_factory=given.default_factory)
    elif given.default is not dataclasses.MISSING:
        namespace[name] = msgspec.field(default=given.default)
    else:
        del namespace[name]


def _wrong_default(job: str, namespace: dict[str, Any], error: TypeError) -> Exception:
    """The error for a default that msgspec refuses; others as they are."""
    if "default_factory" in str(error):
        for name, value in namespace.items():
            if isinstance(value, (list, dict, set, bytearray)) and value and not name.startswith("_"):
                return UsageError(
                    f"job class {job}: all tasks would share the default {describe(value)} of parameter {name}; write "
                    f"{name} = dataclasses.field(default_factory=lambda: {describe(value)})"
                )
    if found := re.match(r"Required field '(\w+)' cannot follow optional fields", str(error)):
        return UsageError(
            f"job class {job}: parameter {found[1]} has no default and comes after one that has; give it a default, "
            f"put it first, or write class {job}(Job, kw_only=True), whose parameters are given by name alone"
        )
    return error


def _meant(job: Any, given: Iterable[str]) -> str:
    """A hint at the parameter nearest to the first unknown name, or at an attribute that is none for want of a type."""
    fields = job.__struct_fields__
    unknown = next((name for name in given if name not in fields), None)
    for name, value in _untyped(job):
        if unknown in (None, name):
            kind = type(value).__name__
            return f"; {name} = {describe(value, 40)} has no type, so it is no parameter: write {name}: {kind}"
    if unknown is None:
        return ""
    if near := meant(unknown, fields):
        return f"; did you mean {near}?"
    is_option = unknown in OPTIONS or (len(unknown) > 2 and meant(unknown, OPTIONS))
    return "; options go into enqueue(…), those of a function into using(…)" if is_option else ""


def _untyped(job: Any) -> Iterator[tuple[str, Any]]:
    """The plain values in the class itself that are no parameters, as they have no annotation."""
    for name, value in vars(job).items():
        is_plain = isinstance(value, (str, int, float, list, dict, tuple, set, type(None)))
        if is_plain and not name.startswith("_") and name not in inspect.get_annotations(job):
            yield name, value


def _signature(job: Any) -> str:
    classes = reversed(job.__mro__)  # a base class may have declared a parameter
    hints = {name: hint for one in classes for name, hint in inspect.get_annotations(one).items()}
    shown = {name: hint if get_args(hint) else getattr(hint, "__name__", hint) for name, hint in hints.items()}
    return ", ".join(f"{name}: {shown.get(name)}" for name in job.__struct_fields__)


class JobParameters(Generic[P]):
    """The parameters of one job. Its decoder is compiled at the first use."""

    def __init__(self, struct: type[P], job: str) -> None:
        self._struct = struct
        self._job = job
        self._encode = msgspec.json.Encoder().encode
        self._decode: Any = None

    @property
    def struct(self) -> type[P]:
        """The struct whose fields are the parameters."""
        return self._struct

    @cached_property
    def may_run_code(self) -> bool:
        """Whether reading parameters may run code of the program: a `__post_init__`, of the job or a parameter's
        type."""
        try:
            hints = get_type_hints(self._struct)
        except Exception:  # as in `_compile`
            return True
        types = [hints.get(name) for name in self._struct.__struct_fields__]
        return hasattr(self._struct, "__post_init__") or not all(map(_is_plain, types))

    def write_and_read(self, values: P) -> tuple[bytes, P]:
        """The payload, and the parameters as the job will read them: 1 for a float is 1.0.

        Raises ParameterError with the field's path, its value and the expected type.
        """
        decode = self._decode or self._compile()
        try:
            payload = self._encode(values)
            if (read := decode(payload)) == values:
                return payload, read
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
            pass
        return self._write_slowly(values)

    def write_fixed(self, values: P, kept: str | None = None) -> bytes:
        """The payload without parameters whose default is made by a factory, except `kept`: reading the payload makes
        them anew. It is the same in every process, also with sets."""
        payload = msgspec.json.encode(values, order="deterministic")
        fields = msgspec.structs.fields(self._struct)
        made = {one.encode_name for one in fields if one.default_factory is not msgspec.NODEFAULT and one.name != kept}
        if not made:
            return payload
        written = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
        return msgspec.json.encode({name: value for name, value in written.items() if name not in made})

    def read(self, payload: bytes) -> P:
        """The parameters in a payload. Raises ParameterError for a payload that does not fit."""
        decode = self._decode or self._compile()
        try:
            return decode(payload)  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ParameterError(f"job {self._job!r} cannot read its payload: {error}") from error

    def _compile(self) -> Any:
        try:
            self._decode = msgspec.json.Decoder(self._struct).decode
        except NameError as error:
            raise ParameterError(
                f"job {self._job!r}: the type of a parameter is not there: {error}; {IMPORT_IT}"
            ) from error
        except Exception as error:  # an annotation in quotes is code, which may raise anything
            why = "JSON decoding does not know" if isinstance(error, TypeError) else "cannot be read"
            raise ParameterError(
                f"job {self._job!r} has a parameter whose type {why}{self._unknown()}: {error}"
            ) from error
        return self._decode

    def _unknown(self) -> str:
        """The first parameter whose type cannot be decoded by itself, for an error."""
        with suppress(Exception):  # all types fail when the type of one parameter fails
            hints = get_type_hints(self._struct, include_extras=True)
            for name in self._struct.__struct_fields__:
                try:
                    msgspec.json.Decoder(hints.get(name, Any))
                except TypeError:
                    return f", {name}"
        return ""

    def _write_slowly(self, values: P) -> tuple[bytes, P]:
        hints = get_type_hints(type(values), include_extras=True)
        for name in self._struct.__struct_fields__:
            self._check_field(name, getattr(values, name), hints.get(name, Any))
        payload = self._encode(values)
        try:
            read = self.read(payload)
        except ParameterError as error:  # its JSON form reads as another value, as of a Decimal for a float
            for name in self._struct.__struct_fields__:
                self._check_written(name, getattr(values, name), hints.get(name, Any))
            raise ParameterError(f"the parameters of job {self._job!r} do not survive JSON: {error}") from error
        self._check_kept(values, read)
        return payload, read

    def _check_kept(self, values: P, read: P) -> None:
        fields = self._struct.__struct_fields__
        found = (change for name in fields for change in changes(getattr(values, name), getattr(read, name), name))
        with suppress(RecursionError):  # nested too deeply to compare
            for path, sent, kept in found:
                raise ParameterError(
                    f"parameter {path} of job {self._job!r} is {describe(sent, 80)}, and the job would read "
                    f"{describe(kept, 80)}: declare the type that is passed, or pass what the declared one keeps"
                )

    def _check_field(self, name: str, value: Any, expected: Any) -> None:
        try:
            plain = msgspec.to_builtins(value, builtin_types=_KEPT_AS_THEY_ARE, enc_hook=refuse)
            read = msgspec.convert(plain, expected, builtin_types=_KEPT_AS_THEY_ARE)
            if NULL in self._encode(value) and (found := not_finite(plain, "$")):  # null, which the type may allow
                path, _, number = found.rpartition(" is ")
                raise ValueError(f"JSON has no {number}; give None or a text - at `{path}`")
        except NoJsonForm as error:
            raise ParameterError(f"parameter {name} of job {self._job!r} cannot be stored as JSON: {error}") from error
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            raise self._wrong(name, value, expected, str(error)) from error
        if type(value) in (str, int) and isinstance(read, (*_KEPT_AS_THEY_ARE, Enum)):
            raise self._wrong(name, value, expected, f"Expected `{type(read).__name__}`, got `{type(value).__name__}`")

    def _check_written(self, name: str, value: Any, expected: Any) -> None:
        """Raises ParameterError for a value whose JSON does not read as the declared type."""
        try:
            msgspec.json.decode(self._encode(value), type=expected)
        except msgspec.MsgspecError as error:
            raise self._wrong(name, value, expected, f"in JSON it is another value: {error}") from error

    def _wrong(self, name: str, value: Any, expected: Any, reason: str) -> ParameterError:
        reason, _, inner = reason.partition(" - at `$")
        path = name + inner.rstrip("`")
        wanted = getattr(expected, "__name__", None) if isinstance(expected, type) else str(expected)
        described = describe(value, 80)
        return ParameterError(f"parameter {path} of job {self._job!r} is {described}; it must be {wanted}: {reason}")


def changes(sent: Any, found: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yields (path, sent, found) where the value read differs from the value sent: an object of a subclass, which reads
    as an object of the declared class; a field that is not stored, or that `__post_init__` changes again; a number that
    a float cannot represent.

    A list that reads as a tuple, and a value without a declared type that reads as plain JSON, are no changes.
    """
    if isinstance(sent, dict) and isinstance(found, dict):
        if len(found) < len(sent):
            yield path, sent, found
        for name in sent.keys() & found.keys():
            yield from changes(sent[name], found[name], f"{path}[{describe(name, 40)}]")
    elif isinstance(sent, (list, tuple)) and isinstance(found, (list, tuple)):
        for position, (one, other) in enumerate(zip(sent, found, strict=False)):
            yield from changes(one, other, f"{path}[{position}]")
    elif (names := _compared(sent)) is not None and _compared(found) is not None:
        if type(sent) is not type(found):
            yield path, sent, found
            return
        for name in names:
            yield from changes(getattr(sent, name, None), getattr(found, name, None), f"{path}.{name}")
    elif _is_scalar_of(sent, found) and _instant(sent) != _instant(found) and sent == sent:  # NaN never equals itself
        yield path, sent, found


def _compared(value: Any) -> list[str] | None:
    """The names of the fields by which an object is compared; None for a value without fields."""
    if isinstance(value, type):
        return None
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value) if field.compare]
    fields = getattr(type(value), "__attrs_attrs__", None)
    return None if fields is None else [field.name for field in fields if field.eq]


def _is_scalar_of(sent: Any, found: Any) -> bool:
    """Whether a scalar was read as a scalar of the same kind: without a declared type most are read as text."""
    if isinstance(sent, (int, float)):
        return isinstance(found, (int, float))
    return isinstance(sent, (str, *_KEPT_AS_THEY_ARE)) and isinstance(found, type(sent))


def _instant(value: Any) -> Any:
    """A datetime in UTC: in a repeated hour datetimes of two zones are never equal (PEP 495)."""
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo is not None else value


def _is_plain(expected: object) -> bool:
    if get_origin(expected) in _CONTAINERS:
        return all(_is_plain(part) for part in get_args(expected) if part is not ...)
    return expected in _PLAIN or expected in _CONTAINERS


def run_of(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """A `run` that calls the function with the parameters of its job."""
    names = tuple(inspect.signature(function).parameters)

    def run(self: Any) -> Any:
        return function(**{name: getattr(self, name) for name in names})

    async def run_async(self: Any) -> Any:
        return await function(**{name: getattr(self, name) for name in names})

    return run_async if inspect.iscoroutinefunction(function) else run
