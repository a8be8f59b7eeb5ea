"""Jobs that poll for a batch: one worker at a time asks, and what it finds is enqueued."""

import threading

import pytest

from jobrunner import Backoff, Job, Unique, current_task, job, job_defaults, queue
from jobrunner.errors import InvalidOption
from jobrunner.jobs.declared_queues import forget_queue
from jobrunner.jobs.job_defaults import forget_defaults
from jobrunner.jobs.registry import find
from tests.support.waiting import wait_for


@pytest.fixture
def source():
    """Rows that wait in another system, and what became of them."""

    class Source:
        rows, done, asking, most = [], [], 0, 0
        lock = threading.Lock()

    Source.rows, Source.done = [], []
    return Source


def declare(source, **options):
    @job(queue="rows", poll_every=0.1, name="polled_row", **options)
    class Row(Job):
        number: int

        @classmethod
        def next_batch(cls):
            with source.lock:
                source.asking += 1
                source.most = max(source.most, source.asking)
            try:
                found, source.rows = source.rows, []
                return [cls(number=number) for number in found]
            finally:
                with source.lock:
                    source.asking -= 1

        def run(self):
            source.done.append(self.number)

    return Row


def test_what_a_poll_finds_is_run_once_and_one_worker_polls_at_a_time(current, start, source):
    declare(source)
    for _ in range(3):
        start(queues=["rows"], leader_ttl=1, sweep=0.1)
    source.rows = [1, 2, 3]
    wait_for(lambda: sorted(source.done) == [1, 2, 3])
    source.rows = [4]
    wait_for(lambda: sorted(source.done) == [1, 2, 3, 4])
    assert source.most == 1
    assert [one.queue for one in current.periodics() if one.name == "polled_row.next_batch"] == ["rows"]


def test_a_poll_that_returns_the_same_again_adds_nothing_with_unique(current, source):
    row = declare(source, unique=Unique(by=["number"]))
    poll = find("polled_row.next_batch")
    for _ in range(2):
        source.rows = [1, 2]
        assert poll.parameters.read(b"{}").run() == 2
    assert current.queue("rows").counts()["waiting"] == 2
    assert row.definition.periodic is None


@pytest.mark.parametrize(
    ("found", "message"),
    [("rows", "returned 'rows'; return a list of Row"), ([5], "returned 5 among its items"), (7, "returned 7")],
)
def test_what_is_no_batch_fails_the_poll_and_enqueues_nothing(current, found, message):
    @job(queue="rows", poll_every=5, name="polled_wrong")
    class Row(Job):
        @staticmethod
        def next_batch():
            return found

        def run(self):
            pass

    with pytest.raises(ValueError, match=message):
        find("polled_wrong.next_batch").parameters.read(b"{}").run()
    assert current.queues() == []


def test_what_is_found_may_have_options_and_with_an_id_it_is_added_once(current):
    @job(queue="rows", poll_every=5, name="polled_options")
    class Row(Job):
        number: int

        @classmethod
        def next_batch(cls):
            return [cls(number=1).using(id="row-1", in_=60), cls(number=2)]

        def run(self):
            pass

    poll = find("polled_options.next_batch").parameters.read(b"{}")
    assert poll.run() == 2
    poll.run()
    counts = current.queue("rows").counts()
    assert (counts["scheduled"], counts["waiting"]) == (1, 2), "the id is there already"
    assert current.queue("rows").ids("scheduled") == ["row-1"]


def test_nothing_found_enqueues_nothing(current):
    @job(queue="rows", poll_every=5, name="polled_none")
    class Row(Job):
        @classmethod
        def next_batch(cls):
            return None

        def run(self):
            pass

    assert find("polled_none.next_batch").parameters.read(b"{}").run() == 0
    assert find("polled_none.next_batch").options.max_attempts == 0, "a poll that fails fills no list of dead tasks"


@pytest.fixture
def defaults():
    """Defaults of all jobs, and of the queue, by which a task may die; without them after the test."""
    job_defaults(retry_on=LookupError, expires_in=0.001, max_stalled=1, timeout=60)
    queue("rows", expires_in=0.001)
    yield
    forget_defaults()
    forget_queue("rows")


@pytest.mark.parametrize("with_defaults", [False, True])
def test_a_poll_that_fails_is_tried_again_and_nothing_of_it_dies(request, current, start, source, with_defaults):
    if with_defaults:
        request.getfixturevalue("defaults")
    asked = []

    @job(queue="rows", poll_every=0.1, name="polled_away", expires_in=3600)
    class Row(Job):
        number: int

        @classmethod
        def next_batch(cls):
            asked.append(current_task().attempt)
            if len(asked) < 3:
                raise ConnectionError("the other system is away")
            return [cls(number=1)]

        def run(self):
            source.done.append(self.number)

    start(queues=["rows"], leader_ttl=1, sweep=0.1)
    wait_for(lambda: source.done)
    assert asked[:3] == [1, 2, 3], "the same task, tried again"
    assert current.queue("rows").counts()["dead"] == 0


@pytest.mark.parametrize(
    ("options", "attempts"),
    [
        ({"max_attempts": 3}, [1]),
        ({"max_attempts": 3, "backoff": Backoff(base=0.01)}, [1, 2, 3]),
        ({"max_attempts": 3, "retry_on": (ValueError,)}, [1, 2, 3]),
        ({"max_attempts": 3, "retry_on": (KeyError,)}, [1]),
    ],
)
def test_a_failed_tick_is_retried_when_its_job_says_how(current, run, options, attempts):
    tried = []

    @job(queue="hourly", every=3600, name=f"tick_{len(attempts)}_{'_'.join(options)}", **options)
    def tick():
        tried.append((current_task().id, current_task().attempt))
        raise ValueError("always")

    current.queue("hourly").configure(backoff=Backoff(base=0.01))
    task = tick.enqueue()
    run(queues=["hourly"], drain=True)
    assert [attempt for task_id, attempt in tried if task_id == task.id] == attempts
    assert task.state == "dead"


def test_a_coroutine_may_poll_and_does_not_hold_the_event_loop_up_when_it_enqueues(
    current, start, source, monkeypatch
):
    @job(queue="rows", poll_every=0.1, name="polled_async")
    class Row(Job):
        number: int

        @classmethod
        async def next_batch(cls):
            found, source.rows = source.rows, []
            return [cls(number=number) for number in found]

        def run(self):
            source.done.append(self.number)

    monkeypatch.setattr(Row, "enqueue_many", None)  # it would wait for the server in the loop of all coroutine jobs
    assert find("polled_async.next_batch").is_async
    source.rows = [1, 2]
    start(queues=["rows"], leader_ttl=1, sweep=0.1)
    wait_for(lambda: sorted(source.done) == [1, 2])


@pytest.mark.parametrize(
    ("body", "options", "message"),
    [
        ({}, {"poll_every": 5}, r"needs a class method next_batch\(cls\)"),
        ({"next_batch": classmethod(lambda cls, more: [])}, {"poll_every": 5}, "called without arguments"),
        ({"next_batch": lambda self: []}, {"poll_every": 5}, "make it a class method"),
        ({"next_batch": classmethod(lambda cls: [])}, {"poll_every": 0}, "poll_every=0: give more than 0"),
        ({"next_batch": classmethod(lambda cls: [])}, {"poll_every": "5"}, "poll_every is '5'"),
        ({"next_batch": classmethod(lambda cls: [])}, {"poll_every": 5, "every": 5}, "with every or cron"),
    ],
)
def test_a_wrong_declaration_is_refused_and_registers_nothing(body, options, message):
    target = type("Wrong", (Job,), {"run": lambda self: None, "__module__": __name__, **body})
    with pytest.raises(InvalidOption, match=message):
        job(name="polled_refused", **options)(target)
    assert find("polled_refused") is None
    assert find("polled_refused.next_batch") is None


def test_a_function_cannot_poll():
    with pytest.raises(InvalidOption, match="poll_every is for a Job class"):

        @job(poll_every=5)
        def wrong() -> None: ...
