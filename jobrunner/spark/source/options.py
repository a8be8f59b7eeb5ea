"""Parses the options of `spark.read.format("jobrunner")` and `readStream`, and the columns of a read.

Options are checked before anything is read. They determine the default schema, and a schema determines the fields to
fetch.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from jobrunner.broker.keys import split_queue
from jobrunner.broker.shards import is_shard, whole_queue
from jobrunner.errors import InvalidOption
from jobrunner.formatting import counted, describe
from jobrunner.option_names import folded, listed, settle_names
from jobrunner.settings import client_settings
from jobrunner.spark.columns import ITEM_COLUMNS, USUAL_COLUMNS, whole_number
from jobrunner.spark.payload_columns import check_readable

STATES = ("waiting", "scheduled", "pending", "dead")
MODES = ("PERMISSIVE", "FAILFAST")
_BOTH = ("history", "columns", "payloadSchema", "mode", "rowsPerPartition", "url", "prefix")
_BATCH = ("queue", "state", "missingQueues", "filters", *_BOTH)
_MISSING = ("fail", "ignore")
_FILTERS = ("spark", "server")
EXACT = "exactQueues"
"""An option of this package's own reads: the queues are full names, shards included, and no other queues are read."""
_STREAM = ("missingQueues", *_BOTH, "maxRowsPerTrigger", "startingOffset")
PAYLOAD = "payload"
MISFIT = "_misfit"
"""The column with the reason why a payload does not fit the schema; null when it fits."""
_PATTERN = re.compile(r"[*?\[]")
_NESTED = re.compile(r"`[^`]*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|<[^<>]*>|\([^()]*\)")
_FIELD = re.compile(r"\s*[^\s:]+(?:\s*:\s*|\s+)(?P<type>\w+)")
_NAME = re.compile(r"\s*(?:`(?P<quoted>(?:[^`]|``)*)`|(?P<plain>[^\s:]+))")
_NOT_NULL = re.compile(r"\s+NOT\s+NULL\b", re.IGNORECASE)
_TYPES = (
    "string", "int", "bigint", "double", "boolean", "timestamp", "date", "decimal", "float", "binary", "array", "map",
    "struct", "variant", "timestamp_ntz", "timestamp_ltz", "integer", "long", "smallint", "short", "tinyint", "byte",
    "real", "dec", "numeric", "char", "character", "varchar", "time", "interval", "void", "geometry", "geography",
)  # fmt: skip
"""First words of Spark's types, including types that no payload can be read into."""
_ROWS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The queues and columns to read, and the server. Plain values, as it is sent to other processes."""

    url: str = field(repr=False)
    prefix: str
    queues: tuple[str, ...]
    """Full names and patterns of queues."""
    states: tuple[str, ...]
    """Sets to read; ("done",) for history."""
    columns: tuple[str, ...] | None = None
    payload_schema: str | None = None
    fails_fast: bool = False
    rows_per_partition: int = _ROWS
    rows_per_trigger: int | None = None
    starting: str = "earliest"
    asks_server: bool = False
    """Whether the server evaluates filters, as far as it can."""
    needs_queues: bool = False
    """Whether a missing queue is an error."""
    is_stream: bool = False
    """Whether the read is a stream: a missing queue may begin later."""
    is_exact: bool = False
    """Whether only the queues in `queues` are read, without other shards of them."""

    def select(self, registered: Sequence[str]) -> list[str]:
        """Full names of the selected queues, among those that are registered, with their shards."""
        if self.is_exact:
            return list(self.queues)
        found = [name for name in self.queues if not _PATTERN.search(name)]
        patterns = [name for name in self.queues if _PATTERN.search(name)]
        found += [name for name in registered if any(fnmatchcase(name, one) for one in patterns)]
        found += [name for name in registered if is_shard(name) and whole_queue(name) in found]
        return list(dict.fromkeys(found))

    def check_there(self, registered: Sequence[str]) -> None:
        """Raises InvalidOption for a queue that is not registered, and for a pattern that matches no queue."""
        if not self.needs_queues:
            return
        there = set(registered)
        for name in self.queues:
            is_pattern = _PATTERN.search(name) is not None
            if name == "*" or (any(fnmatchcase(one, name) for one in there) if is_pattern else name in there):
                continue
            what = f"no queue matches {name!r}" if is_pattern else f"there is no queue {name!r}"
            near = difflib.get_close_matches(name, there, n=1, cutoff=0.4)
            others = f"the server has {counted(len(there), 'queue')}, none like it"
            remedy = f"did you mean {near[0]!r}?" if near else others
            instead = "waits for it" if self.is_stream else "reads nothing instead"
            raise InvalidOption(f"{what}; {remedy} (missingQueues=ignore {instead})")


def batch_options(given: Mapping[str, str]) -> ReadOptions:
    """Parses and checks the options of a batch read. Raises UnknownOption and InvalidOption."""
    options = settle_names(given, _BATCH, "a read from jobrunner", unsaid=(EXACT,))
    queue, history, state = (options.get(name) for name in ("queue", "history", "state"))
    if queue is None and history is None:
        raise InvalidOption(
            "queue=None and history=None: give exactly one of the two options (Spark keeps no options of a table whose "
            "columns are listed: name them by the option payloadSchema, or CREATE TEMPORARY VIEW)"
        )
    if queue is not None and history is not None:
        raise InvalidOption(f"queue={queue!r} and history={history!r}: give exactly one of the two options")
    if history is not None and state is not None:
        raise InvalidOption(f"state={state!r} with history={history!r}: history is a state of its own; leave out state")
    states = ("done",) if history is not None else _states(state)
    return _settled(options, queue or history or "", states)


def stream_options(given: Mapping[str, str]) -> ReadOptions:
    """Parses and checks the options of a streaming read. Raises UnknownOption and InvalidOption."""
    spelled = {folded(name): name for name in given}
    if "queue" in spelled and "history" not in spelled:
        raise InvalidOption(
            f"queue={given[spelled['queue']]!r}: a stream reads what has finished; give the option history, "
            "and let a station take items out of a queue"
        )
    options = settle_names(given, _STREAM, "a streaming read from jobrunner")
    if "history" not in options:
        raise InvalidOption("the option history is missing: give the queue whose finished tasks to read")
    return replace(_settled(options, options["history"], ("done",)), is_stream=True)


def _choice(options: Mapping[str, str], name: str, words: Sequence[str]) -> str:
    """The value of an option among `words`, in any case; the first word without the option. Raises InvalidOption."""
    given = options.get(name, words[0])
    for word in words:
        if word.lower() == given.lower():
            return word
    raise InvalidOption(f"{name}={given!r}: choose one of {', '.join(words)}")


def _settled(options: Mapping[str, str], queues: str, states: tuple[str, ...]) -> ReadOptions:
    where = client_settings(options.get("url"), options.get("prefix"))
    rows = options.get("maxRowsPerTrigger")
    missing = _choice(options, "missingQueues", _MISSING)
    filters = _choice(options, "filters", _FILTERS)
    mode = _choice(options, "mode", MODES)
    is_exact = EXACT in options
    fields = options.get("payloadSchema")
    if fields is not None:
        _check_fields(fields)
    return ReadOptions(
        url=where.url,
        prefix=where.prefix,
        queues=listed(queues) if is_exact else _queues(queues),
        states=states,
        columns=_columns(options.get("columns"), fields is not None),
        payload_schema=fields,
        fails_fast=mode == "FAILFAST",
        rows_per_partition=_whole(options.get("rowsPerPartition", str(_ROWS)), "rowsPerPartition"),
        rows_per_trigger=None if rows is None else _whole(rows, "maxRowsPerTrigger"),
        starting=options.get("startingOffset", "earliest"),
        asks_server=filters == _FILTERS[1],
        needs_queues=missing == _MISSING[0],
        is_exact=is_exact,
    )


def _check_fields(ddl: str) -> None:
    """Raises InvalidOption for a field without a type or with an unknown type: errors of Spark's parser, which checks
    the rest, do not name the option."""
    without, text = None, ddl
    while text != without:  # text in brackets or quotes may have commas
        without, text = text, _NESTED.sub("_", text)
    for part in text.split(","):
        found = _FIELD.match(part)
        if found is None:
            where = f", field {part.strip()!r} has no type" if part.strip() and part.strip() in ddl else ""
            raise InvalidOption(f"payloadSchema={ddl!r}{where}: give the fields of payloads, as 'n int, name string'")
        word = found["type"].rstrip("_").lower()
        if word not in _TYPES:
            hint = _hint(word, _TYPES, _TYPES[:13], cutoff=0.6)
            raise InvalidOption(f"payloadSchema={ddl!r} names the type {word!r}, which Spark does not have; {hint}")


def _hint(name: str, known: Sequence[str], shown: Iterable[str], *, cutoff: float = 0.4) -> str:
    """A hint for an error: the nearest known name, or the names in `shown`."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(shown)}"


def _queues(given: str) -> tuple[str, ...]:
    names = listed(given)
    if not names:
        raise InvalidOption(f"queue {given!r}: give a name, several by comma, or a pattern like 'flights/*'")
    for name in names:
        if not _PATTERN.search(name):
            split_queue(name)
    return names


def _states(given: str | None) -> tuple[str, ...]:
    if given is None:
        return STATES
    names = listed(given)
    unknown = [name for name in names if name not in STATES]
    if unknown or not names:
        raise InvalidOption(f"state={given!r}: choose of {', '.join(STATES)}; finished tasks have the option history")
    return names


def _columns(given: str | None, has_fields: bool) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = listed(given)
    known = ("payload", *ITEM_COLUMNS, *((MISFIT,) if has_fields else ()))
    for at, name in enumerate(names):
        if name in names[:at]:
            raise InvalidOption(f"columns names {name!r} twice; name each once")
        if name == MISFIT and not has_fields:
            raise InvalidOption(f"columns names {MISFIT!r}, which needs the option payloadSchema; add it")
        if name not in known:
            raise InvalidOption(f"columns names {name!r}, and an item has no such column; {_hint(name, known, known)}")
    return names


def _whole(given: str, option: str) -> int:
    if number := whole_number(given):
        return number
    raise InvalidOption(f"{option}={describe(given)}: give a whole number from 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSchema:
    """The columns of a read by their origin. `schema` has all of them in order."""

    schema: StructType
    item: tuple[str, ...]
    fields: StructType
    """Columns from fields of the payload, a JSON object."""
    raw: bool = False
    """Whether the payload itself is a column."""
    misfit: bool = False


def default_schema(options: ReadOptions) -> str:
    """The schema of a read for which the user gave none, as DDL."""
    if options.payload_schema is None:
        names = options.columns or (PAYLOAD, *USUAL_COLUMNS)
        return ", ".join(f"{name} {_ddl(name)}" for name in names)
    names = options.columns or (*USUAL_COLUMNS, MISFIT)
    return ", ".join([_without_not_null(options.payload_schema)[0], *(f"{name} {_ddl(name)}" for name in names)])


def shape_of(schema: StructType, payload_schema: str | None = None) -> ReadSchema:
    """The origin of each column of a schema. A field that the option payloadSchema says is NOT NULL is required in
    payloads. Raises InvalidOption for a column without an origin."""
    required = _without_not_null(payload_schema or "")[1]
    item, fields, raw, misfit = [], [], False, False
    for column in schema.fields:
        if column.name == PAYLOAD and isinstance(column.dataType, (StringType, BinaryType)):
            raw = True
        elif column.name == MISFIT:
            misfit = True
        elif column.name.startswith("_"):
            _check_item_column(column.name, column.dataType.simpleString())
            item.append(column.name)
        else:
            is_nullable = column.nullable and column.name not in required
            fields.append(StructField(column.name, column.dataType, is_nullable, column.metadata))
    of_payload = StructType(fields)
    check_readable(of_payload)
    return ReadSchema(schema=schema, item=tuple(item), fields=of_payload, raw=raw, misfit=misfit)


def _without_not_null(ddl: str) -> tuple[str, set[str]]:
    """The fields without NOT NULL, and the names of those that had it: a column must be able to hold the null of a
    payload that does not fit."""
    hidden, before = ddl, ""
    while hidden != before:  # text in brackets or quotes may have commas
        hidden, before = _NESTED.sub(lambda found: "_" * len(found[0]), hidden), hidden
    required, kept, at = set(), [], 0
    for found in _NOT_NULL.finditer(hidden):
        start = hidden.rfind(",", 0, found.start()) + 1
        required.add(_named(ddl[start : found.start()]))
        kept.append(ddl[at : found.start()])
        at = found.end()
    return "".join([*kept, ddl[at:]]), required


def _named(field: str) -> str:
    """The name at the start of a field's DDL."""
    found = _NAME.match(field)
    return "" if found is None else found["plain"] or found["quoted"].replace("``", "`")


def _ddl(name: str) -> str:
    return ITEM_COLUMNS[name].ddl if name in ITEM_COLUMNS else "string"


def _check_item_column(name: str, kind: str) -> None:
    if name not in ITEM_COLUMNS:
        hint = _hint(name, [*ITEM_COLUMNS, MISFIT], ITEM_COLUMNS)
        raise InvalidOption(f"an item has no column {name!r}; {hint}")
    if kind != ITEM_COLUMNS[name].ddl.removesuffix("_ltz"):  # its name in Spark's schemas
        raise InvalidOption(f"column {name!r} is {ITEM_COLUMNS[name].ddl}, not {kind}; cast it after the read")
