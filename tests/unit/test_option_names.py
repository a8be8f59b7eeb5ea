"""An unknown option names the nearest known one, wherever it is given, or what another system's word is called here."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobrunner import (
    AsyncClient,
    Backoff,
    Client,
    Fail,
    Item,
    Job,
    RateLimit,
    Retry,
    Snooze,
    Unique,
    Worker,
    chain,
    configure,
    group,
    job,
)
from jobrunner.client.lease import AsyncLease, Lease
from jobrunner.client.queue import Queue
from jobrunner.errors import ParameterError, UnknownJob, UnknownOption
from jobrunner.etl import Pipeline, To
from jobrunner.etl.pipeline import find_pipeline
from jobrunner.jobs.registry import forget, lookup
from jobrunner.option_names import check_names, check_options, checks_options, hint, nearest, settle_names

Given = dict[str, Any]


@pytest.fixture
def mail() -> Iterator[Any]:
    @job(queue="mail")
    class Mail(Job):
        address: str = ""

        def run(self) -> None: ...

    yield Mail
    forget("Mail")


@pytest.fixture
def add() -> Iterator[Any]:
    @job()
    def add(x: int, y: int = 0) -> int:
        return x + y

    yield add
    forget("add")


@pytest.fixture
def line(client: Client) -> Pipeline:
    return Pipeline("line", client)


def _carry_out(call: Callable[[], Any]) -> None:
    answer = call()
    if inspect.iscoroutine(answer):
        asyncio.run(answer)


def refusal(call: Callable[[], Any]) -> str:
    """The remedy in the error text, after the semicolon."""
    with pytest.raises(UnknownOption) as refused:
        _carry_out(call)
    assert refused.value.__suppress_context__, "Python's own error adds nothing"
    return str(refused.value).partition("; ")[2]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("prioriti", "'priority'"),
        ("wiat", "'wait'"),
        ("countdown", "'in_'"),
        ("delay", "'in_'"),
        ("eta", "'at'?"),
        ("queue_name", "'queue'"),
        ("job_id", "'id'"),
        ("task_id", "'id'"),
        ("max_retries", "'max_attempts'? (it counts the first attempt too"),
        ("retries", "'max_attempts'"),
        ("retry", "'max_attempts'"),
        ("time_limit", "'timeout'?"),
        ("expires", "'expires_in'?"),
        ("ttl", "'expires_in'?"),
        ("keep", "'result_ttl'?"),
        ("visibility_timeout", "'keepalive' here"),
        ("args", "give the parameters to the job itself"),
        ("kwargs", "give the parameters to the job itself"),
    ],
)
def test_enqueue_says_what_was_meant(mail: Any, add: Any, given: str, told: str) -> None:
    assert told in refusal(lambda: mail().enqueue(**{given: 2}))
    assert told in refusal(lambda: mail().aenqueue(**{given: 2}))
    assert told in refusal(lambda: add.using(**{given: 2}))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("max_retries", "'max_attempts'"),
        ("retry", "'max_attempts' or 'retry_on'"),
        ("time_limit", "'timeout'"),
        ("expires", "'expires_in'"),
        ("keep", "'result_ttl'"),
        ("queue_name", "'queue'"),
        ("visibility_timeout", "'keepalive'"),
        ("countdown", "'in_' here, and is an option of enqueue(), using() and push()"),
        ("prioriti", "'priority'"),
        ("retry_delay", "'backoff'"),
    ],
)
def test_declaring_a_job_says_what_was_meant(given: str, told: str) -> None:
    assert told in refusal(lambda: job(**{given: 2}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda q: q.reserve(visibility_timeout=3), "'keepalive'"),
        (lambda q: q.reserve(timeout=3), "'wait' or 'keepalive'"),
        (lambda q: q.reserve(max_messages=3), "'n'"),
        (lambda q: q.reserve(keepalife=3), "'keepalive'"),
        (lambda q: q.pause(duration=3), "'for_'"),
        (lambda q: q.resume(now=True), "it takes none"),
        (lambda q: q.tasks(stat="dead"), "'state'"),
        (lambda q: q.history(count=3), "'limit'"),
        (lambda q: q.pop(count=3), "'n'"),
        (lambda q: q.push(1, prioriti=3), "'priority'"),
        (lambda q: q.push(1, wiat=3), "'wait'"),
        (lambda q: q.push(1, delay=3), "'in_'"),
        (lambda q: q.push(1, max_retries=3), "'max_attempts'"),
        (lambda q: q.push(Item(1), time_limit=3), "'keepalive'"),
        (lambda q: q.push(1, on_conflict="raise"), "'on_clash'"),
        (lambda q: q.push_many([1], wiat=3), "'wait'"),
        (lambda q: q.commit_many([], result=[1]), "'results'"),
        (lambda q: q.rollback_many([], countdown=3), "'delay'"),
        (lambda q: q.requeue_dead(id=["x"]), "'ids'"),
        (lambda q: q.configure(visibility_timeout=3), "'keepalive'"),
        (lambda q: q.configure(concurrency=3), "'max_inflight'"),
    ],
)
def test_queues_say_what_was_meant(client: Client, call: Callable[[Any], Any], told: str) -> None:
    assert told in refusal(lambda: call(client.queue("q")))
    queue = AsyncClient(client.settings.url, client.settings.prefix).queue("q")
    assert told in refusal(lambda: call(queue))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (lambda lease: lease.rollback(countdown=3), "'delay'"),
        (lambda lease: lease.rollback(reason="x"), "'error'"),
        (lambda lease: lease.move("a", paylod=3), "'payload'"),
        (lambda lease: lease.move("a", countdown=3), "'delay'"),
        (lambda lease: lease.commit(reslt=3), "'result'"),
        (lambda lease: lease.extend(by=3), "it takes none"),
    ],
)
def test_leases_say_what_was_meant(client: Client, given: Callable[[Any], Any], told: str) -> None:
    client.queue("q").push(1)
    (lease,) = client.queue("q").reserve()

    assert isinstance(lease, Lease)
    assert told in refusal(lambda: given(lease))
    assert told in refusal(lambda: given(AsyncLease(None, client.queue("q")._ref, lease.attempt)))  # type: ignore[arg-type]
    assert lease.commit()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda p: p.station("a", to="b", fan_ot=True), "'fan_out'"),
        (lambda p: p.station("a", fan_ot=True), "'fan_out'"),
        (lambda p: p.station("a", to="b", priorty=1), "priority"),
        (lambda p: p.station("a", to="b", max_retries=1), "'max_attempts'"),
        (lambda p: p.station("a", to="b", time_limit=1), "'timeout'"),
        (lambda p: p.spark_station("a", to="b", bach=3), "'batch'"),
        (lambda p: p.spark_station("a", bach=3), "'batch'"),
        (lambda p: p.spark_sink("a", bach=3), "'batch'"),
        (lambda p: p.sink("a", to="b"), "an option of Pipeline.station()"),
        (lambda p: p.declare("a", max_sise=3), "'max_size'"),
        (lambda p: p.push("a", 1, countdown=3), "'in_'"),
        (lambda p: p.check(deep=True), "it takes none"),
        (lambda p: Pipeline("other", maxhops=3), "'max_hops'"),
        (lambda p: To("a", dealy=3), "'delay'"),
    ],
)
def test_pipelines_say_what_was_meant(line: Pipeline, call: Callable[[Any], Any], told: str) -> None:
    assert told in refusal(lambda: call(line))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: Backoff(bse=1), "'base'"),
        (lambda: Backoff(max_delay=1), "'cap'"),
        (lambda: Unique(fields=["x"]), "'by'"),
        (lambda: Unique(on_conflict="raise"), "'on_clash'"),
        (lambda: RateLimit(max_token=1), "'max_tokens'"),
        (lambda: RateLimit(max_tokens=1, period=1), "'interval'"),
        (lambda: RateLimit(1, period=1), "'per'"),
        (lambda: Retry(delay=1), "'in_'"),
        (lambda: Retry("x", countdown=1), "'in_'"),
        (lambda: Snooze(secs=1), "known are in_"),
        (lambda: Fail(retries=False), "'retry'"),
        (lambda: Item(1, prioriti=2), "'priority'"),
        (lambda: Client(host="x"), "in the URL"),
        (lambda: Client(retry_timout=2), "'retry_timeout'"),
        (lambda: Client(patience=2), "'retry_timeout'"),
        (lambda: configure(ulr="x"), "'url'"),
        (lambda: Worker(concurency=2), "'concurrency'"),
        (lambda: Worker(processes=2), "did you mean 'concurrency' or 'executor'?"),
        (lambda: Worker(name="x"), "known are "),
        (lambda: Worker(loglevel="x"), "known are "),
        (lambda: Worker(queue="x"), "'queues'"),
        (lambda: Worker(url="redis://h"), "it is an option of configure() and Client()"),
    ],
)
def test_values_and_clients_say_what_was_meant(call: Callable[[], Any], told: str) -> None:
    assert told in refusal(call)


RETIRED = {
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
OTHERWISE = {
    ("push", "limit_by"): "partition", ("item", "limit_by"): "partition", ("pipeline push", "limit_by"): "partition",
    ("reserve", "prefetch"): "n", ("spark station", "prefetch"): "batch",
}  # fmt: skip
"""Where an old word rather stands for an option of that very call."""
ENTRIES: dict[str, Callable[[Any, Pipeline, Given], Any]] = {
    "job": lambda mail, line, given: job(**given),
    "enqueue": lambda mail, line, given: mail().enqueue(**given),
    "configure": lambda mail, line, given: configure(**given),
    "client": lambda mail, line, given: Client(**given),
    "worker": lambda mail, line, given: Worker(**given),
    "queue settings": lambda mail, line, given: line.client.queue("q").configure(**given),
    "reserve": lambda mail, line, given: line.client.queue("q").reserve(**given),
    "push": lambda mail, line, given: line.client.queue("q").push(1, **given),
    "item": lambda mail, line, given: Item(1, **given),
    "pipeline push": lambda mail, line, given: line.push("a", 1, **given),
    "pipeline queue": lambda mail, line, given: line.declare("a", **given),
    "station": lambda mail, line, given: line.station("a", to="b", **given),
    "sink": lambda mail, line, given: line.sink("a", **given),
    "spark station": lambda mail, line, given: line.spark_station("a", to="b", **given),
    "spark read": lambda mail, line, given: settle_names(given, ["queue", "state"], "a read from jobrunner"),
}


@pytest.mark.parametrize("old", RETIRED)
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_retired_option_name_is_answered_with_the_present_word(
    mail: Any, line: Pipeline, entry: str, old: str
) -> None:
    with pytest.raises(UnknownOption) as refused:
        ENTRIES[entry](mail, line, {old: 1})
    told = str(refused.value)
    assert repr(old) in told
    assert f"'{OTHERWISE.get((entry, old), RETIRED[old])}" in told, told


def test_handles_and_flows_say_what_was_meant(client: Client, mail: Any) -> None:
    assert "'timeout'" in refusal(lambda: client.task("x", queue="q").result(time_out=3))  # type: ignore[call-arg]
    assert "'timeout'" in refusal(lambda: client.task("x", queue="q").result(wait=3))  # type: ignore[call-arg]
    assert "'queue'" in refusal(lambda: client.task("x", quue="q"))  # type: ignore[call-arg]
    assert "'on_success'" in refusal(lambda: group(mail(), on_sucess=mail()))  # type: ignore[call-arg]
    assert "'ttl'" in refusal(lambda: chain(mail()).enqueue(tll=3))  # type: ignore[call-arg]
    assert "'wait'" in refusal(lambda: mail.enqueue_many([mail()], wiat=3))


def test_a_wrong_parameter_of_a_job_names_the_nearest(mail: Any, add: Any) -> None:
    with pytest.raises(ParameterError, match="did you mean 'address'"):
        mail(adress="x")
    with pytest.raises(ParameterError, match=r"options go into enqueue\(…\), those of a function into using"):
        add.enqueue(1, prioriti=2)
    with pytest.raises(ParameterError, match=r"into using"):
        add.enqueue(1, countdown=2)


def test_an_error_inside_a_call_that_is_right_stays_what_it_is(client: Client) -> None:
    def on_clash(_: list[str]) -> None:
        raise TypeError("mine")

    client.queue("q").push(1, id="x")
    with pytest.raises(TypeError, match=r"^mine$"):
        client.queue("q").push(1, id="x", on_clash=on_clash)
    with pytest.raises(TypeError, match="missing 1 required"):
        client.queue("q").replay()  # type: ignore[call-arg]


def test_what_is_checked_stays_what_it_was() -> None:
    @checks_options
    def add(x: int, /, *, y: int = 0) -> int:
        """Adds."""
        return x + y

    assert add(1, y=2) == 3
    assert (add.__name__, add.__doc__) == ("add", "Adds.")
    assert str(inspect.signature(add)) == "(x: int, /, *, y: int = 0) -> int"
    assert inspect.iscoroutinefunction(Job.aenqueue)
    assert inspect.signature(Queue.reserve).parameters.keys() >= {"n", "keepalive", "wait", "committing"}
    assert Backoff(base=1) == Backoff(1)


def test_a_pipeline_is_of_the_module_that_made_it(line: Pipeline) -> None:
    assert find_pipeline("line") is line
    Pipeline("line")  # the same module once more: no error
    assert hint("nothing like it", []) == "it takes none"


def test_names_that_are_no_options_are_not_read_as_such(mail: Any) -> None:
    with pytest.raises(UnknownJob, match=r"unknown job 'delay'"):
        lookup("delay")
    assert nearest("user", ["raw", "out"]) == "known are out, raw"
    assert nearest("otu", ["raw", "out"]) == "did you mean 'out'?"


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("option of push()", "unknown option 'sun' of push(); did you mean 'soon'?"),
        ("client option", "unknown client option 'sun'; did you mean 'soon'?"),
        ("setting of queue 'a', jobs.py:3", "unknown setting 'sun' of queue 'a', jobs.py:3; did you mean 'soon'?"),
        ("option in [tool] of p.toml", "unknown option 'sun' in [tool] of p.toml; did you mean 'soon'?"),
    ],
)
def test_the_unknown_name_follows_its_kind(what: str, said: str) -> None:
    for check in (check_options, check_names):
        with pytest.raises(UnknownOption) as caught:
            check(["sun"], ["soon"], what)
        assert str(caught.value) == said
