"""Errors for unknown options, which name the nearest known option, or this package's name for other systems' options.

`checks_options` decorates public functions and classes; those that take `**options` call `check_options`.
"""

import functools
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, cast

from jobrunner.errors import UnknownOption
from jobrunner.formatting import describe

T = TypeVar("T")
C = TypeVar("C")

_RETIRED: Final = {
    "patience": "retry_timeout",
    "keep": "result_ttl",
    "max_expiries": "max_stalled",
    "limit_by": "partition_by",
    "max_inflight_per_key": "max_inflight_per_partition",
    "rate_per_key": "rate_per_partition",
    "dead_to": "dead_letter_queue",
    "prefetch": "prefetch_time",
    "payload_seal": "payload_encryption",
    "require_sealed": "require_encryption",
    "key": "partition",
}
"""Option names of builds before 0.1.0, with their present names, which are suggested even without a similar option."""

_CALLED_HERE: Final = _RETIRED | {
    name: here
    for names, here in {
        "max_retries retries retry_limit max_tries tries max_receive_count attempts max_attempt": "max_attempts",
        "retry": "max_attempts|retry_on",
        "autoretry_for retry_exceptions throws retry_when": "retry_on",
        "retry_delay default_retry_delay retry_backoff retry_strategy retry_interval": "backoff delay in_ base",
        "retry_backoff_max max_delay max_backoff max_interval maximum max": "cap",
        "multiplier exponent exponential coefficient": "factor",
        "initial min_delay min_backoff initial_delay initial_interval": "base",
        "countdown delay delay_seconds defer_by schedule_in run_in after delay_ms": "in_ delay base",
        "seconds": "in_ delay for_ every timeout",
        "eta run_at scheduled_at schedule_at defer_until enqueue_at not_before when": "at in_ delay",
        "timeout": "timeout wait|keepalive for_",
        "time_limit soft_time_limit hard_time_limit job_timeout max_runtime timeout_ms": "timeout keepalive",
        "visibility_timeout visibility lock_duration lock_timeout ack_deadline lease_time lease": "keepalive lease",
        "wait_time wait_time_seconds block blocking poll poll_timeout": "wait timeout",
        "wait": "timeout max_wait",
        "expires expire expiration expiry valid_until max_age": "expires_in ttl result_ttl",
        "ttl": "expires_in result_ttl",
        "result_expires keep_result retention completed_ttl": "result_ttl",
        "queue_name routing_key topic": "queue queues name",
        "job_id task_id message_id msg_id jid uuid unique_id deduplication_id": "id task_id",
        "message body data item value args kwargs params parameters payloads": "payload payloads",
        "metadata meta attributes message_attributes tags": "headers",
        "group_id message_group_id key partition_key tenant concurrency_key limit_by": "partition partition_by",
        "count limit num number max_messages size batch_size max_items": "n limit batch max_tokens",
        "prefetch": "prefetch_time n limit batch max_tokens",
        "concurrency max_concurrency concurrency_limit max_in_flight": "concurrency max_inflight",
        "processes process workers threads num_workers": "concurrency|executor",
        "rate_limit throttle limiter": "rate",
        "requests max_requests tokens calls burst": "max_tokens",
        "per period window duration": "for_ per|interval ttl every",
        "unit units": "interval_unit",
        "schedule crontab cron_string": "cron every",
        "interval repeat_every run_every": "every interval",
        "timezone": "tz",
        "dlq dead_letter failed_queue": "dead_letter_queue",
        "keys fields by_args": "by",
        "callback callbacks link": "on_success",
        "errback link_error": "on_dead",
        "on_conflict on_duplicate conflict replace if_exists": "on_clash",
        "error_message exception reason": "error reason",
        "destination target to_queue next": "to queue",
        "fanout": "fan_out",
        "retry_time reconnect_timeout": "retry_timeout",
        "max_stalled_count max_lost": "max_stalled",
        "acks_late acknowledge": "ack",
        "ignore_result store_results store_result": "result_ttl",
    }.items()
    for name in names.split()
}  # fmt: skip
"""This package's names for options of Celery, RQ, Dramatiq, arq, Sidekiq, Oban, BullMQ, River and SQS, and of earlier
versions, best first; a `|` separates equally likely names."""

_WHERE: Final = {
    name: where
    for names, where in {
        "max_attempts backoff retry_on max_stalled keepalive timeout ack result_ttl expires_in unique partition_by "
        "every cron tz catch_up overlap jitter": "@job",
        "start end": "Client.add_periodic()",
        "in_ at priority queue id": "enqueue(), using() and push()",
        "rate max_inflight dead_letter_queue dead_ttl max_size history": "queue() and Queue.configure()",
        "to fan_out": "Pipeline.station()",
        "headers partition": "push()",
        "max_inflight_per_partition rate_per_partition": "queue() and Queue.configure()",
        "retry_timeout payload_encryption require_encryption url prefix": "configure() and Client()",
        "prefetch_time executor": "Worker()",
        "on_complete on_success on_dead": "group(), of which a chain may be a step: group(chain(…), on_dead=…)",
    }.items()
    for name in names.split()
}  # fmt: skip
"""The right places of options that are often passed elsewhere."""

_SENT_BY: Final = {
    name: here
    for names, here in {
        "delay apply_async perform_async perform_later send send_with_options defer defer_async enqueue_job push "
        "insert apply apply_later schedule": "enqueue(…)",
        "send_async async_send kiq adelay": "aenqueue(…)",
        "perform_in perform_at enqueue_in enqueue_at apply_at countdown eta run_in run_at":
        "using(in_=…).enqueue(…), or with at=…",
        "set configure options with_options opts": "using(…).enqueue(…)",
        "s si signature subtask message message_with_options": "bind(…), or an instance of a job class, as a step",
        "map starmap chunks perform_bulk push_bulk insert_all delay_many apply_many": "enqueue_many(…)",
    }.items()
    for name in names.split()
}  # fmt: skip
"""Methods of tasks of Celery, Sidekiq, Dramatiq, RQ, Procrastinate, Taskiq and Oban, and their equivalents here."""

_ASKED_BY: Final = {
    name: here
    for names, here in {
        "get wait join get_result return_value latest_result value result_sync wait_result": "result(timeout=…)",
        "status get_status get_state ready successful failed is_finished is_failed is_queued is_started "
        "is_scheduled finished completed": "record().state",
        "traceback exc_info exception get_error": "error",
        "info meta get_meta": "record().progress",
        "refresh fetch reload": "record()",
        "revoke abort delete terminate forget": "cancel()",
        "retry requeue_job": "requeue()",
        "job_id task_id jid uid get_id": "id",
        "retries": "retry_count",
        "created_at enqueued_at inserted_at date_created": "enqueue_time",
    }.items()
    for name in names.split()
}
"""Members of the object that an enqueue of Celery, RQ, Dramatiq, arq, SAQ or Huey returns, and equivalents of a
handle."""

_OF_QUEUES: Final = {
    name: here
    for names, here in {
        "enqueue enqueue_call enqueue_job add put put_nowait send send_message publish":
        "push(…) for a payload, or send_mail.enqueue(…) for a job",
        "enqueue_in enqueue_at schedule":
        "push(…, in_=…) for a payload, or send_mail.using(in_=…).enqueue(…) for a job",
        "enqueue_many add_bulk addBulk send_messages put_many": "push_many(…), or send_mail.enqueue_many(…) for a job",
        "get get_nowait receive receive_messages dequeue lease consume": "reserve(…)",
        "ack complete acknowledge delete_message": "lease.commit(), of a lease from reserve(…)",
        "nack reject fail": "lease.rollback(), of a lease from reserve(…)",
        "count size qsize length depth stats get_job_counts getJobCounts": "counts()",
        "empty clear flush drain clean": "purge('waiting')",
        "obliterate": "delete(force=True)",
        "jobs get_jobs getJobs get_waiting getWaiting get_delayed get_failed getFailed": "tasks('waiting'), 'dead', …",
        "job_ids get_job_ids": "ids('waiting'), 'dead', …",
        "fetch_job get_job getJob": "client.task(id)",
        "add_cron upsert_job_scheduler upsertJobScheduler": "client.add_periodic(name, send_mail.bind(…), cron=…)",
    }.items()
    for name in names.split()
}
"""Methods of queues of RQ, BullMQ, SQS, SAQ and Python's own, and equivalents here."""

_OF_CLIENTS: Final = {
    name: here
    for names, here in {
        "send_task enqueue_job enqueue_task enqueue_call submit defer publish send push add add_job insert "
        "perform_async": "send_mail.enqueue(…) for a job, or queue(name).push(…) for a payload",
        "AsyncResult get_task get_job fetch_job fetch job result get_result": "task(id)",
        "cancel revoke abort terminate cancel_job": "task(id).cancel()",
        "requeue retry retry_job": "task(id).requeue()",
        "tasks jobs get_jobs list_jobs": "queue(name).tasks(state)",
        "inspect control nodes get_workers": "workers()",
        "schedules get_schedules periodic_jobs cron_jobs get_job_schedulers getJobSchedulers": "periodics()",
        "schedule cron every add_cron add_schedule create_schedule upsert_schedule add_periodic_task update_periodic "
        "edit_periodic set_periodic upsert_job_scheduler upsertJobScheduler":
        "add_periodic(name, send_mail.bind(…), cron=…)",
        "delete_periodic remove_schedule delete_schedule remove_job_scheduler removeJobScheduler":
        "remove_periodic(name)",
        "pause pause_queue": "queue(name).pause()",
        "resume unpause resume_queue": "queue(name).resume()",
        "disconnect quit shutdown aclose": "close()",
    }.items()
    for name in names.split()
}
"""Methods of applications and clients of Celery, arq, RQ, Procrastinate, River and BullMQ, and equivalents here."""
_EQUIVALENTS: Final = {"job": _SENT_BY, "handle": _ASKED_BY, "queue": _OF_QUEUES, "client": _OF_CLIENTS}

_PARAMETERS = "give the parameters to the job itself: SendMail(to=…).enqueue(), or send_mail.enqueue(to=…)"
_OF_THE_URL = "say it in the URL: redis://user:password@host:port/db"
_ADVICE: Final = {
    **dict.fromkeys(("args", "kwargs", "params", "parameters"), _PARAMETERS),
    "base": "a class that derives from a job class inherits its methods; middleware is code around every job",
    "bind": "in the job, current_task() is the task that runs: its id, attempt, max_attempts, headers, progress(…)",
    **dict.fromkeys(("host", "port", "db", "database", "username", "user", "password", "ssl"), _OF_THE_URL),
}
_NOTE: Final = " (it counts the first attempt too: 3 retries are max_attempts=4)"
_NEAR, _FAR = 0.65, 0.55


def check_options(given: Iterable[str], known: Collection[str], what: str) -> None:
    """Raises UnknownOption for the first name in `given` that is not in `known`, naming the nearest one."""
    for name in given:
        if name not in known:
            raise UnknownOption(f"{unknown(what, name)}; {hint(name, known)}") from None


def check_names(given: Iterable[str], known: Collection[str], what: str) -> None:
    """As `check_options`, for other names: of jobs, parameters, columns."""
    for name in given:
        if name not in known:
            raise UnknownOption(f"{unknown(what, name)}; {nearest(name, known)}") from None


def unknown(what: str, name: object) -> str:
    """The text for an unknown name of some kind: `unknown option 'x' of push()` for the option of push()."""
    kind, of, owner = re.split(r"( of | in |$)", what, maxsplit=1)
    return f"unknown {kind} {describe(name)}{of}{owner}"


def nearest(name: str, known: Collection[str]) -> str:
    """A hint at the name that was probably meant."""
    near = _nearest(name, known, _FAR)
    return f"did you mean {near!r}?" if near else f"known are {', '.join(sorted(known)) or 'none'}"


def hint(name: str, known: Collection[str]) -> str:
    """A hint at the option for which an unknown name probably stands."""
    note = _NOTE if "max_attempts" in _CALLED_HERE.get(name, "") else ""
    if told := retired(name, known):
        return told
    if near := meant(name, known):
        if "max_attempts" not in near:
            note = f" ({name!r} is an option of {_WHERE[name]})" if name in _WHERE else ""
        return f"did you mean {near}?{note}"
    if name in _ADVICE:
        return _ADVICE[name]
    if name in _WHERE:
        return f"it is an option of {_WHERE[name]}"
    if elsewhere := next((one for one in _alternatives(name) if one in _WHERE), None):
        return f"it is called {elsewhere!r} here, and is an option of {_WHERE[elsewhere]}{note}"
    if known and (misspelt := _nearest(name, _WHERE, _NEAR)):
        return f"did you mean {misspelt!r}? It is an option of {_WHERE[misspelt]}"
    if near := _nearest(name, known, _FAR):
        return f"did you mean {near!r}?"
    return f"known are {', '.join(sorted(known))}" if known else "it takes none"


def present(name: str) -> str:
    """The present name for an option name of a build before 0.1.0; any other name unchanged."""
    return _RETIRED.get(name.lower(), name)


def retired(name: str, known: Collection[str]) -> str | None:
    """The present name for an option name of a build before 0.1.0, if `known` has no option for which it may stand."""
    present = _RETIRED.get(name.lower())
    if present is None or any(one in known for one in _alternatives(name)):
        return None
    return f"it is called {present!r} here, and is an option of {_WHERE[present]}"


def meant(name: str, known: Collection[str]) -> str | None:
    """The known name, as rendered, for which a misspelt name or another system's name stands; None without one."""
    for one in _CALLED_HERE.get(name.lower(), "").split():
        if here := [part for part in one.split("|") if part in known]:
            return " or ".join(map(repr, here))
    near = _nearest(name, known, _NEAR)
    return None if near is None else repr(near)


def no_attribute(
    owner: object, what: str, name: str, kind: Literal["job", "handle", "queue", "client"] = "job"
) -> AttributeError:
    """The error for an attribute that an object of this kind lacks; for another framework's attribute it names ours."""
    here = _EQUIVALENTS[kind].get(name)
    remedy = f"; write {here}" if here else ""
    return AttributeError(f"{what} has no attribute {name!r}{remedy}", name=name, obj=None if here else owner)


def _alternatives(name: str) -> list[str]:
    return _CALLED_HERE.get(name.lower(), "").replace("|", " ").split()


def _nearest(name: str, known: Collection[str], cutoff: float) -> str | None:
    from difflib import get_close_matches  # here and below: for an error only

    return next(iter(get_close_matches(name, known, n=1, cutoff=cutoff)), None)


def checks_options(target: T) -> T:
    """Raises UnknownOption for unknown keywords of a function, or of a class and all its public methods.

    A valid call costs only one more Python frame: a call is examined only when Python refuses it. Functions that take
    `**options` are left alone; they check these themselves.
    """
    if not isinstance(target, type):
        return cast("T", _checked(cast("Callable[..., Any]", target)))
    init = vars(target).get("__init__")
    if inspect.isfunction(init):
        setattr(target, "__init__", _checked(init))  # noqa: B010 - mypy refuses the plain form
    return cast("T", checks_methods(target))


def checks_methods(target: type[C]) -> type[C]:
    """As `checks_options`, only for the public methods of a class that users do not make: its constructor costs
    nothing."""
    for name, found in list(vars(target).items()):
        if name.startswith("_"):
            continue
        if isinstance(found, classmethod):
            setattr(target, name, classmethod(_checked(found.__func__)))
        elif inspect.isfunction(found):
            setattr(target, name, _checked(found))
    return target


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    code = inspect.unwrap(function).__code__
    names = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    known = tuple(name for name in names if name not in ("self", "cls"))
    if code.co_flags & inspect.CO_VARKEYWORDS:
        return function
    what = f"option of {function.__qualname__.removesuffix('.__init__').lstrip('_')}()"

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def checked_async(*args: Any, **kwargs: Any) -> Any:
            try:
                asked = function(*args, **kwargs)
            except TypeError:
                check_options(kwargs, known, what)
                raise
            return await asked

        return checked_async

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            check_options(kwargs, known, what)
            raise

    return checked


def folded(name: str) -> str:
    """The form in which two spellings of an option of Spark's data source are equal: Spark passes names in any case,
    and users write them with underscores, too."""
    return name.replace("_", "").lower()


def settle_names(
    given: Mapping[str, str], known: Sequence[str], what: str, *, unsaid: Sequence[str] = ()
) -> dict[str, str]:
    """The options of the data source under their canonical names. `unsaid` options are accepted, but not suggested.

    Raises UnknownOption, which names the nearest option.
    """
    names = {folded(name): name for name in (*known, *unsaid)}
    for name in given:
        if folded(name) not in names:
            from difflib import get_close_matches

            near = get_close_matches(folded(name), names, n=1, cutoff=0.5)
            remedy = f"did you mean {names[near[0]]!r}?" if near else f"known are {', '.join(known)}"
            raise UnknownOption(f"unknown option {name!r} of {what}; {retired(name, known) or remedy}")
    return {names[folded(name)]: value for name, value in given.items()}


def listed(text: str) -> tuple[str, ...]:
    """The parts of an option with several values, separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def calling_module() -> str:
    """The module of the caller's caller, found as in collections.namedtuple, skipping the wrapper of
    `checks_options`."""
    frame = sys._getframe(2)  # noqa: SLF001
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))
